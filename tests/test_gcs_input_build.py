"""Whole jobs whose input is on gs://: the bytes of the oracle, whatever happens meanwhile."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.faulty_proxy import CUT_DOWNLOAD
from support.gcs_input import Stored
from support.oracle import oracle, read_texts, shards_in

from fineshards.pipeline.cli import main

Run = Callable[..., subprocess.CompletedProcess[str]]
MODES = [
    ["--direct_running_mode=in_memory"],
    ["--direct_running_mode=multi_threading", "--direct_num_workers=3"],
    ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
]


@pytest.fixture
def source(stored: Stored, sample: Path, tmp_path: Path) -> str:
    """The sample in a bucket, as parquet, plain and compressed lines."""
    table = pq.read_table(sample, columns=["text", "id"])
    parts = [table.slice(start, 300) for start in range(0, table.num_rows, 300)]
    for number, part in enumerate(parts[:2]):
        pq.write_table(part, tmp_path / "part.parquet", row_group_size=100)
        stored.put(f"in/{number}.parquet", tmp_path / "part.parquet")
    lines = ["".join(json.dumps(row) + "\n" for row in part.to_pylist()) for part in parts[2:]]
    stored.put("in/2.jsonl.gz", gzip.compress(lines[0].encode()))
    stored.put("in/3.jsonl", lines[1].encode())
    stored.forget()
    return f"{stored.url}/in/*"


@pytest.fixture
def expected(sample: Path) -> dict[str, bytes]:
    return oracle(read_texts(sample), 50_000, test_shards=1)


def build(source: str, output: Path | str, *flags: str) -> int:
    arguments = [f"--input={source}", f"--output={output}", "--shard_tokens=50000", *flags]
    return main(["build", *arguments])


@pytest.mark.parametrize("flags", MODES, ids=lambda flags: flags[0])
@pytest.mark.parametrize("to", ["local", "gs"])
def test_bytes_are_the_oracles_from_bucket_to_folder_or_bucket(
    stored: Stored,
    source: str,
    expected: dict[str, bytes],
    tmp_path: Path,
    to: str,
    flags: list[str],
) -> None:
    output = tmp_path / "out" if to == "local" else f"{stored.url}/out"
    assert build(source, output, "--block_bytes=100000", *flags) == 0
    assert (shards_in(tmp_path / "out") if to == "local" else stored.shards("out")) == expected
    assert main(["verify", str(output), "--sample=100"]) == 0


def test_the_command_line_reads_from_a_bucket(
    fineshards: Run, source: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """A process of its own, in which modules that a local build has no use for may be hidden."""
    flags = ["--shard_tokens", "50000"]
    done = fineshards("build", "--input", source, "--output", tmp_path / "out", *flags)
    assert done.returncode == 0, done.stderr
    assert shards_in(tmp_path / "out") == expected
    manifest = json.loads((tmp_path / "out/metadata/manifest.json").read_text())
    assert [file["path"] for file in manifest["files"]] == [
        f"{source.removesuffix('*')}{name}"
        for name in ("0.parquet", "1.parquet", "2.jsonl.gz", "3.jsonl")
    ]
    assert all(re.fullmatch(r"generation:\d+", file["identity"]) for file in manifest["files"])


@pytest.mark.parametrize("fault", [503, 429, CUT_DOWNLOAD])
def test_faults_while_a_job_reads_change_no_byte(
    stored: Stored, source: str, expected: dict[str, bytes], tmp_path: Path, fault: int | str
) -> None:
    rule = stored.proxy.fail("GET", fault, range(1, 1000, 4))
    assert build(source, tmp_path / "out") == 0
    assert rule.hits > 5
    assert shards_in(tmp_path / "out") == expected


@pytest.mark.parametrize("how", ["replace", "delete"])
@pytest.mark.parametrize("name", ["1.parquet", "2.jsonl.gz"])
@pytest.mark.parametrize("moment", [1, 2, -1], ids=["discovery", "reading", "last"])
def test_an_object_that_changes_during_a_job_stops_it_with_one_sentence(
    stored: Stored,
    source: str,
    expected: dict[str, bytes],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    how: str,
    name: str,
    moment: int,
) -> None:
    """Then --overwrite builds of what is there now."""
    output = tmp_path / "out"
    assert build(source, output) == 0
    downloads = sum(f"/{name}?" in request.line for request in stored.downloads())
    content = stored.bucket.blob(f"in/{name}").download_as_bytes(raw_download=True)
    before = stored.generation(f"in/{name}")

    def change() -> None:
        if how == "delete":
            stored.bucket.delete_blob(f"in/{name}")
        else:
            stored.put(f"in/{name}", content)

    pattern = rf"/{re.escape(name)}\?.*alt=media"
    rule = stored.proxy.fail(pattern, change, [moment if moment > 0 else downloads])
    capfd.readouterr()
    assert build(source, output, "--overwrite") == 1
    assert rule.hits == 1
    errors = capfd.readouterr().err
    assert "Traceback" not in errors
    line = errors.splitlines()[-1]
    now = (
        "now there is none" if how == "delete" else f"generation:{stored.generation(f'in/{name}')}"
    )
    assert re.match(
        rf"fineshards: gs://{stored.name}/in/{name} .*generation:{before} .*{now}.*--overwrite",
        line,
    ), line
    assert not (output / "metadata/manifest.json").exists()
    if how == "replace":
        assert build(source, output, "--overwrite") == 0
        assert shards_in(output) == expected


def test_a_job_is_not_continued_with_another_generation(
    stored: Stored, source: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert build(source, output) == 0
    stored.put("in/3.jsonl", b'{"text": "new"}\n')
    assert build(source, output) == 2
    assert "holds another job" in capfd.readouterr().err


def test_a_changed_source_is_named_when_sampled(
    stored: Stored, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert build(source, output) == 0
    stored.put("in/1.parquet", b"another")
    stored.bucket.delete_blob("in/3.jsonl")
    assert main(["verify", str(output)]) == 0
    capsys.readouterr()
    assert main(["verify", str(output), "--sample=100", "--json"]) == 1
    changed, gone = json.loads(capsys.readouterr().out)["problems"]
    assert re.match(
        r"gs://\S+/in/1\.parquet changed since .*generation:\d+ .*generation:\d+", changed
    )
    assert re.match(r"gs://\S+/in/3\.jsonl is gone", gone)


def test_tune_reads_a_sample_from_a_bucket(fineshards: Run, source: str, tmp_path: Path) -> None:
    done = fineshards("tune", "--input", source, "--json", "--work", tmp_path)
    assert done.returncode == 0, done.stderr
    advice = json.loads(done.stdout)
    assert advice["expected"]["tokens"] == 665_971
    assert f"--input={source}" in advice["command"]
