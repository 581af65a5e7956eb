"""`make release`: builds the sdist and the wheel into dist/, proves them, and describes them.

Both are the same bytes wherever they are built: they have the files of the commit and its time, and
are built twice to show it. Then each extra is installed from the wheel into an empty environment of
each Python that is here, and its libraries are imported. `SHA256SUMS` and an SBOM in CycloneDX, of
the extra `build`, lie beside them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from fineshards.extras import MODULES

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# Extras of contributors, and those whose libraries take gigabytes: they are only resolved.
ONLY_RESOLVED = ("dev", "test", "torch", "jax", "grain")
_UV = str(Path(sys.executable).with_name("uv"))
_SBOM_TOOL = "cyclonedx-bom==7.5.0"
_SMOKE = """
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
import fineshards
assert fineshards.TokenDataset and fineshards.__version__ == sys.argv[1], fineshards.__version__
for name in sys.argv[2:]:
    # Some are names of distributions, whose version is asked for.
    version(name) if find_spec(name) is None else import_module(name)
"""


def main() -> None:
    """Builds a release, or stops with the reason why it cannot be one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="The tag, such as v1.2.3: checks that all names agree.")
    parser.add_argument("--extras", help="Only these, with commas. Default: all.")
    args = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if args.tag and (reason := disagreement(args.tag)):
        sys.exit(reason)
    if args.tag and _run("git", "status", "--porcelain"):
        sys.exit("there are changes that are not committed")
    extras = args.extras.split(",") if args.extras else ["", *project["optional-dependencies"]]
    with TemporaryDirectory() as folder:
        files = build(Path(folder) / "first")
        if {file.name: file.read_bytes() for file in build(Path(folder) / "second")} != {
            file.name: file.read_bytes() for file in files
        }:
            sys.exit("the second build has other bytes than the first one")
        DIST.mkdir(exist_ok=True)
        for old in DIST.iterdir():
            old.unlink()
        files = [file.rename(DIST / file.name) for file in files]
        _run(sys.executable, "-m", "twine", "check", "--strict", *files)
        (wheel,) = DIST.glob("*.whl")
        for python in PYTHONS:
            _check_extras(wheel, python, extras, project["version"], Path(folder))
        files.append(_sbom(wheel, project["version"], Path(folder)))
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (DIST / "SHA256SUMS").write_text("".join(sorted(lines, key=lambda line: line[66:])))
    print(f"released into {DIST.name}/:\n{(DIST / 'SHA256SUMS').read_text()}", end="")


def disagreement(tag: str) -> str:
    """Which place has another version than the tag; empty if none has."""
    version = tag.removeprefix("v")
    heading = re.compile(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if project["version"] != version:
        return f"pyproject.toml has version {project['version']}, not {tag}"
    if not heading.search((ROOT / "CHANGELOG.md").read_text()):
        return f"CHANGELOG.md has no heading ## {version} - DATE"
    if f"\nversion: {version}\n" not in (ROOT / "CITATION.cff").read_text():
        return "CITATION.cff has another version"
    return ""


def build(folder: Path) -> list[Path]:
    """The sdist and the wheel of the last commit; the wheel is built from the sdist."""
    source, output = folder / "source", folder / "output"
    source.mkdir(parents=True)
    content = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(source, filter="data")
    time = int(_run("git", "log", "-1", "--format=%ct"))
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(time)}
    build = (sys.executable, "-m", "build", "--installer", "uv", "--outdir", output)
    _run(*build, "--sdist", source, environment=environment)
    (sdist,) = output.glob("*.tar.gz")
    sdist.write_bytes(_with_time(sdist, time))
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "sdist", filter="data")
    (unpacked,) = (folder / "sdist").iterdir()
    _run(*build, "--wheel", unpacked, environment=environment)
    (wheel,) = output.glob("*.whl")
    return [sdist, wheel]


def _with_time(sdist: Path, time: int) -> bytes:
    """An sdist with one time, owner and order of its files: setuptools takes those of the disk."""
    packed = io.BytesIO()
    with (
        tarfile.open(sdist) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=time, filename="") as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.mode, member.pax_headers = 0o755 if member.isdir() else 0o644, {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def _check_extras(wheel: Path, python: str, extras: list[str], version: str, folder: Path) -> None:
    """Installs each extra into an empty environment, and imports its libraries there."""
    interpreter = _interpreter(python)
    if interpreter is None:
        print(f"Python {python} is not here: not checked")
        return
    for extra in extras:
        requirement = f"{wheel}[{extra}]" if extra else str(wheel)
        environment = folder / f"{python}-{extra or 'base'}"
        _run(_UV, "venv", "--quiet", "--python", interpreter, environment)
        install = (_UV, "pip", "install", "--quiet", "--python", environment / "bin/python")
        if extra in ONLY_RESOLVED:
            _run(*install, "--dry-run", requirement)
        else:
            _run(*install, requirement)
            # -I: not the checkout, which is the current folder.
            _run(environment / "bin/python", "-I", "-c", _SMOKE, version, *MODULES.get(extra, ()))
        shutil.rmtree(environment)
        done = "can be resolved" if extra in ONLY_RESOLVED else "works"
        print(f"Python {python}, {extra or 'no extra'}: {done}", flush=True)


def _interpreter(python: str) -> str | None:
    """Where a Python is; pyenv has some that are installed, but not activated."""
    show = [f"python{python}", "-c", "import sys; print(sys.executable)"]
    try:
        done = subprocess.run(
            show, env=os.environ | {"PYENV_VERSION": python}, capture_output=True, text=True
        )
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout.strip()


def _sbom(wheel: Path, version: str, folder: Path) -> Path:
    """What an installation of the extra `build` consists of, in the tested versions."""
    environment, sbom = folder / "sbom", DIST / f"fineshards-{version}.cdx.json"
    _run(_UV, "venv", "--quiet", environment)
    python = environment / "bin/python"
    constraints = ("-c", ROOT / "requirements.txt")
    _run(_UV, "pip", "install", "--quiet", "--python", python, *constraints, f"{wheel}[build]")
    tool = (_UV, "tool", "run", "--quiet", "--from", _SBOM_TOOL, "cyclonedx-py", "environment")
    _run(*tool, "--output-reproducible", "--of", "JSON", "-o", sbom, python)
    return sbom


def _run(*command: object, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
