"""The extras that the page on installing lists, and the first change of a contributor."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.checkout import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_page_on_installing_lists_every_extra() -> None:
    page = (ROOT / "docs/start.md").read_text()
    table = page[page.index("| extra |") : page.index("\n\nA command that misses")]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(
        PROJECT["optional-dependencies"]
    )


@pytest.mark.long
def test_the_first_change_can_be_made_as_it_is_described(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    code, test = tmp_path / "fineshards/sources/files.py", tmp_path / "tests/sources/test_files.py"
    # The package by links, but for the two files that change.
    for folder in (code.parent.parent, code.parent, test.parent):
        folder.mkdir(parents=True, exist_ok=True)
        for path in (ROOT / folder.relative_to(tmp_path)).iterdir():
            if path.name != "sources" and folder != test.parent:
                (folder / path.name).symlink_to(path)
    for changed in (code, test):
        changed.unlink(missing_ok=True)
        changed.write_bytes((ROOT / changed.relative_to(tmp_path)).read_bytes())

    def run(command: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, input=given, capture_output=True, text=True
        )

    results = []
    for block in re.findall(r"```diff\n(.*?)```", page, re.DOTALL):
        applied = run(["git", "apply"], block)
        assert applied.returncode == 0, applied.stderr
        tested = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(test)]
        results.append(run([*tested, "-k", "jsonlines"]).stdout)
    failed, passed = results
    assert "cannot read a file named 'a.jsonlines'" in failed
    assert " 1 failed" in failed
    assert " 1 passed" in passed
