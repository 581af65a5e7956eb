"""The documents that steps and datatrove are compared on.

The sample of the repository is always there; ../shared/fixtures and ../shared/corpus where they
are. FINESHARDS_ALL_DOCUMENTS=1 compares all of their documents, in an hour or so; otherwise a hash
chooses a part of the largest files.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.curation.batch import Batch
from fineshards.shards.tables.hash_sample import sampled

ROOT = Path(__file__).parents[2]
# ../shared, or further up where the repository is a worktree.
SHARED = next((up / "shared" for up in ROOT.parents if (up / "shared/corpus").is_dir()), None)
ALL = os.environ.get("FINESHARDS_ALL_DOCUMENTS") == "1"
# The share of documents that is compared of the files that only ALL compares whole.
SHARE, SHARE_OF_CRAWL = 0.01, 0.25
WHOLE = ("debian_text", "odcby_crawl")
# So that several processes can share a file, and a failure names a small part.
PART = 1000


def files() -> list[Path]:
    """The Parquet files, those that are compared whole first."""
    found = [ROOT / "samples/debian_text.parquet"]
    if SHARED:
        # The fixture of the sample's name is the sample.
        found += [SHARED / "fixtures/odcby_crawl.parquet", *sorted(SHARED.glob("corpus/*.parquet"))]
    return found


def share_of(path: Path) -> float:
    """The share of a file's documents that is compared."""
    return SHARE_OF_CRAWL if path.name.startswith("crawl-") else SHARE


@dataclass(frozen=True)
class Part:
    """Consecutive documents of a file, chosen by a hash of their row unless all are compared."""

    path: Path
    start: int
    rows: int

    def __str__(self) -> str:
        return f"{self.path.stem}-{self.start}"

    def batch(self, columns: Sequence[str] = ()) -> Batch:
        """The documents, with columns."""
        table = pq.read_table(self.path, columns=["text", *columns], use_threads=False)
        table = table.slice(self.start, self.rows)
        rows = np.arange(self.start, self.start + len(table))
        if not ALL and not self.path.name.startswith(WHOLE):
            chosen = sampled(rows, share_of(self.path))
            table, rows = table.filter(pa.array(chosen)), rows[chosen]
        texts = table["text"].combine_chunks().cast(pa.large_string())
        named = {name: table[name].combine_chunks() for name in columns}
        return Batch(files().index(self.path), rows, texts, named)


def parts() -> Iterator[Part]:
    """All documents, in parts of about PART compared documents."""
    for path in files():
        whole = ALL or path.name.startswith(WHOLE)
        step = PART if whole else round(PART / share_of(path))
        documents = pq.ParquetFile(path).metadata.num_rows
        for start in range(0, documents, step):
            yield Part(path, start, min(step, documents - start))
