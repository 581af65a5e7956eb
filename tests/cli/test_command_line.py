"""The command line as a person types it: help, spellings, near-misses, exit codes."""

import json
import re
import shlex
import shutil
import subprocess
from argparse import ArgumentTypeError
from collections.abc import Callable
from glob import glob
from importlib import metadata
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkout import ROOT
from support.oracle import shards_in
from support.shell import in_shell
from support.tokenizer_files import path_of

from fineshards import BatchLoader, TokenDataset
from fineshards.cli.cli import COMMANDS, main
from fineshards.config import BuildConfig
from fineshards.flags import byte_count, count

Run = Callable[..., subprocess.CompletedProcess[str]]
NAMES = [command.name for command in COMMANDS]
PAGE = (ROOT / "docs/templates/commands.md").read_text()


def test_help_in_every_way(fineshards: Run) -> None:
    pages = {fineshards(*arguments).stdout for arguments in ([], ["--help"], ["-h"], ["help"])}
    (page,) = pages
    for name in [*NAMES, "help", "completion", "version"]:
        assert re.search(rf"^  {name} +\w", page, re.MULTILINE)
    assert fineshards().returncode == 0
    assert fineshards("help", "verify").stdout == fineshards("verify", "--help").stdout != page
    versions = {fineshards(spelling).stdout for spelling in ("--version", "-V", "version")}
    (version,) = {version.removeprefix("fineshards ").rstrip() for version in versions}
    assert version == metadata.version("fineshards")
    assert json.loads(fineshards("version", "--json").stdout) == {"version": version}
    assert fineshards("help", "completion").stdout == page


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_a_help_page_fits_and_has_every_flag_and_an_example(command, capsys) -> None:
    assert main([command.name, "--help", "all"]) == 0
    page = capsys.readouterr().out
    assert main(["help", command.name, "all"]) == 0
    assert capsys.readouterr().out == page
    assert max(map(len, page.splitlines())) <= 100
    assert f"\n  fineshards {command.name} " in page.partition("examples:")[2]
    for flag in filter(lambda each: each.option_strings, command.parser()._actions):
        assert flag.option_strings[-1] in page
        assert flag.help
        assert flag.help.endswith(".")


@pytest.mark.parametrize(("command", "flags"), [("build", 15), ("append", 6)])
def test_a_help_page_begins_with_examples_and_the_flags_of_every_day(
    command: str, flags: int, in_process: Run
) -> None:
    page = in_process("help", command).stdout
    assert page.index("examples:") < page.index("--input FILE [")
    shown = set(re.findall(r"^  (--\w+)", page, re.MULTILINE)) - {"--json"}
    assert len(shown) == flags
    assert {"--input", "--workers"} < shown
    assert f"--{'split_key' if command == 'build' else 'shard_tokens'}" not in shown


@pytest.mark.long
def test_the_examples_of_the_page_run_as_written(
    tmp_path: Path,
    sample: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, because each start would take seconds: words and patterns are a shell's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    shutil.copy(sample, tmp_path / "data")
    (tmp_path / "new").mkdir()
    pq.write_table(pq.read_table(sample).slice(0, 100), tmp_path / "new/more.parquet")
    lines = PAGE.replace("\\\n", " ")
    examples = re.findall(r"^    (fineshards .+)$", lines, re.MULTILINE)
    assert {example.split()[1] for example in examples} >= {*NAMES, "help", "completion"}
    for example in examples:
        if "--state" in example:
            dataset = TokenDataset(tmp_path / "out", sequence_length=512)
            with BatchLoader(dataset, batch_size=4) as loader:
                next(loader)
                (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
        to_file = re.search(r" > ([\w.]+)$", example)
        words = shlex.split(example[: to_file and to_file.start()].removeprefix("fineshards "))
        capsys.readouterr()
        assert main([name for word in words for name in sorted(glob(word)) or [word]]) == 0, example
        printed = capsys.readouterr().out
        if to_file:
            Path(to_file[1]).write_text(printed)
        if "--json" in example:
            assert isinstance(json.loads(printed), dict), example
            assert len(printed.splitlines()) == 1


def test_build_as_json_says_what_became_of_it(data: Path, in_process: Run) -> None:
    flags = ["--input", *sorted(data.iterdir()), "--output", data / "out", "--json"]
    first, again = (json.loads(in_process("build", *flags).stdout) for _ in range(2))
    assert (first["result"], again["result"]) == ("finished", "nothing to do")
    assert first["seconds"] > 0
    assert first["totals"] == again["totals"]
    manifest = json.loads((data / "out/metadata/manifest.json").read_text())
    assert first["fingerprint"] == manifest["fingerprint"]
    assert first["totals"]["documents"] == 30
    failed = in_process("build", "--input=nothing", f"--output={data}/no", "--json")
    assert (failed.returncode, failed.stdout) == (2, "")


@pytest.mark.long
def test_stdout_need_not_have_every_letter_nor_room(data: Path) -> None:
    environ = {"PYTHONIOENCODING": "ascii"}
    given = "--input data/0.parquet --output öut --text-column id"
    done = in_shell(f"fineshards build {given}", data.parent, **environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith("/\\xf6ut")
    full = in_shell("fineshards inspect öut > /dev/full", data.parent)
    assert full.returncode == 1
    assert full.stderr.splitlines()[0] == (
        "fineshards: stdout cannot be written: No space left on device."
    )
    for command in ("", "help", "version", "completion bash"):
        full = in_shell(f"fineshards {command} > /dev/full", data.parent)
        assert (full.returncode, full.stderr) == (
            1,
            "fineshards: stdout cannot be written: No space left on device.\n",
        )
    closed = in_shell("fineshards inspect öut | head -n 0", data.parent)
    assert closed.stderr == ""
    silent = in_shell("fineshards inspect nowhere --find --token 1 --json 2>&-", data.parent)
    assert (silent.returncode, silent.stdout) == (1, "")


def test_a_closed_stdout_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert main(["version"]) == 1
    assert capsys.readouterr().err == "fineshards: stdout cannot be written: it is closed.\n"


@pytest.mark.long
def test_files_may_be_given_one_by_one_and_flags_with_hyphens(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spellings = [
        "--input data/*.parquet --output a --shard_tokens 1000 --block_bytes 1048576",
        "--input 'data/*.parquet' --output=b --shard-tokens=1k --block-bytes=1MiB",
        "--input data/0.parquet data/1.parquet --output c --input data/2.parquet "
        "--shard-tokens 1e3 --block_bytes 1Mi --direct-runner-bundle-repeat=1",
    ]
    done = in_shell(f"fineshards build {spellings[0]}", data.parent)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(data.parent)
    for spelling in spellings[1:]:
        assert main(["build", *shlex.split(spelling)]) == 0
    first, *others = (shards_in(data.parent / name) for name in "abc")
    assert len(first) > 3
    assert others == [first, first]


@pytest.mark.long
def test_the_home_folder_is_meant_where_the_shell_does_not_expand_it(data: Path) -> None:
    home = data.parent
    tokenizer = home / "mine/tokenizer.json"
    tokenizer.parent.mkdir()
    shutil.copy(path_of("gpt2"), tokenizer)
    lines = [
        "fineshards build --input=~/data/0.parquet --output=~/out --tokenizer=~/mine",
        *(f"fineshards {name} '~/out'" for name in ("status", "verify", "inspect")),
        "fineshards inspect '~/out' --find --token=0",
    ]
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    for line in lines:
        done = in_shell(line, elsewhere, HOME=str(home))
        assert done.returncode == 0, done.stderr
    assert list(elsewhere.iterdir()) == []
    assert (home / "out/metadata/tokenizer.json").read_bytes() == tokenizer.read_bytes()


def test_python_takes_the_home_folder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    config = BuildConfig(input=[Path("~/a"), "b~/c"], output="~", tokenizer="~/t")
    assert config.patterns == ("/home/me/a", "b~/c")
    assert (config.folder, config.tokenizer) == ("/home/me", "/home/me/t")
    assert BuildConfig(dataset="~/d", output="out").dataset == "/home/me/d"


@given(st.integers(0, 10**6), st.sampled_from(["", "k", "M", "G", "T"]), st.booleans())
def test_a_quantity_is_exact(number: int, unit: str, binary: bool) -> None:
    power = ["", "k", "M", "G", "T"].index(unit)
    assert count(f"{number}{unit}") == number * 1000**power
    assert count(f"{number:_}{unit}") == number * 1000**power
    suffix = f"{unit}iB" if binary and unit else f"{unit}B"
    assert byte_count(f"{number}{suffix}") == number * (1024 if "i" in suffix else 1000) ** power
    assert count(f"{number}e{power}") == number * 10**power


@given(st.decimals(0, 10**6, places=3))
def test_a_fraction_is_taken_where_it_is_whole(number) -> None:
    assert count(f"{number}k") == number * 1000
    if number * 100 != int(number * 100):
        with pytest.raises(ArgumentTypeError, match="must be a whole number"):
            count(f"{number}e2")


def test_what_is_no_quantity_is_refused() -> None:
    for text in ["", "k", "1e", "1e-3", "1__0", "_1", "1e999", "١", "1 000", "0x1", "1m"]:
        with pytest.raises(ArgumentTypeError, match="must be a whole number"):
            byte_count(text)
