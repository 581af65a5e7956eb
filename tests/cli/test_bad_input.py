"""Bad input, flags or output give one sentence and the right exit code, and harm nothing."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.bad_rows import JSONL, LINES, TEXTS, invalid, with_line
from support.damage import MANIFEST
from support.oracle import oracle, shards_in

from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.shards.job.job import JOB_NAME
from fineshards.storage.local import LocalStorage


def write_parquet(path: Path, columns: dict[str, Any] | None = None, **options: Any) -> None:
    table = pa.table(columns if columns is not None else {"text": TEXTS})
    pq.write_table(table, path, **({"row_group_size": 100} | options))


def run(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """The exit code and stderr. After a failure, the last line must be one sentence."""
    capfd.readouterr()
    code = main([str(argument) for argument in arguments])
    err = capfd.readouterr().err
    assert "Traceback" not in err
    if code:
        assert re.match(r"fineshards: .+\.$", err.splitlines()[-1]), err
    return code, err


def fails(capfd: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """The last line of a command that must fail with `code`."""
    found, err = run(capfd, *arguments)
    assert found == code, err
    return err.splitlines()[-1]


def test_a_vocabulary_that_cannot_be_downloaded_is_a_usage_error(
    fineshards: Callable[..., Any], sample: Path, tmp_path: Path
) -> None:
    """A proxy that refuses connections simulates a machine that is offline."""
    offline = {"TIKTOKEN_CACHE_DIR": str(tmp_path), "HTTPS_PROXY": "http://127.0.0.1:9"}
    flags = ["--tokenizer=o200k_base", f"--input={sample}", f"--output={tmp_path / 'out'}"]
    done = fineshards("build", *flags, env=os.environ | offline)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(
        "fineshards: --tokenizer o200k_base: its vocabulary cannot be downloaded"
    )


@pytest.mark.long
def test_a_row_that_a_worker_process_rejects_is_one_sentence(
    fineshards: Callable[..., Any], tmp_path: Path
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(with_line(150, b"{}"))
    done = fineshards("build", f"--input={source}", f"--output={tmp_path / 'out'}")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"fineshards: {source}, line 151, row 150: has no field 'text' (an object of 0 fields). "
        "Fix the row and start over with --overwrite, or raise --max_bad_rows to skip such rows "
        "and go on."
    )


def test_a_finished_dataset_survives_every_refusal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "a.parquet", tmp_path / "out"
    write_parquet(source)
    given = [f"--input={source}", f"--output={output}", "--test_shards=1"]
    assert run(capfd, "build", *given, "--shard_tokens=500")[0] == 0
    expected = oracle(TEXTS, 500, test_shards=1)
    assert shards_in(output) == expected
    sentence = fails(capfd, 2, "build", *given, "--shard_tokens=600")
    assert "--shard_tokens: was 500, now 600" in sentence
    whole = source.read_bytes()
    source.write_bytes(whole + b"\0")
    assert f"{source} changed" in fails(capfd, 2, "build", *given, "--shard_tokens=500")
    source.write_bytes(whole)
    (output / "metadata/job.json").unlink()
    assert "no record of the job" in fails(capfd, 2, "build", *given)
    assert shards_in(output) == expected


@pytest.mark.parametrize("flags", [["--text_column=nope"], ["--where=nope > 3"], []])
@pytest.mark.parametrize("there", [False, True])
def test_a_build_that_fails_before_it_finishes_anything_leaves_nothing_behind(
    fineshards: Callable[..., Any], tmp_path: Path, flags: list[str], there: bool
) -> None:
    """In worker processes, on Beam's own runner, and beside files of the user's own."""
    good, output = tmp_path / "a.parquet", tmp_path / "deep/out"
    write_parquet(good, {"text": TEXTS if flags else invalid(0)})
    before = ["README.md"] if there else []
    if there:
        output.mkdir(parents=True)
        (output / "README.md").write_text("mine")
    given = ["build", f"--output={output}", f"--input={good}"]
    for runner in ([], ["--runner=DirectRunner"]):
        assert fineshards(*given, *flags, *runner).returncode == 1
        assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
            ["a.parquet", *before, *(["deep", "out"] if there else [])]
        )
    write_parquet(good)
    done = fineshards(*given, "--shard_tokens=500")
    assert (done.returncode, "replaces" in done.stderr) == (0, False)


def test_a_build_whose_record_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, where the vocabulary was the last to find room."""
    source, written = tmp_path / "a.jsonl", LocalStorage.write
    source.write_bytes(JSONL)

    def write(storage: LocalStorage, name: str, content: bytes, **options: Any) -> None:
        if name == JOB_NAME:
            raise OutputError("there is no space.")
        written(storage, name, content, **options)

    monkeypatch.setattr(LocalStorage, "write", write)
    fails(capfd, 1, "build", f"--input={source}", f"--output={tmp_path}/out")
    assert [*tmp_path.iterdir()] == [source]


def test_input_that_changed_while_the_job_was_interrupted_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    good, bad, output = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "out"
    good.write_bytes(JSONL)
    bad.write_bytes(with_line(5, b"{"))
    given = ["build", f"--input={tmp_path / '*.jsonl'}", f"--output={output}"]
    assert f"{bad}, line 6, row 5" in fails(capfd, 1, *given)
    good.write_bytes(JSONL + LINES[0])
    assert f"{good} changed: it had {len(JSONL)} bytes" in fails(capfd, 2, *given)
    assert run(capfd, *given, "--overwrite", "--max_bad_rows=1")[0] == 0
    assert run(capfd, "verify", output, "--sample=100%")[0] == 0


def test_allowed_bad_rows_are_skipped_and_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Five bad rows: two in one file, in different blocks, and three in another file."""
    parquet, jsonl, output = tmp_path / "a.parquet", tmp_path / "b.jsonl", tmp_path / "out"
    write_parquet(parquet, {"text": invalid(0, 150)})
    bad_lines = {0: b"{", 7: b'{"text":1}', 299: b"[]"}
    jsonl.write_bytes(b"".join(bad_lines.get(i, good) + b"\n" for i, good in enumerate(LINES)))
    given = ["build", f"--input={parquet}", f"--input={jsonl}", f"--output={output}"]
    given += ["--block_bytes=1", "--shard_tokens=700", "--test_shards=2"]
    sentence = fails(capfd, 1, *given, "--max_bad_rows=4")
    assert sentence.startswith("fineshards: 5 rows cannot be encoded, and --max_bad_rows allows 4")
    assert not (output / MANIFEST).exists()
    rows = 2 * len(TEXTS)
    sentence = fails(capfd, 1, *given, f"--max_bad_rows={499 / rows:.6f}%")
    assert sentence.startswith(f"fineshards: 5 rows of {rows} cannot be encoded, and --max_bad_")
    assert run(capfd, *given, f"--max_bad_rows={501 / rows:.6f}%")[0] == 0
    kept = [text for i, text in enumerate(TEXTS) if i not in (0, 150)]
    kept += [text for i, text in enumerate(TEXTS) if i not in bad_lines]
    assert shards_in(output) == oracle(kept, 700, test_shards=2)

    rejected = sorted((output / "metadata/rejected").iterdir())
    rows = [json.loads(line) for path in rejected for line in path.read_text().splitlines()]
    places = [(row["file"], row["row"]) for row in rows]
    assert places == [(parquet.name, 0), (parquet.name, 150)] + [(jsonl.name, i) for i in bad_lines]
    assert all(row["reason"] for row in rows)
    manifest = json.loads((output / MANIFEST).read_text())
    of_files = [report["counts"] for report in manifest["reports"]]
    counts = [(f["rows"], f["documents"], f.get("nulls", 0), f["rejected"]) for f in of_files]
    assert counts == [(300, 298, 0, 2), (300, 297, 0, 3)]
    assert run(capfd, "verify", output, "--sample=100%")[0] == 0

    rejected[0].unlink()
    assert main(["verify", str(output)]) == 1


def test_columns_that_were_not_asked_for_may_have_any_type(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No flag asks for these ids and labels, so their types are not an error."""
    lists, numbers = pa.array([["a"]] * 300), pa.array(range(300))
    table = pa.table(
        [TEXTS, lists, numbers, lists, numbers], names=["text", "id", "dump", "language", "x"]
    )
    doubled = pa.table([TEXTS, TEXTS, TEXTS], names=["text", "id", "id"])
    binary = pa.table({"text": pa.array(TEXTS).dictionary_encode(), "id": numbers.cast("string")})
    binary = binary.set_column(1, "id", binary["id"].cast(pa.binary()))
    for number, content in enumerate((table, doubled, binary)):
        pq.write_table(content, tmp_path / f"{number}.parquet")
    given = [f"--input={tmp_path / '*.parquet'}", f"--output={tmp_path / 'out'}"]
    assert run(capfd, "build", *given, "--test_shards=0")[0] == 0
    assert shards_in(tmp_path / "out") == oracle(TEXTS * 3, 10**8, test_shards=0)
    assert run(capfd, "verify", tmp_path / "out", "--sample=100%")[0] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        b'{"SECRET": "x"}',
        b'{"SECRET": 1, "id": "SECRET"}',
        b'["SECRET"]',
        b'{"text": ["SECRET"]}',
        b'{"text": {"SECRET": 1}}',
        b'{"text": "SECRET',
        b'SECRET {"text": 1}',
        b'{"text": "SECRET \\ud800"}',
        b'{"text": "\xff", "SECRET": 1}',
    ],
)
def test_nothing_of_a_rejected_row_is_in_any_file(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, line: bytes
) -> None:
    (tmp_path / "a.jsonl").write_bytes(with_line(150, line))
    output = tmp_path / "out"
    flags = ["--max_bad_rows=1", "--keep_checkpoints"]
    code, errors = run(
        capfd, "build", f"--input={tmp_path / 'a.jsonl'}", f"--output={output}", *flags
    )
    assert code == 0, errors
    assert [*output.glob("metadata/rejected/*")]
    files = [path for path in output.rglob("*") if path.is_file()]
    assert not [path for path in files if b"SECRET" in path.read_bytes()]
