"""Ways to damage a dataset so that all checks but one still pass."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MANIFEST = "metadata/manifest.json"


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / MANIFEST).read_text())
    change(content)
    (folder / MANIFEST).write_text(json.dumps(content, indent=1))


def entry_of(content: dict[str, Any], shard: str) -> dict[str, Any]:
    (entry,) = (entry for entry in content["shards"] if entry["name"] == shard)
    return entry


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def load(folder: Path, shard: str) -> np.ndarray:
    return np.load(folder / shard)


def save_consistently(folder: Path, shard: str, tokens: np.ndarray) -> None:
    """Writes a shard and its checksum, so that only the tokens are wrong."""
    np.save(folder / shard, tokens.astype("<u4"))
    checksum = google_crc32c.Checksum((folder / shard).read_bytes()).digest()
    crc32c = base64.b64encode(checksum).decode()
    edit_manifest(folder, lambda content: entry_of(content, shard).update(crc32c=crc32c))


def table_of(folder: Path, shard: str) -> Path:
    return folder / "metadata/documents" / f"{Path(shard).stem}.parquet"


def edit_table(folder: Path, shard: str, change: Callable[[dict[str, list[Any]]], object]) -> None:
    """Changes the columns of a document table, given as lists; keeps its schema."""
    path = table_of(folder, shard)
    table = pq.read_table(path)
    columns = table.to_pydict()
    change(columns)
    pq.write_table(pa.table(columns, schema=table.schema), path)


def change_total(content: dict[str, Any], what: str, by: int) -> None:
    """Changes a count of the first file and of the totals by the same amount."""
    content["files"][0][what] += by
    content["totals"][what] += by
