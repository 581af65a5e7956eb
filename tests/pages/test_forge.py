"""The workflows that a forge runs, the extras of the package, and the first change.

The forms of these files are checked by `make lint`; here is what no schema knows.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.checkout import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").iterdir())
MAKEFILE = (ROOT / "Makefile").read_text()
RULES = re.findall(r"^([a-z][a-z-]*):(?!=)", MAKEFILE, re.MULTILINE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def jobs() -> list[tuple[str, dict[str, Any]]]:
    """The jobs of all workflows, each with the file's name and its own."""
    return [
        (f"{path.name}: {name}", job)
        for path in WORKFLOWS
        for name, job in yaml.safe_load(path.read_text())["jobs"].items()
    ]


def commands(job: dict[str, Any]) -> list[str]:
    """The commands of a job, once for each combination of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    runs = [step["run"] for step in job["steps"] if "run" in step]
    found = []
    for values in product(*matrix.values()):
        for run in runs:
            for name, value in zip(matrix, values, strict=True):
                run = run.replace(f"${{{{ matrix.{name} }}}}", value)
            found.append(run)
    return found


def test_workflows_make_targets_that_exist() -> None:
    made = [command for _, job in jobs() for command in commands(job)]
    assert {"make test", "make test-python-3.13"} < set(made)
    targets = set()
    for command in made:
        name, *words = command.split()
        assert name == "make", command
        targets.update(word for word in words if "=" not in word)
    assert targets - set(RULES) == {"test-python-3.12", "test-python-3.13"}
    assert set(re.findall(r"^PYTHONS := (.+)", MAKEFILE, re.MULTILINE)) == {"3.12 3.13"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_runs_fixed_versions_of_actions(path: Path) -> None:
    text = path.read_text()
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    actions = re.findall(r"uses: (.+)", text)
    assert actions
    for action in actions:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+(\.\d+)*", action)


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
