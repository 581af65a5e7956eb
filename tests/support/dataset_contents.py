"""All tokens and documents of a dataset, read with numpy and pyarrow alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

Tokens = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class Contents:
    """A dataset. tokens, documents: by split; each document has its EOT first."""

    folder: Path
    dtype: str
    eot: int
    tokens: dict[str, Tokens]
    documents: dict[str, list[Tokens]]
    sources: dict[str, list[tuple[str | None, str, int]]]

    @classmethod
    def read(cls, folder: Path) -> Contents:
        """The contents of a dataset whose documents are in one split each."""
        settings = json.loads((folder / "metadata/manifest.json").read_text())["settings"]
        tokens, documents, sources = {}, {}, {}
        for split in ("test", "train"):
            shards = sorted((folder / split).glob("*.npy"))
            tokens[split] = np.concatenate([np.load(shard) for shard in shards])
            begins: list[int] = []
            sources[split] = []
            before = 0
            for shard in shards:
                table = pq.read_table(folder / "metadata/documents" / f"{shard.stem}.parquet")
                for row in table.to_pylist():
                    if row["start"] == 0:
                        begins.append(before + row["offset"])
                        sources[split].append((row["id"], row["file"], row["row"]))
                before += len(np.load(shard))
            documents[split] = np.split(tokens[split], begins[1:])
        return cls(
            folder, settings["dtype"], settings["tokenizer"]["eot"], tokens, documents, sources
        )

    def ended(self, split: str) -> list[Tokens]:
        """The documents of a split, each with its EOT last."""
        return [np.append(document[1:], document[0]) for document in self.documents[split]]


def same(found: list[npt.NDArray[np.generic]], expected: list[Tokens]) -> bool:
    """Whether there are the same arrays of tokens, whatever their dtype."""
    return len(found) == len(expected) and all(
        np.array_equal(one, other) for one, other in zip(found, expected, strict=True)
    )
