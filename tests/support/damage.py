"""Ways to damage a dataset so that all checks but one still pass."""

import base64
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.errors import FineshardsError
from fineshards.shards.job.manifest import Manifest

MANIFEST = "metadata/manifest.json"


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest's content, with its own checksum, and its copy."""
    content = json.loads((folder / MANIFEST).read_text())
    del content["crc32c"]
    change(content)
    kept = f"metadata/generations/{len(content['generations']):04d}.json"
    with suppress(FineshardsError):  # a wrong one cannot be written as fineshards does
        content = json.loads(Manifest.parse(sealed(content), MANIFEST).to_bytes())
        del content["crc32c"]
    for name in (MANIFEST, kept):
        (folder / name).write_bytes(sealed(content))


def sealed(content: dict[str, Any]) -> bytes:
    """A record as a file, closed by a checksum of its own."""
    checked = json.dumps(content, indent=1).encode()[: -len("\n}")] + b",\n"
    return checked + f' "crc32c": "{checksum(checked)}"\n}}'.encode()


def checksum(content: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(content).digest()).decode()


def entry_of(content: dict[str, Any], shard: str) -> dict[str, Any]:
    (entry,) = (entry for entry in content["shards"] if entry["name"] == shard)
    return entry


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def flip_middle(path: Path) -> None:
    """Flips a bit in the middle of a file."""
    flip_bit(path, path.stat().st_size // 2)


def cut(path: Path) -> None:
    """Leaves the first half of a file."""
    os.truncate(path, path.stat().st_size // 2)


def zeroed(path: Path) -> None:
    """Leaves zeros in place of a file's bytes."""
    path.write_bytes(bytes(path.stat().st_size))


def load(folder: Path, shard: str) -> np.ndarray:
    return np.load(folder / shard)


def save_consistently(folder: Path, shard: str, tokens: np.ndarray) -> None:
    """Writes a shard and its checksum, so that only the tokens are wrong."""
    np.save(folder / shard, tokens.astype("<u4"))
    record_checksum(folder, shard)


def record_checksum(folder: Path, shard: str) -> None:
    """Puts the checksum that a shard has now into the manifest."""
    crc32c = checksum((folder / shard).read_bytes())

    def change(content: dict[str, Any]) -> None:
        entry_of(content, shard)["crc32c"] = crc32c
        lines = [f"eot {content['settings']['tokenizer']['eot']}\n"]
        lines += [
            f"{each['name']} {each['bytes']} {each['crc32c']}\n" for each in content["shards"]
        ]
        content["content_fingerprint"] = hashlib.sha256("".join(lines).encode()).hexdigest()

    edit_manifest(folder, change)


def table_of(folder: Path, shard: str) -> Path:
    return folder / "metadata/documents" / f"{Path(shard).stem}.parquet"


def edit_table(folder: Path, shard: str, change: Callable[[dict[str, list[Any]]], object]) -> None:
    """Changes the columns of a document table, given as lists; keeps its schema."""

    def changed(table: pa.Table) -> pa.Table:
        columns = table.to_pydict()
        change(columns)
        return pa.table(columns, schema=table.schema)

    rewrite_table(folder, shard, changed)


def rewrite_table(folder: Path, shard: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Changes a document table, and its size and checksum in the manifest."""
    path = table_of(folder, shard)
    pq.write_table(change(pq.read_table(path)), path)
    content = path.read_bytes()
    numbers = {"table_bytes": len(content), "table_crc32c": checksum(content)}
    edit_manifest(folder, lambda manifest: entry_of(manifest, shard).update(numbers))


def change_total(content: dict[str, Any], what: str, by: int) -> None:
    """Changes a count of the first file and of the totals by the same amount."""
    counts = content["reports"][0]["counts"]
    counts[what] = counts.get(what, 0) + by
    content["totals"][what] += by


def edit_decisions(folder: Path, file: int, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Changes the decisions about a source file, and their size and checksum in the manifest."""
    edit_metadata(folder, f"metadata/decisions/{file:05d}.parquet", change)


def edit_metadata(folder: Path, name: str, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Changes the rows of a table in `metadata/`, and its size and checksum in the manifest."""
    table = pq.read_table(folder / name)
    decisions = table.to_pylist()
    change(decisions)
    pq.write_table(pa.Table.from_pylist(decisions, schema=table.schema), folder / name)
    content = (folder / name).read_bytes()

    def record(manifest: dict[str, Any]) -> None:
        (entry,) = (entry for entry in manifest["metadata"] if entry["name"] == name)
        entry.update(bytes=len(content), crc32c=checksum(content))

    edit_manifest(folder, record)
