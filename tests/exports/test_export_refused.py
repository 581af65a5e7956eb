"""Exports that are refused, and folders that hold something else: a sentence, and nothing lost."""

import pickle
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from support.growing import build, made_up_rows, write_rows

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import OutputError, UsageError
from fineshards.exports.export_job import _CLAIM, prepare
from fineshards.exports.export_options import ExportOptions, Side
from fineshards.exports.format import EXPORTS, ExportSettings, Target, Written
from fineshards.exports.parts import Part, PartReader
from fineshards.exports.stream import Stream
from fineshards.exports.token_bins import Raw
from fineshards.storage.s3 import S3Storage


def test_an_unfinished_export_is_not_taken_for_another(by_document: Path, tmp_path: Path) -> None:
    prepare(ExportOptions(by_document, tmp_path / "x", "raw"))
    with pytest.raises(UsageError, match=f"{_CLAIM} belongs to another export"):
        fineshards.export(by_document, tmp_path / "x", "megatron")
    fineshards.export(by_document, tmp_path / "x", "raw")


@pytest.mark.long
@pytest.mark.parametrize("to", ["megatron", "raw", "mds"])
def test_a_split_without_tokens_is_refused(to: str, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(out, write_rows(folder / "rows.parquet", made_up_rows(1, 120)), "--test_shards=0")
    rows = {"sequence_length": 8} if to == "mds" else {}
    with pytest.raises(UsageError, match="--split test: the dataset has no tokens there"):
        fineshards.export(out, tmp_path / "x", to, split="test", eot="end", **rows)
    assert not (tmp_path / "x").exists()
    export = fineshards.export(out, tmp_path / "x", to, eot="end", **rows)
    assert set(export.splits) == {"train"}


def test_a_finished_export_that_lost_files_is_finished_again(
    by_document: Path, tmp_path: Path
) -> None:
    fineshards.export(by_document, tmp_path / "x", "megatron")
    before = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    (tmp_path / "x/train_0000.bin").unlink()
    (tmp_path / "x/test_0000.idx").write_bytes(b"short")
    assert not fineshards.verify(tmp_path / "x").ok
    fineshards.export(by_document, tmp_path / "x", "megatron")
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == before


def test_a_file_that_appears_meanwhile_is_named(by_document: Path, tmp_path: Path) -> None:
    prepare(ExportOptions(by_document, tmp_path / "x", "raw"))
    (tmp_path / "x/other.bin").touch()
    with pytest.raises(OutputError, match=r"other\.bin is not of this export"):
        fineshards.export(by_document, tmp_path / "x", "raw")
    (tmp_path / "x/other.bin").unlink()
    fineshards.export(by_document, tmp_path / "x", "raw")


@pytest.mark.parametrize("read", [0, 2])
def test_a_format_that_does_not_read_all_tokens_is_refused(
    read: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EOTs too, which documents without text consist of."""
    rows = write_rows(tmp_path / "rows.parquet", [{"text": ""}] * 5)
    build(tmp_path / "out", rows, "--test_shards=0", "--shard_tokens=3")

    def write(self: Raw, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        target.write("some.bin", [*islice(reader.chunks(), read)])
        return Written()

    monkeypatch.setattr(Raw, "write", write)
    with pytest.raises(OutputError, match=r"--to raw has not read tokens \d to \d of train/"):
        fineshards.export(tmp_path / "out", tmp_path / "x", "raw")
    assert not (tmp_path / "x/export.json").exists()


@pytest.mark.parametrize(("end", "eot"), [("start", "begin"), ("stop", "begin"), ("stop", "end")])
def test_a_format_whose_parts_lack_an_eot_is_refused(
    end: str, eot: Side, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token is missing between parts where an EOT is moved, but never at either end."""
    rows = write_rows(tmp_path / "rows.parquet", [{"text": ""}] * 5)
    build(tmp_path / "out", rows, "--test_shards=0", "--shard_tokens=3")
    plan = Raw.plan

    def shorter(self: Raw, stream: Stream, settings: ExportSettings) -> list[Part]:
        first, *others = plan(self, stream, settings)
        if end == "start":
            return [replace(first, start=1), *others]
        *before, last = first, *others
        return [*before, replace(last, stop=last.stop - 1, append=0)]

    monkeypatch.setattr(Raw, "plan", shorter)
    with pytest.raises(OutputError, match=r"--to raw has \d tokens of train, expected \d"):
        fineshards.export(tmp_path / "out", tmp_path / "x", "raw", eot=eot)


def test_the_endpoint_goes_where_the_job_goes(by_document: Path, tmp_path: Path) -> None:
    job, _ = prepare(ExportOptions(by_document, tmp_path / "x", "raw"))
    job = replace(job, storage=S3Storage("s3://data/x", "http://127.0.0.1:1"))
    assert pickle.loads(pickle.dumps(job)).storage.endpoint == "http://127.0.0.1:1"


# cl100k_base has more ids than the others hold.
@pytest.mark.parametrize("to", [name for name in EXPORTS if name != "modded-nanogpt"])
def test_an_export_ends_with_the_line_that_reads_it(
    by_document: Path, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["--sequence_length=64"] if to == "mds" else []
    assert main(["export", str(by_document), f"--to={to}", f"--output={tmp_path}/x", *rows]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "read with: " in each]
    assert f"{tmp_path}/x" in line
