"""Rejected rows: rows that cannot be encoded. How many are allowed, and where they are listed.

Pages whose text cannot be extracted are listed with them; any number of those is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field
from fractions import Fraction

from msgspec import json

from fineshards.errors import InputError
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.record import Count, Record
from fineshards.storage.base import Storage

REJECTED_FOLDER = "metadata/rejected"


@dataclass(slots=True)
class Rejected:
    """The rejected rows of one block.

    limit: the most rejected rows allowed in the whole input; a share of it, such as `0.1%`, is
    checked by `check_total` once all rows are counted.
    """

    file: SourceFile
    limit: int | str
    rows: list[BadRow] = field(default_factory=list)

    def add(self, rows: Iterable[BadRow]) -> None:
        """Adds rows; beyond the limit, raises InputError with the first row that exceeds it."""
        self.rows += rows
        # Of all rows even the smallest share is more than none.
        limit = self.limit if isinstance(self.limit, int) else len(self.rows)
        if len(self.rows) <= limit:
            return
        rejected = [row for row in self.rows if row.unextracted is None]
        if len(rejected) > limit:
            bad = rejected[limit]
            allowed = f" (--max_bad_rows allows {self.limit})" if self.limit else ""
            raise InputError(
                f"{self.file.path}, {bad.place}row {bad.row}: {bad.reason}{allowed}. Fix the row, "
                "or raise --max_bad_rows to skip such rows."
            )

    def save(self, storage: Storage, block: Block) -> None:
        """Writes the rows to `metadata/rejected/`, one JSON object per line; no file if none."""
        if not self.rows:
            return
        lines = [json.encode(_Listed(self.file.name, *astuple(row))) for row in self.rows]
        name = f"{REJECTED_FOLDER}/{block.file:05d}-{block.index:05d}.jsonl"
        storage.write(name, b"".join(line + b"\n" for line in lines))


class _Listed(Record, frozen=True):
    """A row as it is listed. file: the name of its source file. The others as in BadRow."""

    file: str
    row: Count
    place: str
    reason: str
    unextracted: str | None = None


def most_rejected(limit: int | str, rows: int) -> int:
    """How many of so many rows may be rejected. limit: a number, or a share such as `0.1%`."""
    if isinstance(limit, int):
        return limit
    return int(rows * Fraction(limit.removesuffix("%")) / 100)


def check_total(rejected: int, limit: int | str, rows: int) -> None:
    """Raises InputError if all source files together have more rejected rows than allowed.

    rows: of all source files.
    """
    if rejected > most_rejected(limit, rows):
        share = "" if isinstance(limit, int) else f" of {rows:,}"
        raise InputError(
            f"{rejected} rows{share} cannot be encoded, and --max_bad_rows allows {limit}. They are"
            f" listed in {REJECTED_FOLDER}/. Fix them, or raise --max_bad_rows to skip such rows."
        )


def rejected_paths(content: bytes) -> Iterator[str]:
    """The source file of each row listed in a file of `metadata/rejected/`.

    Raises MsgspecError for other content.
    """
    for line in content.splitlines():
        yield json.decode(line, type=_Listed).file
