"""--limit: the same bytes as of an input that was cut by hand, for any block size."""

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.oracle import joined, oracle, shards_in

from fineshards.cli.cli import main
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

# Every fifth text is null; files of 40 rows have 32 documents.
TEXTS = [None if n % 5 == 2 else f"text number {n}, and some more words" for n in range(120)]


def write_inputs(folder: Path, kind: str) -> list[Path]:
    """Three files of 40 rows each, some with a bad row after the rows."""
    paths = []
    for number in range(3):
        texts = TEXTS[number * 40 : number * 40 + 40]
        path = folder / f"{number}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.table({"text": texts}), path, row_group_size=7)
        elif kind == "jsonl":
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        else:
            with path.open("w", newline="") as opened:
                csv.writer(opened).writerows([["text", "n"], *([text, "1"] for text in texts)])
        paths.append(path)
    return paths


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        *(("parquet", limit) for limit in (1, 32, 33, 96)),
        *(("jsonl", limit) for limit in (31, 1_000)),
        *(("csv", limit) for limit in (32, 70)),
    ],
)
def test_the_first_documents_are_built(tmp_path: Path, kind: str, limit: int) -> None:
    write_inputs(tmp_path, kind)
    flags = ["--shard_tokens=50", "--test_shards=1", f"--limit={limit}"]
    documents = [text for text in TEXTS if text is not None][:limit]
    for block_bytes in (1, 10**6) if kind == "parquet" else (1,):
        output = tmp_path / f"out-{block_bytes}"
        given = [f"--input={tmp_path}/*.{kind}", f"--output={output}", *flags]
        assert main(["build", *given, f"--block_bytes={block_bytes}"]) == 0
        assert shards_in(output) == oracle(documents, 50, test_shards=1)
        assert main(["verify", str(output), "--sample=100%"]) == 0
        manifest = Manifest.load(open_storage(str(output)))
        assert manifest is not None
        assert manifest.totals["documents"] == len(documents)
        # Cut just after the last document.
        ends = [file.stop_row for file in manifest.files]
        assert [end is None for end in ends[:-1]] == [True] * (len(ends) - 1)
        assert (ends[-1] is None) == (limit > len(documents))
        assert len(ends) == min(3, -(-limit // 32))


def test_rows_after_the_limit_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text":"a"}\n{"text":"b"}\n{"text":\n')
    given = [f"--input={path}", f"--output={tmp_path / 'out'}", "--test_shards=0"]
    assert main(["build", *given]) == 1
    assert main(["build", *given, "--limit=2"]) == 0
    assert shards_in(tmp_path / "out") == oracle(["a", "b"], 10**8, test_shards=0)


def test_another_limit_is_another_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_inputs(tmp_path, "jsonl")
    given = [f"--input={tmp_path}/*.jsonl", f"--output={tmp_path / 'out'}"]
    assert main(["build", *given, "--limit=10"]) == 0
    assert main(["build", *given, "--limit=10"]) == 0
    capfd.readouterr()
    assert main(["build", *given, "--limit=11"]) == 2
    assert "--limit: " in capfd.readouterr().err
    assert main(["build", *given]) == 2


def test_an_append_may_be_limited_too(tmp_path: Path) -> None:
    paths = write_inputs(tmp_path, "jsonl")
    output = tmp_path / "out"
    flags = ["--shard_tokens=50", "--test_shards=0"]
    assert main(["build", f"--input={paths[0]}", f"--output={output}", *flags, "--limit=5"]) == 0
    more = [f"--input={paths[1]}", f"--input={paths[2]}"]
    for _ in range(2):  # the second has nothing to do
        assert main(["append", str(output), *more, "--limit=20"]) == 0
    parts = [TEXTS[:40], TEXTS[40:]]
    first, second = ([text for text in part if text is not None] for part in parts)
    expected = [oracle(texts, 50, test_shards=0) for texts in (first[:5], second[:20])]
    assert shards_in(output) == joined(expected)
    assert main(["verify", str(output), "--sample=100%"]) == 0


def test_a_limit_below_one_is_refused(tmp_path: Path) -> None:
    assert main(["build", "--input=a.jsonl", f"--output={tmp_path}", "--limit=0"]) == 2
