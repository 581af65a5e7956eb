"""What tests of redactions look for: the documents of a dataset, and the tokens of one text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fineshards.shards.dataset_files import Dataset
from fineshards.storage.open import open_storage
from support.oracle import ENCODING

SECRET = "the number of the safe is four hundred and twelve"


def documents_of(folder: Path, generation: int | None = None) -> list[tuple[str, int, list[int]]]:
    """(file, row, tokens) of each document, by number."""
    opened = Dataset.open(open_storage(str(folder)), generation)
    count = opened.manifest.totals()["documents"]
    found = [opened.document(number) for number in range(count)]
    return [(each.file, each.row, each.tokens.tolist()) for each in found]


def secret_tokens() -> bytes:
    """The tokens of SECRET as they are in a shard, within a longer text."""
    return np.array(ENCODING.encode_ordinary(f" {SECRET}")[1:-1], "<u4").tobytes()
