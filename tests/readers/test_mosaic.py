"""MosaicML's Streaming reads our files, and its writer writes the same ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Exported
from streaming import MDSWriter, StreamingDataset
from streaming.base.format.mds.reader import MDSReader
from support.dataset_contents import Contents, Tokens, same

LENGTH = 128
SMALL = ["--tokens_per_file", "20k"]


def rows_of(dataset: Contents, split: str, side: str = "begin") -> Tokens:
    tokens = dataset.tokens[split]
    if side == "end":
        tokens = np.concatenate(dataset.ended(split))
    return tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH)


@pytest.mark.parametrize("side", ["begin", "end"])
def test_mosaic_reads_every_row(dataset: Contents, exported: Exported, side: str) -> None:
    folder = exported("mds", "--sequence_length", str(LENGTH), "--eot", side, *SMALL)
    for split in ("test", "train"):
        shards = json.loads((folder / split / "index.json").read_text())["shards"]
        assert len(shards) > 2
        found = []
        for shard in shards:
            reader = MDSReader.from_json(str(folder), split, shard)
            found += [reader[number]["tokens"] for number in range(reader.size)]
        assert {row.dtype.name for row in found} == {dataset.dtype}
        assert np.array_equal(np.stack(found), rows_of(dataset, split, side))


def test_mosaic_trains_from_the_files(
    dataset: Contents, exported: Exported, tmp_path: Path
) -> None:
    """From afar, into a cache, with the checksums compared."""
    folder = exported("mds", "--sequence_length", str(LENGTH), *SMALL)
    loader = StreamingDataset(
        remote=str(folder),
        local=str(tmp_path / "cache"),
        split="test",
        batch_size=1,
        shuffle=False,
        validate_hash="xxh64",
    )
    assert np.array_equal(
        np.stack([sample["tokens"] for sample in loader]), rows_of(dataset, "test")
    )


def test_mosaics_writer_writes_the_same_bytes(
    dataset: Contents, exported: Exported, tmp_path: Path
) -> None:
    folder = exported("mds", "--sequence_length", str(LENGTH))
    columns = {"tokens": f"ndarray:{dataset.dtype}:{LENGTH}"}
    for split in ("test", "train"):
        own = tmp_path / split
        with MDSWriter(columns=columns, out=str(own), hashes=["sha1", "xxh64"]) as writer:
            for row in rows_of(dataset, split):
                writer.write({"tokens": row})
        assert contents(own) == contents(folder / split)


def test_mosaic_reads_and_writes_the_same_documents(
    dataset: Contents, exported: Exported, tmp_path: Path
) -> None:
    """Every file is MDSWriter's of its documents, and StreamingDataset has all of them."""
    folder = exported("mds", "--token_column", "input_ids", *SMALL)
    for split in ("test", "train"):
        documents = dataset.documents[split]
        loader = StreamingDataset(
            remote=str(folder),
            local=str(tmp_path / "cache"),
            split=split,
            batch_size=1,
            shuffle=False,
            validate_hash="sha1",
        )
        assert same([sample["input_ids"] for sample in loader], documents)
        done = 0
        for number, shard in enumerate(
            json.loads((folder / split / "index.json").read_text())["shards"]
        ):
            own = tmp_path / f"{split}{number}"
            columns = {"input_ids": f"ndarray:{dataset.dtype}"}
            with MDSWriter(
                columns=columns, out=str(own), hashes=["sha1", "xxh64"], size_limit=None
            ) as writer:
                for document in documents[done : done + shard["samples"]]:
                    writer.write({"input_ids": document})
            done += shard["samples"]
            (expected,) = json.loads((own / "index.json").read_text())["shards"]
            assert shard["raw_data"]["hashes"] == expected["raw_data"]["hashes"]
            assert {**shard, "raw_data": 0} == {**expected, "raw_data": 0}  # names differ


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
