"""Token files of other trainers, written in plain numpy. Shares no code with the project."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

# Each document as the file has it, with its EOT at one of its ends.
Documents = Sequence[npt.NDArray[np.uint32]]
Bodies = list[list[int]]
MEGATRON_CODES = {"<i2": 3, "<i4": 4, "<i8": 5, "<u2": 8}


def made_up(seed: int, count: int, ids: int = 100_257) -> Bodies:
    """Tokens of documents without EOT; some have none, and some are those of another."""
    random = Random(seed)
    found: Bodies = []
    for _ in range(count):
        if found and random.random() < 0.1:
            found.append(random.choice(found))
        else:
            length = random.choice([0, 1, random.randrange(50), random.randrange(400)])
            found.append([random.randrange(ids) for _ in range(length)])
    return found


def stream_of(bodies: Sequence[Sequence[int]], eot: int = 100_257) -> list[int]:
    return [token for body in bodies for token in [eot, *body]]


def with_eots(bodies: Sequence[Sequence[int]], eot: int, side: str) -> list[npt.NDArray[np.uint32]]:
    both = [[eot, *body] if side == "begin" else [*body, eot] for body in bodies]
    return [np.array(document, np.uint32) for document in both]


def joined(documents: Documents) -> npt.NDArray[np.uint32]:
    return np.concatenate([np.empty(0, np.uint32), *documents])


def write_megatron(stem: Path, documents: Documents, dtype: str = "<i4") -> Path:
    item = np.dtype(dtype).itemsize
    lengths = np.array([len(each) for each in documents], "<i4")
    places = (np.cumsum(lengths, dtype=np.int64) - lengths) * item
    head = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([MEGATRON_CODES[dtype]])
    head += len(lengths).to_bytes(8, "little") + (len(lengths) + 1).to_bytes(8, "little")
    numbers = np.arange(len(lengths) + 1, dtype="<i8")
    content = head + lengths.tobytes() + places.astype("<i8").tobytes() + numbers.tobytes()
    stem.with_suffix(".idx").write_bytes(content)
    stem.with_suffix(".bin").write_bytes(joined(documents).astype(dtype).tobytes())
    return stem.with_suffix(".bin")


def write_datatrove(stem: Path, documents: Documents, dtype: str = "<u4") -> Path:
    ends = np.cumsum([len(each) for each in documents]).astype("<u8")
    path = stem.with_name(f"{stem.name}.ds")
    path.write_bytes(joined(documents).astype(dtype).tobytes())
    stem.with_name(f"{stem.name}.ds.index").write_bytes(ends.tobytes())
    total = int(ends[-1]) if len(ends) else 0
    described = f"gpt2|{np.dtype(dtype).itemsize}\n{total}\n{total} T"
    stem.with_name(f"{stem.name}.ds.metadata").write_text(described)
    return path


def write_plain(path: Path, documents: Documents, dtype: str = "<u4") -> Path:
    path.write_bytes(joined(documents).astype(dtype).tobytes())
    return path


def write_with_header(path: Path, tokens: Any, magic: int = 20240801) -> Path:
    """A file of llm.c, or of NeMo, whose tokens may begin and end within a document."""
    version, itemsize = {20240520: (1, 2), 20240801: (7, 4), 278895051: (1, 4)}[magic]
    header = np.zeros(256, "<i4")
    header[:4] = magic, version, len(tokens), itemsize
    path.write_bytes(header.tobytes() + np.asarray(tokens).astype(f"<u{itemsize}").tobytes())
    return path


def write_mds(
    path: Path, rows: Documents, dtype: str = "uint32", length: int | None = None
) -> Path:
    """A shard of rows of any lengths, or of one length; compressed if its name says so."""
    items = [row.astype(f"<{np.dtype(dtype).str[1:]}").tobytes() for row in rows]
    if length is None:
        widths = [0 if len(row) < 1 << 8 else 1 if len(row) < 1 << 16 else 2 for row in rows]
        heads = [
            bytes([4 + width]) + len(row).to_bytes(1 << width, "little")
            for row, width in zip(rows, widths, strict=True)
        ]
        items = [
            (len(head) + len(item)).to_bytes(4, "little") + head + item
            for head, item in zip(heads, items, strict=True)
        ]
    shape = "" if length is None else f":{length}"
    size = None if length is None else length * np.dtype(dtype).itemsize
    described = {"column_encodings": [f"ndarray:{dtype}{shape}"], "column_sizes": [size]}
    content = with_places(items, json.dumps(described).encode())
    compressed = zstandard.compress(content) if path.suffix == ".zstd" else content
    path.write_bytes(compressed)
    return path


def write_litdata(path: Path, items: Documents, dtype: str = "<u4") -> Path:
    """A chunk whose items are any parts of the tokens."""
    path.write_bytes(with_places([item.astype(dtype).tobytes() for item in items], b""))
    return path


def with_places(items: list[bytes], described: bytes) -> bytes:
    """Items after their number, where each begins and the last one ends, and a description."""
    sizes = [4 * (len(items) + 2) + len(described), *map(len, items)]
    places = np.cumsum(sizes).astype("<u4").tobytes()
    return len(items).to_bytes(4, "little") + places + described + b"".join(items)


def write_parquet(path: Path, documents: Documents, kind: Any = None, rows: int = 7) -> Path:
    lists = pa.array([each.tolist() for each in documents], pa.list_(kind or pa.int32()))
    pq.write_table(pa.table({"input_ids": lists}), path, row_group_size=rows)
    return path


def write_arrow(path: Path, documents: Documents, kind: Any = None) -> Path:
    lists = pa.array([each.tolist() for each in documents], pa.list_(kind or pa.int32()))
    table = pa.table({"input_ids": lists})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    return path
