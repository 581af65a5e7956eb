"""The package as it is built and installed, and what works of it with numpy and msgspec alone.

What builds or installs needs the package index: `make test-package`. The rest runs with the tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass, field, replace
from importlib.metadata import packages_distributions
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.checkout import ROOT

from fineshards import extras

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = f"fineshards-{PROJECT['version']}"
# Folders of the checkout, and where they are in the package.
FOLDERS = {
    "fineshards": "fineshards",
    "pipeline": "fineshards/pipeline",
    "transforms": "fineshards/transforms",
}


def packaged() -> dict[str, str]:
    """The files that belong in the package, by their paths in the checkout."""
    return {
        path.relative_to(ROOT).as_posix(): f"{installed}/{path.relative_to(ROOT / folder)}"
        for folder, installed in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def modules() -> list[str]:
    names = (path.removesuffix(".py") for path in packaged().values() if path.endswith(".py"))
    return sorted(name.removesuffix("/__init__").replace("/", ".") for name in names)


def uv(*arguments: object) -> None:
    command = [str(Path(sys.executable).with_name("uv")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Python:
    """An interpreter that sees the package, far from the checkout."""

    command: list[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def environment_in(cls, folder: Path) -> Python:
        """A new and empty virtual environment."""
        uv("venv", "--python", sys.executable, folder / "venv")
        return cls([str(folder / "venv/bin/python")], folder)

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *map(str, arguments)],
            cwd=self.folder,
            env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
            | self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def prints(self, program: str) -> list[str]:
        """The lines that a program prints."""
        done = self("-c", program)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def site_packages(self) -> set[str]:
        """What lies in site-packages."""
        (folder,) = self.prints("import site; print(*site.getsitepackages())")
        return set(os.listdir(folder))


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the checkout without what lies around in it, such as an older build."""
    folder = tmp_path_factory.mktemp("package") / "checkout"
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def sdist(checkout: Path) -> Path:
    uv("build", "--sdist", "--out-dir", checkout.parent, checkout)
    return checkout.parent / f"{NAME}.tar.gz"


@pytest.fixture(scope="session")
def wheel(sdist: Path) -> Path:
    """The wheel, built from the sdist alone."""
    uv("build", "--wheel", "--out-dir", sdist.parent, sdist)
    return sdist.parent / f"{NAME}-py3-none-any.whl"


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Python:
    """A new environment with the wheel and what it requires: numpy and msgspec."""
    python = Python.environment_in(tmp_path_factory.mktemp("installed"))
    uv("pip", "install", "--python", python.command[0], "-c", ROOT / "requirements.txt", wheel)
    return python


@pytest.fixture(scope="session")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """An interpreter that sees the standard library, numpy, msgspec and the package, by links."""
    folder = tmp_path_factory.mktemp("linked")
    (installed,) = Path(sysconfig.get_path("purelib")).glob("fineshards-*.dist-info")
    (folder / installed.name).symlink_to(installed)  # the entry points
    numpy = Path(np.__file__).parent
    for library in (numpy, numpy.with_name("numpy.libs"), Path(msgspec.__file__).parent):
        if library.exists():
            (folder / library.name).symlink_to(library)
    for path in [*(ROOT / "fineshards").iterdir(), ROOT / "pipeline", ROOT / "transforms"]:
        (folder / "fineshards").mkdir(exist_ok=True)
        (folder / "fineshards" / path.name).symlink_to(path)
    # -S: no site-packages.
    return Python([sys.executable, "-S"], folder, {"PYTHONPATH": str(folder)})


@pytest.fixture(params=["linked", pytest.param("installed", marks=pytest.mark.package)])
def base(request: pytest.FixtureRequest) -> Python:
    """The package without extras."""
    python = request.getfixturevalue(request.param)
    assert isinstance(python, Python)
    return python


@pytest.mark.package
def test_the_sdist_has_what_the_wheel_is_built_from(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        files = {member.name for member in archive if member.isfile()}
    around = ["LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "requirements.txt"]
    made = ["PKG-INFO", "setup.cfg"]
    names = {name.removeprefix(f"{NAME}/") for name in files}
    names = {name for name in names if not name.startswith("fineshards.egg-info/")}
    assert names == {*packaged(), *around, *made, "setup.py"}


@pytest.mark.package
def test_the_wheel_has_the_package_and_nothing_else(wheel: Path, checkout: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    content = {name for name in names if not name.startswith(f"{NAME}.dist-info/")}
    assert content == set(packaged().values())
    assert content > {"fineshards/py.typed", "fineshards/encoders/gigatoken/differences.json"}
    uv("build", "--wheel", "--out-dir", checkout.parent / "direct", checkout)
    (direct,) = (checkout.parent / "direct").glob("*.whl")
    assert set(zipfile.ZipFile(direct).namelist()) == names


@pytest.mark.package
def test_a_wheel_adds_the_package_to_site_packages_and_nothing_else(
    wheel: Path, tmp_path: Path
) -> None:
    python = Python.environment_in(tmp_path)
    before = python.site_packages()
    uv("pip", "install", "--no-deps", "--python", python.command[0], wheel)
    assert python.site_packages() - before == {"fineshards", f"{NAME}.dist-info"}


FIND = """
import sys
from importlib.util import find_spec
for name in sys.argv[1:]:
    print(name, getattr(find_spec(name), "origin", None))
"""


@pytest.mark.package
def test_the_command_is_installed(installed: Python) -> None:
    command = Path(installed.command[0]).with_name("fineshards")
    done = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: fineshards ")
    assert installed.prints("import fineshards; print(fineshards.__version__)") == [
        PROJECT["version"]
    ]


@pytest.mark.package
def test_the_installed_wheel_builds_verifies_reports_and_reads_a_dataset(
    wheel: Path, tmp_path: Path
) -> None:
    python = Python.environment_in(tmp_path)
    constraints = ROOT / "requirements.txt"
    uv("pip", "install", "--python", python.command[0], "-c", constraints, f"{wheel}[build]")

    def fineshards(*arguments: object) -> str:
        done = python("-m", "fineshards", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert fineshards("--version") == f"fineshards {PROJECT['version']}\n"
    sample = ROOT / "samples/debian_text.parquet"
    built = fineshards("build", "--input", sample, "--output", "out", "--shard_tokens", "100k")
    verified = fineshards("verify", "out", "--sample", "100%")
    assert verified.startswith("verified: ")
    (tokens,) = re.findall(r"documents, ([0-9,]+) tokens", built)
    assert f" {tokens} tokens" in verified
    fineshards("report", "out")
    assert tokens in (tmp_path / "out-report.html").read_text()
    (read,) = python.prints(
        "from fineshards import TokenDataset\n"
        "splits = [TokenDataset('out', name, sequence_length=64) for name in ('test', 'train')]\n"
        "print(f'{sum(split.tokens for split in splits):,}')"
    )
    assert read == tokens


def test_the_checkout_is_whole_as_the_current_folder(linked: Python, tmp_path: Path) -> None:
    """Python looks there first, so the installed package is not seen."""
    for folder in FOLDERS:
        (tmp_path / folder).symlink_to(ROOT / folder)
    environment = linked.environment | {"PYTHONSAFEPATH": ""}  # Empty: as if it were not set.
    python = replace(linked, folder=tmp_path, environment=environment)
    found = python.prints(f"import sys; sys.argv[1:] = {modules()}\n{FIND}")
    files = {tmp_path / name for name in packaged() if name.endswith(".py")}
    assert {Path(line.partition(" ")[2]) for line in found} == files
    done = python("-m", "fineshards", "--help")
    assert done.returncode == 0, done.stderr


def test_an_import_loads_no_library(base: Python) -> None:
    loaded = base.prints(
        "import sys\nbefore = set(sys.modules)\nimport fineshards\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - sys.stdlib_module_names))"
    )
    assert loaded == ["fineshards"]


@pytest.mark.parametrize("module", ["fineshards", "fineshards.cli.build_command"])
def test_help_needs_no_extra(module: str, base: Python) -> None:
    done = base("-m", module, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_a_dataset_is_read_with_numpy_and_msgspec_alone(base: Python, unpublished: Path) -> None:
    program = f"""
import json, fineshards
dataset = fineshards.TokenDataset({str(unpublished)!r}, sequence_length=64)
batch = next(fineshards.BatchLoader(dataset, 4))
assert batch.shape == (4, 65), batch.shape
rows = {{row.tobytes() for row in batch}}
assert rows < {{dataset[i].tobytes() for i in range(len(dataset))}}
print(json.dumps(dataset[0].tolist()))
"""
    (first,) = base.prints(program)
    assert first == str(np.load(unpublished / "train/train_0000.npy")[:65].tolist())


@pytest.mark.parametrize(
    "call", ["build(input='x.parquet', output='y')", "verify('{folder}')", "status('{folder}')"]
)
def test_what_needs_an_extra_names_it(call: str, base: Python, unpublished: Path) -> None:
    called = call.format(folder=unpublished)
    (sentence,) = base.prints(
        "import fineshards\nfrom fineshards.errors import UsageError\n"
        f"try: fineshards.{called}\nexcept UsageError as error: print(error)"
    )
    assert sentence.endswith(" is not installed. Install it with: pip install 'fineshards[build]'")


def test_the_command_names_the_extra_in_one_sentence(base: Python) -> None:
    done = base("-m", "fineshards", "build", "--input", "x.parquet", "--output", "y")
    assert done.returncode == 2
    assert done.stderr.startswith("fineshards: ")
    assert done.stderr.endswith(
        " is not installed. Install it with: pip install 'fineshards[build]'\n"
    )
    assert len(done.stderr.splitlines()) == 1


def test_a_dataset_on_cloud_storage_names_the_extra(base: Python) -> None:
    (sentence,) = base.prints(
        "import fineshards\n"
        "try: fineshards.TokenDataset('gs://bucket/dataset', sequence_length=64)\n"
        "except fineshards.FineshardsError as error: print(error)"
    )
    assert sentence == (
        "google-cloud-storage is not installed. Install it with: pip install 'fineshards[gcs]'"
    )


def test_a_missing_library_is_named_with_an_extra_that_installs_it() -> None:
    modules: dict[str, set[str]] = {}
    for module, distributions in packages_distributions().items():
        for distribution in distributions:
            modules.setdefault(distribution.replace("-", "_").lower(), set()).add(module)
    installing: dict[str, set[str]] = {}
    for extra, requirements in PROJECT["optional-dependencies"].items():
        for requirement in requirements if extra not in ("test", "dev") else ():
            library = re.split(r"[\[<>=]", requirement)[0].replace("-", "_").lower()
            installing.setdefault(library, set()).add(extra)
    del installing["fineshards"]  # extras of extras
    for library, right in installing.items():
        errors = map(extras.missing_extra, map(named_error, modules.get(library, {library})))
        named = {str(error).split("[")[1].split("]")[0] for error in errors if error}
        assert named, library
        assert named <= right, library


def named_error(module: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(name=module)


def test_a_module_that_no_extra_installs_stays_missing() -> None:
    assert extras.missing_extra(ModuleNotFoundError(name="fineshards.nothing")) is None
    with pytest.raises(ModuleNotFoundError), extras.naming_the_extra():
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
