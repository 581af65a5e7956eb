"""Readers of other trainers' files, each a few lines of numpy, from the published layouts alone.

They share no code with the project. tests/readers/ has the genuine ones. Arrow's formats are read
with pyarrow, and ArrayRecord with its library.
"""

import csv
import gzip
import json
import struct
from hashlib import sha1
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordReader

Documents = list[list[int]]


def read_megatron(stem: Path) -> Documents:
    """The documents of NAME.bin and NAME.idx, by NAME or either."""
    name = str(stem).removesuffix(".idx").removesuffix(".bin")
    index, tokens = (Path(name + ending).read_bytes() for ending in (".idx", ".bin"))
    magic, version, code, count, documents = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version, documents) == (b"MMIDIDX\0\0", 1, count + 1)
    dtype = {4: np.dtype("<i4"), 7: np.dtype("<f4"), 8: np.dtype("<u2")}[code]
    lengths = np.frombuffer(index, "<i4", count, 34)
    pointers = np.frombuffer(index, "<i8", count, 34 + 4 * count)
    assert np.frombuffer(index, "<i8", offset=34 + 12 * count).tolist() == [*range(count + 1)]
    return [
        np.frombuffer(tokens, dtype, length, pointer).tolist()
        for length, pointer in zip(lengths.tolist(), pointers.tolist(), strict=True)
    ]


def read_datatrove(path: Path) -> Documents:
    """The documents of NAME.ds, by its .index and .metadata."""
    name, total, _ = Path(f"{path}.metadata").read_text().split("\n")
    tokens = np.fromfile(path, f"<u{name.rpartition('|')[2]}")
    assert len(tokens) == int(total)
    ends = np.fromfile(f"{path}.index", "<u8").astype(int)
    assert ends[-1] == len(tokens)
    return [part.tolist() for part in np.split(tokens, ends[:-1])]


def read_olmo(path: Path, dtype: str) -> list[tuple[list[int], str, str, int]]:
    """The documents of a headerless NAME.npy by its .csv.gz: tokens, id, source, row."""
    tokens = np.fromfile(path, dtype)
    with gzip.open(path.with_suffix(".csv.gz"), "rt", newline="") as file:
        lines = list(csv.reader(file))
    starts = [0, *(int(line[1]) for line in lines)]
    assert starts == [*(int(line[0]) for line in lines), len(tokens)]
    return [
        (tokens[int(start) : int(end)].tolist(), name, source, int(row))
        for start, end, name, source, row in lines
    ]


def read_token_bin(path: Path) -> tuple[tuple[int, ...], list[int]]:
    """The first four numbers of a .bin of llm.c and its relatives, and its tokens."""
    header = np.fromfile(path, "<i4", 256)
    assert not header[4:].any()
    size = {20240520: 2, 20240801: 4}.get(int(header[0]), int(header[3]))
    tokens = np.fromfile(path, f"<u{size}", offset=1024)
    assert len(tokens) == header[2]
    return tuple(header[:4].tolist()), tokens.tolist()


def read_mds(folder: Path) -> Documents:
    """The rows of an MDS dataset whose one column has arrays."""
    rows = []
    for shard in json.loads((folder / "index.json").read_text())["shards"]:
        content = (folder / shard["raw_data"]["basename"]).read_bytes()
        assert sha1(content).hexdigest() == shard["raw_data"]["hashes"]["sha1"]
        (count,) = struct.unpack_from("<I", content)
        offsets = np.frombuffer(content, "<u4", count + 1, 4).tolist()
        assert (count, offsets[-1]) == (shard["samples"], shard["raw_data"]["bytes"])
        assert offsets[-1] == len(content)
        _, dtype, *shape = shard["column_encodings"][0].split(":")
        for begin, end in pairwise(offsets):
            # The size, and the shape, of which only the numbers of axes and of tokens are known.
            head = 0 if shape else 5 + (1 << content[begin + 4] % 4)
            rows.append(np.frombuffer(content[begin + head : end], dtype).tolist())
    return rows


def read_litdata(folder: Path) -> Documents:
    """The tokens of each chunk of a dataset for litdata's TokensLoader."""
    index = json.loads((folder / "index.json").read_text())
    dtype = {"no_header_numpy:5": "<u2", "no_header_numpy:6": "<u4"}[
        index["config"]["data_format"][0]
    ]
    chunks = []
    for chunk in index["chunks"]:
        path, skipped = folder / chunk["filename"], (chunk["chunk_size"] + 2) * 4
        chunks.append(np.fromfile(path, dtype, offset=skipped).tolist())
        assert (path.stat().st_size, len(chunks[-1])) == (chunk["chunk_bytes"], chunk["dim"])
    return chunks


def read_torchtitan(tokens: Path, offsets: Path, dtype: str) -> Documents:
    """As the source of pretokenized data in torchtitan/components/data/README.md reads them."""
    borders = np.load(offsets)
    found = np.memmap(tokens, dtype=dtype, mode="r")
    return [found[start:end].tolist() for start, end in pairwise(borders)]


def read_parquet(paths: list[Path]) -> Documents:
    """The column `input_ids` of Parquet files."""
    return [row for path in paths for row in pq.read_table(path)["input_ids"].to_pylist()]


def read_hf_arrow(folder: Path) -> Documents:
    """The column `input_ids` of a folder as `Dataset.save_to_disk` makes them."""
    rows = []
    for file in json.loads((folder / "state.json").read_text())["_data_files"]:
        with pa.ipc.open_stream((folder / file["filename"]).read_bytes()) as stream:
            rows += stream.read_all()["input_ids"].to_pylist()
    return rows


def read_array_record(paths: list[Path], feature: str = "text") -> Documents:
    """The lists of ints with a name in the `tf.train.Example` messages of ArrayRecord files."""
    rows = []
    for path in paths:
        reader = ArrayRecordReader(str(path))
        assert "group_size:1," in reader.writer_options_string()
        for record in reader.read_all():
            ((_, features),) = protobuf_fields(record)
            ((_, entry),) = protobuf_fields(features)
            (key, name), (value, content) = protobuf_fields(entry)
            assert (key, name, value) == (1, feature.encode(), 2)
            ((kind, numbers),) = protobuf_fields(content)
            assert kind == 3  # int64_list
            ((_, packed),) = protobuf_fields(numbers)
            rows.append(varints(packed))
        reader.close()
    return rows


def protobuf_fields(message: bytes) -> list[tuple[int, bytes]]:
    """The number and the content of each field of a message whose fields all have a size."""
    fields, at = [], 0
    while at < len(message):
        key, at = varint(message, at)
        size, at = varint(message, at)
        assert key & 7 == 2
        assert at + size <= len(message)
        fields.append((key >> 3, message[at : at + size]))
        at += size
    return fields


def varints(content: bytes) -> list[int]:
    """Numbers of any size, one after the other."""
    numbers, at = [], 0
    while at < len(content):
        number, at = varint(content, at)
        numbers.append(number)
    return numbers


def varint(content: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and where it ends."""
    number = shift = 0
    while True:
        number |= (content[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if content[at - 1] < 128:
            return number, at
