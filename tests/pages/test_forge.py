"""The extras that the page on installing lists, and the first change of a contributor."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.checkout import ROOT

from tools.release import disagreement

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_page_on_installing_lists_every_extra() -> None:
    page = (ROOT / "docs/start.md").read_text()
    table = page[page.index("| extra |") : page.index("\n\nA command that misses")]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(
        PROJECT["optional-dependencies"]
    )


def test_all_places_have_the_version_of_the_release() -> None:
    """Between releases it ends in .dev0, and the other places have that of the last release."""
    version = PROJECT["version"]
    assert version.endswith(".dev0") or disagreement(f"v{version}") == ""
    assert disagreement("v9.9.9") == f"pyproject.toml has version {version}, not v9.9.9"


def checkout(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A copy of the formats and their tests, with links to all else; runs commands in it."""
    sources, tests = folder / "fineshards/sources", folder / "tests/sources"
    for each in (sources.parent, sources, tests):
        each.mkdir(parents=True, exist_ok=True)
    for path in [*(ROOT / "fineshards").iterdir(), *(ROOT / "fineshards/sources").iterdir()]:
        if path.name not in ("sources", "formats"):
            (folder / path.relative_to(ROOT)).symlink_to(path)
    for name in ("pipeline", "transforms"):
        (folder / "fineshards" / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "fineshards/sources/formats", sources / "formats")
    shutil.copy(ROOT / "tests/sources/test_files.py", tests)

    def run(*command: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'tests'}"}
        return subprocess.run(
            command, cwd=folder, env=environment, input=given, capture_output=True, text=True
        )

    return run


def blocks_below(title: str, language: str) -> list[str]:
    """The blocks of code of a section of the page for contributors."""
    (section,) = re.findall(rf"## {title}\n(.*?)(?=\n## |\Z)", CONTRIBUTING, re.DOTALL)
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


@pytest.mark.long
def test_the_first_change_can_be_made_as_it_is_described(tmp_path: Path) -> None:
    run = checkout(tmp_path)
    results = []
    for block in blocks_below("Your first change, in ten minutes", "diff"):
        applied = run("git", "apply", given=block)
        assert applied.returncode == 0, applied.stderr
        tested = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        results.append(run(*tested, "tests/sources/test_files.py", "-k", "ldjson").stdout)
    failed, passed = results
    assert "cannot read a file named 'a.ldjson'" in failed
    assert " 1 failed" in failed
    assert " 1 passed" in passed
