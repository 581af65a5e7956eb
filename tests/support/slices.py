"""A part of the tests that take long, for runs that have no time for all.

`FINESHARDS_SLICE=2/5`, from 0/5 to 4/5, runs one of five; `commit` means the one that follows from
the commit, so that each run tests a part of everything and different commits test all of it.
Without it all tests run. Which test is in which slice follows from its name.
"""

import os
import subprocess
import sys
from zlib import crc32

import pytest

SLICES = 5
# The marks in pyproject.toml of what takes long. Other environments take long as a whole.
LONG = {"cloud", "curation", "engines", "growing", "heavy", "kills", "long"}

_left = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Decides the slice once, for all processes of the run."""
    config.stash[_left] = 0
    if os.environ.get("FINESHARDS_SLICE") == "commit":
        commit = ["git", "rev-parse", "--short=7", "HEAD"]
        head = subprocess.run(commit, capture_output=True, text=True, check=False).stdout
        os.environ["FINESHARDS_SLICE"] = f"{int(head or '0', 16) % SLICES}/{SLICES}"


@pytest.hookimpl(trylast=True)  # after -m, so that what it left out is not counted again
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the long tests of other slices."""
    number, _, count = os.environ.get("FINESHARDS_SLICE", "0/1").partition("/")
    own_environment = sys.prefix.endswith("-venv")  # of torch, Airflow and others

    def runs(item: pytest.Item) -> bool:
        long = own_environment or any(mark.name in LONG for mark in item.iter_markers())
        return not long or crc32(item.name.encode()) % int(count) == int(number)

    elsewhere = [item for item in items if not runs(item)]
    config.hook.pytest_deselected(items=elsewhere)
    items[:] = filter(runs, items)
    config.stash[_left] = len(elsewhere)
    if hasattr(config, "workeroutput"):  # pytest-xdist
        config.workeroutput["left"] = len(elsewhere)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: pytest.Session) -> None:
    """Takes the number of tests left out from a process of pytest-xdist; all have the same."""
    node.config.stash[_left] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says what was left out."""
    if left := config.stash[_left]:
        chosen = os.environ["FINESHARDS_SLICE"]
        said = f"not run: {left} long tests of other slices than {chosen}"
        terminalreporter.write_line(f"{said} (FINESHARDS_SLICE=0/1 runs all)")
