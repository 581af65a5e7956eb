"""docs/growing.md and docs/redaction.md run as printed, on three months of made-up dumps."""

from __future__ import annotations

import glob
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.checkout import ROOT, SAMPLE

import fineshards
from fineshards.cli.cli import main

PAGES = [ROOT / "docs/growing.md", ROOT / "docs/redaction.md"]


def test_the_pages_run_and_print_what_they_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pq.read_table(SAMPLE)
    for number, month in enumerate(["2026-09", "2026-10", "2026-11"]):
        (tmp_path / "months" / month).mkdir(parents=True)
        part = table.slice(number * 350, 350)
        pq.write_table(part, tmp_path / "months" / month / "part.parquet")
    monkeypatch.chdir(tmp_path)
    commands = 0
    names: dict[str, object] = {}
    for command, code in re.findall(
        r"^    fineshards ([^\n]*)$|^```python\n(.*?)^```$",
        "".join(page.read_text() for page in PAGES),
        re.MULTILINE | re.DOTALL,
    ):
        # A command is one line; the pattern's dot takes several for the code.
        for line in command.splitlines():
            words = shlex.split(line.strip().removeprefix("fineshards "))
            arguments = [path for word in words for path in sorted(glob.glob(word)) or [word]]
            assert main(arguments) == 0, line
            commands += 1
        if code:
            capsys.readouterr()
            exec(compile(code, "a page", "exec"), names)
            shown = re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE)
            printed = capsys.readouterr().out.splitlines()
            assert len(shown) == len(printed) > 0
            for expected, found in zip(shown, printed, strict=True):
                assert found.startswith(expected.removesuffix(" …"))
    assert commands >= 10
    assert fineshards.verify("web").ok
