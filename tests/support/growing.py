"""Datasets that grow: made-up parts of a corpus, builds in this process, and what is compared."""

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards import TokenDataset
from fineshards.cli.cli import main
from fineshards.shards.counts import BlockSummary, report_file
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.job.records import Piece
from fineshards.shards.layout import Shard, ShardKey
from fineshards.shards.piece_plan import plan_pieces, plan_stream
from fineshards.storage.open import open_storage
from fineshards.worker.work import Work
from support.oracle import files_in

Row = dict[str, Any]
# What splits documents, by --split_key.
KEYS: dict[str, Callable[[Row], str | None]] = {
    "text": lambda row: row["text"],
    "id": lambda row: row["id"],
    "host": lambda row: row["url"] and urlsplit(row["url"]).hostname,
    "row": lambda row: None,
    "column:group": lambda row: row["group"] and str(row["group"]),
}
SCHEMA = pa.schema(
    [("text", pa.string()), ("id", pa.string()), ("url", pa.string()), ("group", pa.int64())]
)


def made_up_rows(seed: int, count: int) -> list[Row]:
    """Rows with repeated texts, texts longer than shards, and missing texts, ids and URLs."""
    draw = random.Random(seed)
    rows: list[Row] = []
    for number in range(count):
        words = draw.choice([0, 1, 5, 30, 30, 30, 400])
        text = " ".join(draw.choice(["alpha", "beta", "Γάμμα", "δ", "7"]) for _ in range(words))
        host = draw.choice(["a.example", "b.example:8080", "me@c.example"])
        rows.append(
            {
                "text": None if draw.random() < 0.05 else text,
                "id": None if draw.random() < 0.1 else f"id{seed}-{number}",
                "url": draw.choice([None, *[f"https://{host}/{number}"] * 6]),
                "group": draw.choice([None, 1, 2, 3, 4, 5]),
            }
        )
        if draw.random() < 0.2:
            rows[-1]["text"] = draw.choice(rows)["text"]
    return rows


def shards_of(summaries: list[BlockSummary], work: Work) -> list[tuple[Shard, tuple[Piece, ...]]]:
    """The shards of the blocks of one file, and their pieces, as Plan finds them."""
    settings, pieces = work.settings, defaultdict[ShardKey, list[Piece]](list)
    report = report_file(summaries)
    plan = plan_stream([report], settings.shard_tokens, settings.split, work.earlier)
    for key, piece in plan_pieces(summaries, plan):
        pieces[key].append(piece)
    return [(plan.layout.shard(key), tuple(found)) for key, found in pieces.items()]


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    """Writes rows as parquet, with small row groups, or as JSON lines, by the file's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(list(rows), SCHEMA), path, row_group_size=11)
    else:
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


def write_parts(folder: Path, rows: Sequence[Row], size: int, kind: str = "parquet") -> list[Path]:
    """Writes the rows to files `0.parquet`, `1.parquet` and so on, `size` rows to each."""
    return [
        write_rows(folder / f"{number}.{kind}", rows[start : start + size])
        for number, start in enumerate(range(0, len(rows), size))
    ]


def build(folder: Path | str, *arguments: object) -> None:
    """`fineshards build`; what begins with -- is a flag, all else an input file."""
    _run("build", [f"--output={folder}"], arguments)


def append(folder: Path | str, *arguments: object) -> None:
    """`fineshards append`, as `build`."""
    _run("append", [str(folder)], arguments)


def _run(command: str, where: list[str], arguments: Sequence[object]) -> None:
    given = list(map(str, arguments))
    flags = [argument for argument in given if argument.startswith("--")]
    inputs = [argument for argument in given if not argument.startswith("--")]
    status = main([command, *where, "--input", *inputs, *flags])
    assert status == 0, f"{command} ended with {status}"


def unfinished_append(dataset: Path | str, file: Path) -> None:
    """Leaves an append behind that has written everything but the manifest."""
    storage = open_storage(str(dataset))
    manifest = storage.read(MANIFEST_NAME)
    append(dataset, file, "--keep_checkpoints")
    storage.replace(MANIFEST_NAME, manifest, storage.version(MANIFEST_NAME))


def published_files(folder: Path) -> dict[str, bytes]:
    """Shards, tables, masks and lists of rejected rows, which are the same after any kill."""
    kinds = ("documents", "masks", "rejected")
    return files_in(folder, ("test", "train", *(f"metadata/{kind}" for kind in kinds)))


def content_of(folder: Path) -> dict[str, Any]:
    """What does not say how a dataset has grown, nor where its shards are cut.

    The tokens of each split, what is learned of them, its documents, and lists of rejected rows.
    """
    found: dict[str, Any] = files_in(folder, ("metadata/rejected",))
    for split in ("test", "train"):
        shards = [np.load(path) for path in sorted(folder.glob(f"{split}/*.npy"))]
        found[f"{split} tokens"] = b"".join(shard.tobytes() for shard in shards)
        masks = sorted(folder.glob(f"metadata/masks/{split}_*.npy"))
        found[f"{split} learned"] = b"".join(
            np.unpackbits(np.load(path), count=len(shard), bitorder="little").tobytes()
            for path, shard in zip(masks, shards, strict=False)
        )
        documents: dict[int, Row] = {}
        for path in sorted(folder.glob(f"metadata/documents/{split}_*.parquet")):
            for row in pq.read_table(path).to_pylist():
                del row["offset"]
                known = documents.setdefault(row["document"], row | {"length": 0})
                known["length"] += row["length"]
        found[f"{split} documents"] = documents
    return found


def tokens_in(dataset: TokenDataset) -> list[int]:
    """All tokens of a dataset of samples of one token."""
    samples = dataset.gather(np.arange(len(dataset)))
    tokens: list[int] = [*samples[:, 0].tolist(), *samples[-1, 1:].tolist()]
    return tokens
