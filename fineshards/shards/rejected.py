"""Rejected rows: rows that cannot be encoded. How many are allowed, and where they are listed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from fineshards.errors import InputError
from fineshards.shards.records import BadRow, Block, SourceFile
from fineshards.storage.base import Storage

REJECTED_FOLDER = "metadata/rejected"


@dataclass(slots=True)
class Rejected:
    """The rejected rows of one block. limit: the most rejected rows allowed in the whole input."""

    file: SourceFile
    limit: int
    rows: list[BadRow] = field(default_factory=list)

    def add(self, rows: Iterable[BadRow]) -> None:
        """Adds rows; beyond the limit, raises InputError with the first row that exceeds it."""
        self.rows += rows
        if len(self.rows) > self.limit:
            bad = self.rows[self.limit]
            allowed = f" (--max_bad_rows allows {self.limit})" if self.limit else ""
            raise InputError(
                f"{self.file.path}, {bad.place}row {bad.row}: {bad.reason}{allowed}. Fix the row, "
                "or raise --max_bad_rows to skip such rows."
            )

    def save(self, storage: Storage, block: Block) -> None:
        """Writes the rows to `metadata/rejected/`, one JSON object per line; no file if none."""
        if not self.rows:
            return
        lines = [json.dumps({"file": self.file.path} | asdict(row)) for row in self.rows]
        name = f"{REJECTED_FOLDER}/{block.file:05d}-{block.index:05d}.jsonl"
        storage.write(name, "".join(line + "\n" for line in lines).encode())


def check_total(rejected: int, limit: int) -> None:
    """Raises InputError if all source files together have more rejected rows than allowed."""
    if rejected > limit:
        raise InputError(
            f"{rejected} rows cannot be encoded, and --max_bad_rows allows {limit}. They are "
            f"listed in {REJECTED_FOLDER}/. Fix them, or raise --max_bad_rows to skip such rows."
        )


def rejected_paths(content: bytes) -> Iterator[str]:
    """The source file of each row listed in a file of `metadata/rejected/`.

    Raises one of JSON_ERRORS for other content.
    """
    for line in content.splitlines():
        path: str = json.loads(line)["file"]
        yield path
