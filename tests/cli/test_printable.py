"""What data holds prints no control characters and no markup."""

import json
import re
import subprocess
import sys
from pathlib import Path
from unicodedata import category

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkout import ROOT
from support.shell import on_terminal

from fineshards.cli.cli import main
from fineshards.errors import printable

EVIL = "\x1b[2J\x9b1m\r\u202e\nforged: [red]5 tokens\x07"


@given(st.text() | st.from_regex(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e]+"))
def test_a_printable_line_is_one_line_and_says_the_same(text: str) -> None:
    line = printable(text)
    assert len(line.splitlines()) <= 1
    assert {category(char) for char in line if char != "\t"}.isdisjoint({"Cc", "Cs", "Zl", "Zp"})
    plain = text.encode("ascii", "ignore").decode()
    if plain.isprintable():
        assert printable(plain) == plain


def test_data_prints_no_control_characters(
    table: pa.Table, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every command, with hostile names and texts, on stdout and stderr."""
    folder = tmp_path / f"in{EVIL}"
    folder.mkdir()
    source = folder / "a.parquet"
    # In a text, unlike in a name, a line is a line.
    rows = {f"text{EVIL}": [EVIL.replace("\n", "")] * 3, "id": [EVIL, "b", "c"]}
    pq.write_table(pa.table(rows), source)
    column = f"--text_column=text{EVIL}"
    output = tmp_path / f"out{EVIL}"
    build = ["build", f"--input={source}", f"--output={output}", column, "--shard_tokens=10"]
    commands = [
        ["build", f"--input={source}", f"--output={tmp_path}/no"],  # no such column
        ["build", f"--input={source}{EVIL}", f"--output={tmp_path}/no"],
        build,
        build,
        ["status", output],
        ["inspect", output],
        ["inspect", output, "--shard=train/0"],
        ["inspect", "--find", output, f"--id={EVIL}"],
        ["inspect", "--find", output, "--token=3"],
        ["inspect", "--find", output, f"--id=x{EVIL}"],
        ["verify", output],
        ["status", f"{tmp_path}/{EVIL}"],
        [f"no{EVIL}"],
        ["verify", output, f"--no{EVIL}"],
    ]
    for arguments in commands:
        main(list(map(str, arguments)))
        printed = "".join(capfd.readouterr())
        assert printed
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", printed), printed
        assert not re.search("^ *forged: ", printed, re.MULTILINE)
        assert "Traceback" not in printed
    command = [sys.executable, "-m", "fineshards", "inspect", str(output), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["folder"] == str(output)


@pytest.mark.long
def test_a_terminal_shows_the_same_without_markup(table: pa.Table, tmp_path: Path) -> None:
    source = tmp_path / f"in{EVIL.replace('/', '')}.parquet"
    pq.write_table(table, source)
    build = ["build", f"--input={source}", f"--output={tmp_path}/out[red]", "--text_column=id"]
    output = on_terminal(*build)
    assert "out[red]" in output
    assert "\x1b[2J" not in output
