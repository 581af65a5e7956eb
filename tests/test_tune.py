"""`fineshards tune`: what it tries, what it advises, and that it removes its files."""

from __future__ import annotations

import gzip
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from fineshards.errors import UsageError
from fineshards.pipeline.cli import main
from fineshards.pipeline.options import add_build_flags, parse_build_flags
from fineshards.pipeline.parser import Parser
from fineshards.pipeline.tuning import tune
from fineshards.pipeline.tuning.estimates import Costs, FormatTotals, expect
from fineshards.pipeline.tuning.setting_search import (
    BLOCK_SIZES,
    MARGIN,
    Room,
    Setting,
    advise,
    choose,
    search,
)
from fineshards.pipeline.tuning.trial_builds import run_trial, work_seconds

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Where tune works. It must be empty in the end."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def mixed(tmp_path: Path, sample: Path) -> tuple[str, str]:
    """The sample twice: as two parquet files, and as compressed JSON lines."""
    table = pq.read_table(sample, columns=["text", "id"])
    folder = tmp_path / "in [1]"  # with special characters of patterns
    folder.mkdir()
    for number in range(2):
        part = table.slice(number * 500, 500)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=100, compression="zstd")
    with gzip.open(folder / "lines.jsonl.gz", "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
    escaped = str(tmp_path / "in [[]1]")
    return f"{escaped}/*.parquet", f"{escaped}/*.gz"


def test_a_small_input_is_built_once_and_the_command_works(
    fineshards: Run, sample: Path, tmp_path: Path, work: Path
) -> None:
    done = fineshards("tune", "--input", sample, "--json", "--work", work, "--id_column=id")
    assert done.returncode == 0, done.stderr
    advice = json.loads(done.stdout)
    assert advice["small"]
    assert advice["flags"] == []
    assert advice["expected"]["tokens"] == 665_971
    assert advice["expected"]["output_bytes"] == 4 * 665_971
    assert advice["expected"]["free_bytes"] == 8 * 665_971
    assert advice["expected"]["seconds"] > 0
    assert advice["peak_memory_bytes"] > 10 << 20
    program, *arguments = advice["command"]
    assert program == "fineshards"
    assert f"--input={sample}" in arguments
    assert "--id_column=id" in arguments
    place = arguments.index("--output=out")
    arguments[place] = f"--output={tmp_path}/out"
    assert fineshards(*arguments).returncode == 0
    assert (tmp_path / "out/metadata/manifest.json").exists()
    assert list(work.iterdir()) == []


def test_settings_are_tried_on_a_probe(
    mixed: tuple[str, str],
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Treats a small input like a large one, to take less time.
    for name, value in {"_SMALL_BYTES": 0, "_SMALL_SECONDS": 0.0, "_LEAST_WORK": 0.0}.items():
        monkeypatch.setattr(tune, name, value)
    monkeypatch.setattr(tune, "_ROUGH_BYTES", 100_000)
    patterns = [f"--input={pattern}" for pattern in mixed]
    assert main(["tune", *patterns, f"--work={work}", "--seconds=12"]) == 0
    printed = capsys.readouterr()
    assert "measuring start-up" in printed.err
    assert "(default): " in printed.out
    assert "M tokens/s" in printed.out
    (command,) = [line for line in printed.out.splitlines() if line.startswith("    fineshards")]
    _, build, *flags = shlex.split(command)
    assert build == "build"
    parser = Parser(prog="fineshards build")
    add_build_flags(parser)
    assert parse_build_flags(parser, flags).patterns == mixed
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_files_behind(how: int, sample: Path, work: Path) -> None:
    command = [sys.executable, "-m", "fineshards", "tune", f"--input={sample}", f"--work={work}"]
    job = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not list(work.glob("*/build-*.log")):
        assert job.poll() is None
        time.sleep(0.01)
    job.send_signal(how)
    _, errors = job.communicate()
    assert job.returncode == 130
    assert (
        errors.splitlines()[-1] == "fineshards: interrupted. All files of the trials are removed."
    )
    assert list(work.iterdir()) == []


def test_a_build_that_takes_too_long_is_ended(sample: Path, work: Path) -> None:
    flags = [f"--input={sample}"]
    assert run_trial(flags, f"{work}/out", workers=1, deadline=time.monotonic()) is None
    assert list(work.iterdir()) == []


def test_a_build_that_fails_ends_in_its_own_error(sample: Path, work: Path) -> None:
    flags = [f"--input={sample}", "--block_bytes=none"]
    with pytest.raises(UsageError, match="--block_bytes: must be a whole number, got 'none'"):
        run_trial(flags, f"{work}/out", workers=1, deadline=float("inf"))
    assert list(work.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--input=none*.parquet"], 2, "no file matches"),
        (["--input={sample}", "--text_column=txet"], 1, "no column 'txet'"),
        (["--input={sample}", "--tokenizer=none"], 2, "none"),
        (["--input={sample}", "--seconds=0"], 2, "at least 1"),
        (["--input={sample}", "--work={work}/none"], 2, "cannot create a folder"),
        (["--input={sample}", "--output=x"], 2, "--output"),
        (["--input={sample}", "--dataset_config=x"], 2, "--dataset_config"),
        ([], 2, "either --input or --dataset"),
        (["--input={bad}"], 1, "bad.jsonl, line 2, row 1: is not valid JSON"),
        (["--input={nulls}"], 1, "no text in column 'text'"),
    ],
)
def test_mistakes_and_bad_input_end_in_a_sentence(
    flags: list[str],
    code: int,
    words: str,
    sample: Path,
    tmp_path: Path,
    work: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad, nulls = tmp_path / "bad.jsonl", tmp_path / "nulls.parquet"
    bad.write_text('{"text": "a"}\n{\n')
    pq.write_table(pa.table({"text": pa.nulls(3, pa.string())}), nulls)
    places = {"sample": sample, "work": work, "bad": bad, "nulls": nulls}
    assert main(["tune", f"--work={work}", *(flag.format(**places) for flag in flags)]) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("fineshards: ")
    assert words in last
    assert list(work.iterdir()) == []


# -- the choice

settings = st.builds(
    Setting,
    workers=st.sampled_from([None, 1, 4, 8]),
    block_bytes=st.sampled_from([None, *BLOCK_SIZES]),
    processes=st.booleans(),
)
a_rate = st.floats(1.0, 1e9)
some_rates = st.dictionaries(settings, st.lists(a_rate, min_size=1, max_size=3)).flatmap(
    lambda rates: st.lists(a_rate, min_size=1, max_size=3).map(
        lambda default: {**rates, Setting(): default}
    )
)


@given(some_rates)
def test_a_setting_is_chosen_only_if_it_was_always_clearly_faster_than_the_default(
    rates: dict[Setting, list[float]],
) -> None:
    chosen = choose(rates)
    clearly = max(rates[Setting()]) * (1 + MARGIN)
    faster = {setting for setting, found in rates.items() if min(found) > clearly}
    assert chosen in (faster or {Setting()})
    assert all(min(rates[chosen]) >= min(rates[setting]) for setting in faster)


@given(some_rates)
def test_no_setting_is_advised_that_was_measured_once(rates: dict[Setting, list[float]]) -> None:
    advised = advise(rates)
    assert advised == Setting() or len(rates[advised]) > 1


rooms = st.builds(
    lambda cores, counts: Room(
        cores, BLOCK_SIZES[1], dict(zip(BLOCK_SIZES, sorted(counts, reverse=True), strict=True))
    ),
    cores=st.integers(1, 128),
    counts=st.lists(st.integers(1, 10_000), min_size=4, max_size=4),
)


@given(rooms, st.data())
def test_the_search_finds_the_clearly_best_of_what_it_tries(room: Room, data: Any) -> None:
    """For all rates, if they are the same each time and there is time for all settings."""
    true: dict[Setting, float] = {}

    def measure(setting: Setting, runs: int) -> float:
        return true.setdefault(setting, data.draw(st.floats(1, 100)))

    rates = search(room, measure)
    advised = advise(rates)
    best = max(true.values())
    assert true[advised] * (1 + MARGIN) >= best or true[Setting()] * (1 + MARGIN) >= best
    assert advised == Setting() or len(rates[advised]) >= 2


@given(rooms, st.integers(0, 12))
def test_a_search_that_runs_out_of_time_advises_what_it_has_confirmed(
    room: Room, builds: int
) -> None:
    left = builds

    def measure(setting: Setting, runs: int) -> float | None:
        nonlocal left
        if runs > left and setting != Setting():
            return None
        left -= 1
        return 2.0 if setting == Setting(room.cores * 2) else 1.0

    rates = search(room, measure)
    assert Setting() in rates
    # A setting is tried only if there is time to confirm it and to measure the default again.
    expected = Setting(room.cores * 2)
    assert advise(rates) == (expected if expected in rates else Setting())


@given(rooms)
def test_only_settings_that_can_make_a_difference_are_tried(room: Room) -> None:
    most = room.blocks[room.default_block_bytes]
    for count in room.worker_counts():
        assert min(count, most) != min(room.cores, most)
    for size in room.block_sizes(room.cores):
        assert room.blocks[size] != most


# -- the arithmetic


@given(
    blocks=st.lists(st.floats(0.1, 5), min_size=1, max_size=60),
    workers=st.integers(1, 8),
    writing=st.floats(0, 3),
)
def test_work_does_not_depend_on_how_the_last_blocks_were_shared(
    blocks: list[float], workers: int, writing: float
) -> None:
    """As in a build, each block goes to the first worker that is free."""
    free = [0.0] * min(workers, len(blocks))
    finished = []
    for seconds in blocks:
        index = free.index(min(free))
        free[index] += seconds
        finished.append(100 + free[index])
    work = work_seconds(100, finished, max(finished) + writing, workers)
    ideal = sum(blocks) / len(free)
    assert work == pytest.approx(ideal + writing, abs=max(blocks))
    if workers == 1:
        assert work == pytest.approx(ideal + writing)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**7), st.integers(1, 64))
def test_twice_the_input_is_twice_the_work(
    text_bytes: int, tokens: int, total: int, workers: int
) -> None:
    probe = {"parquet": FormatTotals(1000, text_bytes, tokens)}
    costs = Costs(
        start_up=3, discovery=0, rate=1e6, workers=workers, reading=None, largest=1 / workers
    )
    once, twice = (expect({"parquet": 1000 * n}, probe, costs, 2) for n in (total, 2 * total))
    assert (once.text_bytes, once.tokens) == (text_bytes * total, tokens * total)
    assert twice.tokens == 2 * once.tokens
    assert twice.seconds - 3 == pytest.approx(2 * (once.seconds - 3))
    assert once.seconds == pytest.approx(3 + once.tokens / 1e6)
    assert once.free_bytes == 2 * once.output_bytes == 4 * once.tokens


def test_one_file_of_json_lines_keeps_one_worker_busy() -> None:
    probe = {"jsonl": FormatTotals(100, 90, 20)}
    costs = Costs(start_up=0, discovery=0, rate=100.0, workers=4, reading=None, largest=1.0)
    assert expect({"jsonl": 100_000}, probe, costs, 4).seconds == pytest.approx(20_000 / 25)


def test_remote_reading_adds_to_the_work_of_each_worker() -> None:
    probe = {"parquet": FormatTotals(100, 100, 25)}
    costs = Costs(start_up=0, discovery=5, rate=100.0, workers=4, reading=50.0, largest=0.0)
    # Per worker 25,000 tokens at 25/s and 100,000 bytes at 50/s: 1,000 s and 2,000 s, by four.
    assert expect({"parquet": 100_000}, probe, costs, 4).seconds == pytest.approx(5 + 3000 / 4)
