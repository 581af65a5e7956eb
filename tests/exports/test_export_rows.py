"""Exports to formats of rows and chunks: MosaicML's, litdata's, and those of Arrow."""

import json
import resource
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grain.python import ArrayRecordDataSource
from support.dataset_contents import Contents
from support.foreign_readers import (
    Documents,
    read_array_record,
    read_hf_arrow,
    read_litdata,
    read_mds,
    read_parquet,
    read_torchtitan,
)
from support.growing import build, made_up_rows, write_rows
from support.tokenizer_files import save, train

import fineshards
from fineshards.errors import OutputError, UsageError
from fineshards.exports import array_record, input_ids

SHARD, LENGTH = 300, 64
SIDES = pytest.mark.parametrize("side", ["begin", "end"])


@pytest.fixture(scope="module", params=["uint32", "uint16"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """Documents of one token up to several shards, in both splits."""
    folder = tmp_path_factory.mktemp("exports")
    rows = made_up_rows(1, 120)
    flags = [f"--shard_tokens={SHARD}", "--test_fraction=0.2", f"--dtype={request.param}"]
    if request.param == "uint16":
        tokenizer = train("gpt2", [row["text"] for row in rows if row["text"]], 300)
        flags.append(f"--tokenizer={save(tokenizer, folder / 'tokenizer.json')}")
    build(folder / "out", write_rows(folder / "rows.parquet", rows), *flags)
    return Contents.read(folder / "out")


def stream(dataset: Contents, split: str, side: str) -> list[int]:
    documents = dataset.ended(split) if side == "end" else dataset.documents[split]
    tokens: list[int] = np.concatenate(documents).tolist()
    return tokens


def cut(tokens: list[int], length: int) -> Documents:
    return [tokens[at : at + length] for at in range(0, len(tokens), length)]


@pytest.mark.long
@SIDES
@pytest.mark.parametrize("size", [None, 1, 200])
def test_mds_holds_whole_rows_and_the_rest_is_reported(
    dataset: Contents, side: str, size: int | None, tmp_path: Path
) -> None:
    flags = {"eot": side, "sequence_length": LENGTH, "tokens_per_file": size}
    export = fineshards.export(dataset.folder, tmp_path / "m", "mds", **flags)
    for split in ("test", "train"):
        *rows, rest = cut(stream(dataset, split, side), LENGTH)
        assert len(rest) < LENGTH
        assert read_mds(tmp_path / "m" / split) == rows
        assert export.splits[split]["left_out"] == len(rest)
        assert export.splits[split]["tokens"] == len(rows) * LENGTH
        index = json.loads((tmp_path / "m" / split / "index.json").read_text())
        in_files = [shard["samples"] for shard in index["shards"]]
        per_file = {None: len(rows), 1: 1, 200: 4}[size]
        assert in_files[:-1] == [per_file] * (len(in_files) - 1)
        assert 1 <= in_files[-1] <= per_file


@SIDES
def test_mds_holds_a_row_per_document(dataset: Contents, side: str, tmp_path: Path) -> None:
    flags = {"eot": side, "tokens_per_file": 500}
    export = fineshards.export(dataset.folder, tmp_path / "m", "mds", token_column="ids", **flags)
    for split in ("test", "train"):
        rows = dataset.ended(split) if side == "end" else dataset.documents[split]
        assert read_mds(tmp_path / "m" / split) == [row.tolist() for row in rows]
        assert export.splits[split]["documents"] == len(rows)
    assert len(list((tmp_path / "m/train").iterdir())) > 2
    assert fineshards.verify(tmp_path / "m").ok


@SIDES
def test_torchtitan_has_a_document_between_two_offsets(
    dataset: Contents, side: str, tmp_path: Path
) -> None:
    fineshards.export(dataset.folder, tmp_path / "t", "torchtitan", eot=side)
    for split in ("test", "train"):
        documents = dataset.ended(split) if side == "end" else dataset.documents[split]
        files = (tmp_path / f"t/{split}.bin", tmp_path / f"t/{split}_offsets.npy")
        assert read_torchtitan(*files, dataset.dtype) == [each.tolist() for each in documents]


def test_a_row_that_fits_exactly_leaves_nothing_out(dataset: Contents, tmp_path: Path) -> None:
    tokens = len(dataset.tokens["train"])
    flags = {"split": "train", "sequence_length": tokens}
    export = fineshards.export(dataset.folder, tmp_path / "m", "mds", **flags)
    assert export.splits["train"]["left_out"] == 0
    assert read_mds(tmp_path / "m/train") == [dataset.tokens["train"].tolist()]


@pytest.mark.parametrize("length", [None, LENGTH])
def test_labels_are_the_tokens_and_masks_are_one(
    dataset: Contents, length: int | None, tmp_path: Path
) -> None:
    flags = {"columns": "attention_mask,labels", "sequence_length": length}
    for to in ("parquet", "hf-arrow"):
        fineshards.export(dataset.folder, tmp_path / to, to, **flags)
        fineshards.export(dataset.folder, tmp_path / f"{to}-alone", to, sequence_length=length)
    files = {"train": str(tmp_path / "parquet/train-*.parquet")}
    found = datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )
    arrow = datasets.load_from_disk(str(tmp_path / "hf-arrow"))["train"]
    alone = read_hf_arrow(tmp_path / "hf-arrow-alone/train")
    for rows in (found, arrow):
        assert rows.column_names == ["input_ids", "attention_mask", "labels"]
        assert rows["input_ids"][:] == rows["labels"][:] == alone
        assert rows["attention_mask"][:] == [[1] * len(row) for row in alone]


@SIDES
@pytest.mark.parametrize("flags", [{}, {"tokens_per_file": 100}, {"sequence_length": LENGTH}])
def test_litdata_holds_the_stream(
    dataset: Contents, side: str, flags: dict[str, int], tmp_path: Path
) -> None:
    fineshards.export(dataset.folder, tmp_path / "l", "litdata", eot=side, **flags)
    for split in ("test", "train"):
        chunks = read_litdata(tmp_path / "l" / split)
        size = flags.get("tokens_per_file", SHARD)
        if "sequence_length" in flags:
            size = -(-size // LENGTH) * LENGTH
        expected = cut(stream(dataset, split, side), size)
        # Fewer tokens than a block have no chunk of their own.
        if "sequence_length" in flags and len(expected[-1]) < LENGTH:
            rest = expected.pop()
            expected[-1] += rest
        assert chunks == expected


@pytest.mark.long
@SIDES
@pytest.mark.parametrize("size", [None, 500])
@pytest.mark.parametrize("length", [None, 1, LENGTH, 1_000_000])
def test_formats_of_lists_hold_every_row(
    dataset: Contents, side: str, size: int | None, length: int | None, tmp_path: Path
) -> None:
    flags = {"eot": side, "sequence_length": length, "tokens_per_file": size}
    for to in ("parquet", "hf-arrow", "array_record"):
        export = fineshards.export(dataset.folder, tmp_path / to, to, **flags)
        assert all(counts["left_out"] == 0 for counts in export.splits.values())
    for split in ("test", "train"):
        documents = dataset.ended(split) if side == "end" else dataset.documents[split]
        expected = [document.tolist() for document in documents]
        if length is not None:
            expected = cut(stream(dataset, split, side), length)
        assert read_parquet(sorted((tmp_path / "parquet").glob(f"{split}-*"))) == expected
        assert read_hf_arrow(tmp_path / "hf-arrow" / split) == expected
        assert read_array_record(sorted((tmp_path / "array_record").glob(f"{split}-*"))) == expected


@pytest.mark.parametrize("length", [None, LENGTH])
def test_rows_are_the_same_in_batches_of_any_size(
    dataset: Contents, length: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for size in (1, 100, 1 << 22):
        monkeypatch.setattr(input_ids, "_BATCH_TOKENS", size)
        output = tmp_path / f"{size}"
        fineshards.export(
            dataset.folder, output, "parquet", sequence_length=length, tokens_per_file=1 << 30
        )
        paths.append(output / "train-00000-of-00001.parquet")
    one, some, all_rows = (pq.ParquetFile(path) for path in paths)
    rows = all_rows.metadata.num_rows
    assert (one.num_row_groups, all_rows.num_row_groups) == (rows, 1)
    assert 1 < some.num_row_groups < rows
    assert one.read().equals(some.read())
    assert some.read().equals(all_rows.read())


def test_columns_are_what_trainers_take(dataset: Contents, tmp_path: Path) -> None:
    fineshards.export(dataset.folder, tmp_path / "p", "parquet")
    schema = pq.read_schema(next((tmp_path / "p").glob("train-*.parquet")))
    assert schema.names == ["input_ids"]
    assert schema.field("input_ids").type.value_type == pa.int32()


def test_records_of_array_record_are_examples_of_every_size_of_number(
    dataset: Contents, tmp_path: Path
) -> None:
    """As protobuf itself writes them; `.array_record` is read through Grain's own source."""
    fineshards.export(
        dataset.folder, tmp_path / "a", "array_record", sequence_length=LENGTH, token_column="ids"
    )
    paths = sorted(map(str, (tmp_path / "a").glob("train-*.array_record")))
    assert len(paths) > 3
    source = ArrayRecordDataSource(paths)
    rows = cut(dataset.tokens["train"].tolist(), LENGTH)
    assert [source[number] for number in range(len(source))] == [example("ids", r) for r in rows]

    borders = [each for bits in range(1, 32) for each in ((1 << bits) - 1, 1 << bits)]
    tokens = np.array([0, *borders, (1 << 32) - 1], np.uint32)
    for count in (1, len(tokens), 3 * len(tokens)):
        found = array_record._example("a" * 200, np.resize(tokens, count))
        assert found == example("a" * 200, np.resize(tokens, count).tolist())


def example(name: str, tokens: list[int]) -> bytes:
    """A `tf.train.Example` of one list, by the library of protobuf."""
    fields = descriptor_pb2.FieldDescriptorProto
    pool, file = DescriptorPool(), descriptor_pb2.FileDescriptorProto(name="example.proto")
    file.package, file.syntax = "t", "proto3"
    nested = [("Features", "MapOf", True), ("Example", "Features", False)]
    message = file.message_type.add(name="Int64List")
    message.field.add(name="value", number=1, type=fields.TYPE_INT64, label=fields.LABEL_REPEATED)
    message = file.message_type.add(name="Feature")
    message.field.add(
        name="int64_list", number=3, type=fields.TYPE_MESSAGE, type_name=".t.Int64List"
    )
    # A map is a repeated message of a key and a value.
    message = file.message_type.add(name="MapOf")
    message.field.add(name="key", number=1, type=fields.TYPE_BYTES)
    message.field.add(name="value", number=2, type=fields.TYPE_MESSAGE, type_name=".t.Feature")
    for outer, inner, repeated in nested:
        message = file.message_type.add(name=outer)
        message.field.add(
            name="only",
            number=1,
            type=fields.TYPE_MESSAGE,
            type_name=f".t.{inner}",
            label=fields.LABEL_REPEATED if repeated else fields.LABEL_OPTIONAL,
        )
    pool.Add(file)
    made = GetMessageClass(pool.FindMessageTypeByName("t.Example"))()
    entry = made.only.only.add(key=name.encode())
    entry.value.int64_list.value.extend(tokens)
    content: bytes = made.SerializeToString(deterministic=True)
    return content


def test_a_record_that_protobuf_cannot_hold_is_refused(
    dataset: Contents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_record, "_MOST_BYTES", 300)
    with pytest.raises(UsageError, match="a message of protobuf has at most 300"):
        fineshards.export(dataset.folder, tmp_path / "a", "array_record")
    flags = {"sequence_length": LENGTH}
    fineshards.export(dataset.folder, tmp_path / "a2", "array_record", **flags)


def test_a_temporary_file_without_room_is_a_sentence(dataset: Contents, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
        with pytest.raises(OutputError, match=r"temporary file cannot be written: .*set TMPDIR to"):
            fineshards.export(dataset.folder, tmp_path / "a", "array_record", workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    fineshards.export(dataset.folder, tmp_path / "a", "array_record")
    assert fineshards.verify(tmp_path / "a").ok


@pytest.mark.parametrize(
    ("to", "flags", "message"),
    [
        ("parquet", {"dtype": "uint16"}, "--dtype: --to parquet has lists of int32. Leave it out"),
        ("hf-arrow", {"dtype": "uint32"}, "--to hf-arrow has lists of int32. Leave it out"),
        ("parquet", {"token_column": "x"}, "--token_column has no meaning for --to parquet"),
        ("array_record", {"dtype": "uint32"}, "--to array_record has lists of int64. Leave it out"),
        ("mds", {"sequence_length": 1 << 20}, "fewer than one row"),
        ("mds", {"sequence_length": 1 << 31}, "its offsets hold at most"),
        ("mds", {"sequence_length": 9, "tokens_per_file": 1 << 32}, "its offsets hold at most"),
    ],
)
def test_what_a_format_cannot_have_is_refused(
    dataset: Contents, to: str, flags: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        fineshards.export(dataset.folder, tmp_path / "x", to, **flags)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("split", [None, "train", "all"])
@pytest.mark.parametrize("length", [None, LENGTH])
def test_load_from_disk_of_the_folder_has_every_split(
    dataset: Contents, split: str | None, length: int | None, tmp_path: Path
) -> None:
    flags = {"split": split, "sequence_length": length}
    fineshards.export(dataset.folder, tmp_path / "a", "hf-arrow", **flags)
    found = datasets.load_from_disk(str(tmp_path / "a"))
    assert isinstance(found, datasets.DatasetDict)
    assert [*found] == ([split] if split else ["test", "train"])
    for name, rows in found.items():
        assert rows[:]["input_ids"] == read_hf_arrow(tmp_path / "a" / name)
        assert rows.split == name
    again = tmp_path / "again"
    found.save_to_disk(again)
    assert (again / "dataset_dict.json").read_text() == (
        tmp_path / "a/dataset_dict.json"
    ).read_text()


def test_versions_before_4_know_the_type_of_the_column(dataset: Contents, tmp_path: Path) -> None:
    """They have no `List`; this is what 3.6.0 writes itself."""
    fineshards.export(dataset.folder, tmp_path / "a", "hf-arrow")
    features = {"input_ids": {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "Sequence"}}
    info = json.loads((tmp_path / "a/train/dataset_info.json").read_text())
    assert info["features"] == features
    for path in (tmp_path / "a/train").glob("*.arrow"):
        with pa.ipc.open_stream(path.read_bytes()) as stream:
            stored = json.loads(stream.schema.metadata[b"huggingface"])
        assert stored == {"info": {"features": features}}
