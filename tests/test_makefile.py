"""The Makefile: its list of targets, its demo and its quick tests."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.checkout import ROOT

from fineshards.cli.cli import main


@pytest.mark.parametrize("target", ["help", None])
def test_make_lists_its_targets(target: str | None) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    command = ["make", "--no-print-directory", *([target] if target else [])]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("demo", "test", "quick", "template", "clean"):
        assert re.search(rf"^  {name} +\w", done.stdout, re.MULTILINE)


def test_the_demo_shows_a_short_english_document(
    sample: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    makefile = (ROOT / "Makefile").read_text()
    lines = re.findall(r"^\t\$\(BIN\)/fineshards (.+)$", makefile.partition("\ndemo:")[2], re.M)
    monkeypatch.chdir(tmp_path)
    for line in lines[:4]:
        capsys.readouterr()
        assert main(line.replace("$(SAMPLE)", str(sample)).split()) == 0
    shown = capsys.readouterr().out
    (row,) = map(int, re.findall(r"row (\d+)$", shown, re.M))
    document = pq.read_table(sample).slice(row, 1).to_pylist()[0]
    assert document["language"] == "en"
    assert shown.endswith(f"\n\n{document['text']}\n")
    assert len(shown.splitlines()) < 15
    assert "  ids     100257 " in shown


def test_every_file_of_the_quick_tests_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    names = makefile.partition("QUICK := $(addprefix tests/,")[2].partition(")")[0]
    files = [ROOT / f"tests/{name}" for name in names.replace("\\", " ").split()]
    assert len(files) > 8
    assert [path for path in files if not path.exists()] == []
