"""The commands of docs/formats.md and docs/trainers.md run as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.build_here import build_here
from support.checkout import ROOT

from fineshards.cli.cli import main

PAGE, TRAINERS = ((ROOT / f"docs/{name}.md").read_text() for name in ("formats", "trainers"))


def commands(page: str, name: str) -> list[list[str]]:
    joined = page.replace("\\\n", " ")
    lines = re.findall(rf"^    fineshards ({name} .+)$", joined, re.MULTILINE)
    return [shlex.split(line) for line in lines]


def test_the_commands_of_the_pages_run_as_written(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    build_here(input=sample, output="out", shard_tokens=100_000)
    exports = commands(PAGE + TRAINERS, "export")
    assert len(exports) > 8
    for arguments in exports:
        assert main(arguments) == 0, arguments
