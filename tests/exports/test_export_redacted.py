"""Exports of datasets with redacted documents: left out or kept, and said."""

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.foreign_readers import (
    Documents,
    read_array_record,
    read_datatrove,
    read_hf_arrow,
    read_litdata,
    read_mds,
    read_megatron,
    read_olmo,
    read_parquet,
    read_token_bin,
)
from support.growing import build, made_up_rows, write_rows
from support.oracle import EOT

import fineshards
from fineshards.errors import OutputError, UsageError
from fineshards.maintenance.redact import redact

Run = Callable[..., CompletedProcess[str]]
SHARD = 300
# Formats whose readers find documents by their EOTs, with what they need, and those with an index.
BY_EOT: dict[str, dict[str, Any]] = {
    "olmo": {},
    "llmc": {},
    "nemo": {},
    "raw": {},
    "mds": {"sequence_length": 7},
    "litdata": {},
    "array_record": {"sequence_length": 7},
}
BY_INDEX = ("megatron", "datatrove", "parquet", "hf-arrow")
SPLITS = {"by_document": ["--test_fraction=0.2"], "one_stream": ["--test_shards=6"]}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.parquet", made_up_rows(1, 120))


@pytest.fixture(scope="module", params=SPLITS)
def dataset(
    request: pytest.FixtureRequest, rows: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A dataset of which two redactions took documents of every kind."""
    out = tmp_path_factory.mktemp("redacted") / "out"
    build(out, rows, f"--shard_tokens={SHARD}", *SPLITS[request.param])
    table = pieces(out)
    straddling = {row["number"] for row in table if row["start"]}
    first = [0, *sorted(straddling)[:4], straddling_the_splits(table)]
    redact(str(out), documents=sorted({number for number in first if number is not None}))
    # Neighbors of each other and of the first ones, one without text, and the last one.
    short = next(row["number"] for row in table if row["length"] == 1 and not row["start"])
    redact(str(out), documents=sorted({1, 30, 31, short, table[-1]["number"]}))
    return out


def pieces(dataset: Path) -> list[dict[str, Any]]:
    """The rows of all document tables, with each document's number in the dataset."""
    settings = json.loads((dataset / "metadata/manifest.json").read_text())["settings"]
    found: list[dict[str, Any]] = []
    begun = 0
    for split in ("test", "train"):
        for shard in sorted((dataset / split).glob("*.npy")):
            table = pq.read_table(dataset / f"metadata/documents/{shard.stem}.parquet")
            for row in table.to_pylist():
                begun += row["start"] == 0
                at = row["offset"]
                tokens = np.load(shard)[at : at + row["length"]].tolist()
                place = {"shard": shard.name, "split": split, "number": begun - 1}
                found.append({**row, **place, "tokens": tokens})
    assert settings["tokenizer"]["eot"] == EOT
    return found


def straddling_the_splits(table: list[dict[str, Any]]) -> int | None:
    ends = {split: [row for row in table if row["split"] == split] for split in ("test", "train")}
    last, first = ends["test"][-1]["number"], ends["train"][0]["number"]
    return last if last == first else None


def kept(dataset: Path, *splits: str) -> Documents:
    """The documents of splits that are not redacted, each with its EOT first if it has it."""
    found: dict[int, list[int]] = {}
    for row in pieces(dataset):
        if row["split"] in splits and not row["redacted"]:
            found.setdefault(row["number"], []).extend(row["tokens"])
    return list(found.values())


def ended(documents: Documents) -> Documents:
    return [[token for token in each if token != EOT] + [EOT] for each in documents]


def joined(documents: Documents) -> list[int]:
    return [token for each in documents for token in each]


def read_all(to: str, folder: Path, split: str) -> list[int]:
    """The tokens of a split in an export."""
    word = "val" if split == "test" else split
    if to == "olmo":
        files = sorted((folder / split).glob("*.npy"))
        return joined([line[0] for file in files for line in read_olmo(file, "<u4")])
    if to == "raw":
        files = sorted(folder.glob(f"{word}*.bin"))
        return [token for file in files for token in np.fromfile(file, "<u4").tolist()]
    if to == "mds":
        return joined(read_mds(folder / split))
    if to == "array_record":
        return joined(read_array_record(sorted(folder.glob(f"{split}-*"))))
    if to == "litdata":
        return joined(read_litdata(folder / split))
    files = sorted(folder.glob(f"*_{word}_*.bin"))
    return [token for file in files for token in read_token_bin(file)[1]]


@pytest.mark.long
@pytest.mark.parametrize("size", [None, 90, 700])
@pytest.mark.parametrize("to", BY_EOT)
def test_redacted_documents_are_left_out_where_documents_are_found_by_eot(
    dataset: Path, to: str, size: int | None, tmp_path: Path
) -> None:
    flags = {**BY_EOT[to], "tokens_per_file": size}
    export = fineshards.export(dataset, tmp_path / "x", to, **flags)
    redacted = [row for row in pieces(dataset) if row["redacted"]]
    for split in ("test", "train"):
        documents = kept(dataset, split)
        expected = joined(ended(documents) if to == "olmo" else documents)
        left_out = export.splits[split]["left_out"]
        assert read_all(to, tmp_path / "x", split) == expected[: len(expected) - left_out]
        of_split = [row for row in redacted if row["split"] == split]
        assert export.splits[split]["skipped"] == {
            "documents": sum(row["start"] == 0 for row in of_split),
            "tokens": sum(row["length"] for row in of_split),
        }
    assert export.options["skip"] == "redacted"
    assert fineshards.verify(tmp_path / "x").ok
    # Said or not, it is the same export, and it is found finished.
    assert fineshards.export(dataset, tmp_path / "x", to, skip="redacted", **flags) == export


@pytest.mark.long
@pytest.mark.parametrize("side", ["begin", "end"])
@pytest.mark.parametrize("size", [None, 50])
def test_formats_with_an_index_leave_them_out_when_asked_to(
    dataset: Path, side: str, size: int | None, tmp_path: Path
) -> None:
    flags = {"eot": side, "tokens_per_file": size, "skip": "redacted"}
    for to in BY_INDEX:
        fineshards.export(dataset, tmp_path / to, to, **flags)
    for split in ("test", "train"):
        documents = kept(dataset, split)
        if side == "end":
            documents = ended(documents)
        found = {
            "megatron": [
                each
                for stem in sorted((tmp_path / "megatron").glob(f"{split}_*.idx"))
                for each in read_megatron(stem)
            ],
            "parquet": read_parquet(sorted((tmp_path / "parquet").glob(f"{split}-*"))),
            "hf-arrow": read_hf_arrow(tmp_path / "hf-arrow" / split),
        }
        files = sorted((tmp_path / "datatrove" / split).glob("*.ds"))
        found["datatrove"] = [each for file in files for each in read_datatrove(file)]
        assert {to: each == documents for to, each in found.items()} == dict.fromkeys(found, True)


def test_both_splits_as_one_without_them(dataset: Path, tmp_path: Path) -> None:
    export = fineshards.export(dataset, tmp_path / "o", "olmo", split="all")
    lines = [
        line
        for file in sorted((tmp_path / "o/all").glob("*.npy"))
        for line in read_olmo(file, "<u4")
    ]
    assert [line[0] for line in lines] == ended(kept(dataset, "test", "train"))
    begun = [row for row in pieces(dataset) if row["start"] == 0]
    sources = [(row["id"] or "", row["row"] + 1) for row in begun if not row["redacted"]]
    assert [(name, line) for _, name, _, line in lines] == sources
    count = sum(row["redacted"] > 0 for row in begun)
    assert export.splits["all"]["skipped"]["documents"] == count


@pytest.mark.parametrize("to", ["megatron", "raw", "parquet"])
def test_they_can_be_kept_and_that_is_said(
    dataset: Path, to: str, tmp_path: Path, in_process: Run
) -> None:
    given = ["export", dataset, "--to", to, "--eot=begin", "--output", tmp_path / "x"]
    done = in_process(*given, *(["--skip=none"] if to == "raw" else []))
    assert done.returncode == 0, done.stderr
    assert "are kept as runs of EOTs" in done.stdout
    assert "--skip redacted to leave them out" in done.stdout
    assert "left out" not in done.stdout.replace("to leave them out", "")
    record = json.loads((tmp_path / "x/export.json").read_text())
    assert "skip" not in record["options"]
    assert all("skipped" not in counts for counts in record["splits"].values())
    if to == "raw":
        shards = [np.load(path) for path in sorted((dataset / "train").glob("*.npy"))]
        assert np.array_equal(np.fromfile(tmp_path / "x/train.bin", "<u4"), np.concatenate(shards))


def test_what_is_left_out_is_said(dataset: Path, tmp_path: Path, in_process: Run) -> None:
    done = in_process("export", dataset, "--to=raw", "--output", tmp_path / "x")
    export = json.loads((tmp_path / "x/export.json").read_text())
    for split in ("test", "train"):
        skipped = export["splits"][split]["skipped"]
        said = f"{skipped['documents']:,} redacted documents ({skipped['tokens']:,} tokens)"
        assert (f"{split}: {said} are left out" in done.stdout) is (skipped["documents"] > 0)
    assert "kept" not in done.stdout


def test_rows_of_tokens_are_without_them_by_default(dataset: Path, tmp_path: Path) -> None:
    fineshards.export(dataset, tmp_path / "p", "parquet", sequence_length=16)
    rows = read_parquet(sorted((tmp_path / "p").glob("train-*")))
    assert joined(rows) == joined(kept(dataset, "train"))


def test_a_split_of_redacted_documents_alone_is_left_out(rows: Path, tmp_path: Path) -> None:
    build(tmp_path / "out", rows, "--shard_tokens=2000", "--test_fraction=0.02")
    numbers = [row["number"] for row in pieces(tmp_path / "out") if row["split"] == "test"]
    redact(str(tmp_path / "out"), documents=sorted({*numbers}))
    export = fineshards.export(tmp_path / "out", tmp_path / "x", "raw")
    assert [*export.splits] == ["train"]
    with pytest.raises(UsageError, match="no tokens there but those of redacted documents"):
        fineshards.export(tmp_path / "out", tmp_path / "y", "raw", split="test")
    assert not (tmp_path / "y").exists()
    assert [*fineshards.export(tmp_path / "out", tmp_path / "z", "raw", skip="none").splits] == [
        "test",
        "train",
    ]


def test_damage_is_found_in_and_around_what_is_left_out(dataset: Path, tmp_path: Path) -> None:
    """Of each shard its kept tokens are proven, and that the rest is what was redacted."""
    out = Path(shutil.copytree(dataset, tmp_path / "out"))
    row = next(
        row
        for row, following in pairwise(pieces(out))
        if row["redacted"] and row["shard"] == following["shard"] and not following["redacted"]
    )
    shard = out / row["split"] / row["shard"]
    content = bytearray(shard.read_bytes())
    at = 128 + 4 * (row["offset"] + row["length"])  # the token after it
    content[at] ^= 1
    shard.write_bytes(content)
    with pytest.raises(OutputError, match=rf"{shard.name} is damaged: its crc32c is"):
        fineshards.export(out, tmp_path / "x", "raw")
    assert not (tmp_path / "x/export.json").exists()
    content[at] ^= 1
    shard.write_bytes(content)
    (record,) = (path for path in (out / "metadata/generations").glob("0002.job.json"))
    job = json.loads(record.read_text())
    split, begin, end = job["redaction"]["ranges"][0]
    job["redaction"]["ranges"][0] = [split, begin, end + 1]
    record.write_text(json.dumps(job))
    with pytest.raises(OutputError, match=r"0002\.job\.json is damaged\. Put it back with"):
        fineshards.export(out, tmp_path / "y", "raw")


@pytest.fixture
def exported(rows: Path, tmp_path: Path) -> Path:
    """A dataset, and an export of it."""
    build(tmp_path / "out", rows, f"--shard_tokens={SHARD}", "--test_fraction=0.2")
    fineshards.export(tmp_path / "out", tmp_path / "copied", "raw")
    return tmp_path


def test_verify_says_that_the_dataset_was_redacted_since(exported: Path, in_process: Run) -> None:
    given = ["verify", exported / "copied", "--dataset", exported / "out"]
    assert in_process(*given).returncode == 0
    done = in_process("redact", exported / "out", "--documents", "3", "4")
    assert f"fineshards verify EXPORT --dataset {exported}/out" in done.stdout
    done = in_process(*given)
    assert done.returncode == 1
    said = f"2 documents of {exported}/out were redacted since generation 1 was exported, and these"
    assert f"{said} files may still have them. Delete them" in done.stdout
    # It says nothing where the dataset is not at hand.
    assert in_process("verify", exported / "copied").returncode == 0
    fineshards.export(exported / "out", exported / "now", "raw")
    assert fineshards.verify(exported / "now", dataset=exported / "out").ok


def test_verify_says_that_a_dataset_is_another_one(exported: Path, rows: Path) -> None:
    build(exported / "other", rows, "--shard_tokens=500", "--test_fraction=0.2")
    (problem,) = fineshards.verify(exported / "copied", dataset=exported / "other").problems
    assert problem.startswith(f"the export is not of {exported}/other: it is of generation 1 of")
    with pytest.raises(UsageError, match="--dataset goes with the folder of an export"):
        fineshards.verify(exported / "out", dataset=exported / "out")
    (problem,) = fineshards.verify(exported / "copied", dataset=exported).problems
    assert "holds no finished dataset" in problem


def test_verify_says_that_a_redaction_has_begun_since(exported: Path) -> None:
    other = shutil.copytree(exported / "out", exported / "other")
    redact(str(other), documents=[3])
    record = "metadata/generations/0002.job.json"
    shutil.copy(other / record, exported / "out" / record)
    (problem,) = fineshards.verify(exported / "copied", dataset=exported / "out").problems
    assert problem.startswith(f"a redaction of 1 document of {exported}/out is not finished")
