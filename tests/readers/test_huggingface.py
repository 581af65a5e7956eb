"""Hugging Face's datasets reads our files, and its writer describes them in the same way."""

import json
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
from conftest import Exported
from support.dataset_contents import Contents, Tokens, same

LENGTH = 512


def expected_rows(dataset: Contents, split: str, flags: list[str]) -> list[Tokens]:
    if "--sequence_length" in flags:
        tokens = dataset.tokens[split]
        return np.split(tokens, range(LENGTH, len(tokens), LENGTH))
    return dataset.ended(split) if "end" in flags else dataset.documents[split]


def rows_of(found: datasets.Dataset) -> list[Tokens]:
    return [np.array(row) for row in found[:]["input_ids"]]


@pytest.fixture(params=[[], ["--eot", "end"], ["--sequence_length", str(LENGTH)]], ids=" ".join)
def flags(request: pytest.FixtureRequest) -> list[str]:
    return [*request.param, "--tokens_per_file", "70k"]


def test_load_from_disk_reads_every_row(
    dataset: Contents, exported: Exported, flags: list[str]
) -> None:
    folder = exported("hf-arrow", *flags)
    splits = datasets.load_from_disk(str(folder))
    assert [*splits] == ["test", "train"]
    for split in splits:
        found = datasets.load_from_disk(str(folder / split))
        assert same(rows_of(splits[split]), rows_of(found))
        assert found.features == datasets.Features(input_ids=datasets.List(datasets.Value("int32")))
        assert same(rows_of(found), expected_rows(dataset, split, flags))


def test_load_dataset_reads_every_row_and_finds_the_splits(
    dataset: Contents, exported: Exported, flags: list[str], tmp_path: Path
) -> None:
    folder = exported("parquet", *flags)
    found = datasets.load_dataset(str(folder), cache_dir=str(tmp_path))
    assert sorted(found) == ["test", "train"]
    for split in found:
        assert same(rows_of(found[split]), expected_rows(dataset, split, flags))


def test_save_to_disk_writes_the_same_descriptions_and_types(
    dataset: Contents, exported: Exported, tmp_path: Path
) -> None:
    folder = exported("hf-arrow") / "train"
    rows = {"input_ids": [document.astype(np.int32) for document in dataset.documents["train"]]}
    shards = len([*folder.glob("*.arrow")])
    made = datasets.Dataset.from_dict(
        rows,
        features=datasets.Features(input_ids=datasets.List(datasets.Value("int32"))),
        split=datasets.Split.TRAIN,
    )
    made.save_to_disk(tmp_path / "own", num_shards=shards)
    own = tmp_path / "own"
    # What `List` was called before version 4, which later ones read too.
    described = (own / "dataset_info.json").read_text().replace('"List"', '"Sequence"')
    assert (folder / "dataset_info.json").read_text() == described
    state, other = (json.loads((each / "state.json").read_text()) for each in (folder, own))
    assert len(state.pop("_fingerprint")) == len(other.pop("_fingerprint"))
    assert state == other
    assert [path.name for path in sorted(folder.iterdir())] == [
        path.name for path in sorted(own.iterdir())
    ]
    schemas = [schema_of(each / f"data-00000-of-{shards:05d}.arrow") for each in (folder, own)]
    assert schemas[0].equals(schemas[1])
    stored, written = (schema.metadata[b"huggingface"].decode() for schema in schemas)
    assert stored == written.replace('"List"', '"Sequence"')


def schema_of(path: Path) -> pa.Schema:
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        return stream.schema
