"""Rejected rows: rows that cannot be encoded. How many are allowed, and where they are listed.

Pages whose text cannot be extracted are listed with them; any number of those is allowed.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from fractions import Fraction

from msgspec import json

from fineshards.errors import InputError
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.layout import REJECTED_FOLDER
from fineshards.storage.base import Storage


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
            place = ", ".join(filter(None, [self.file.path, bad.place]))
            raise InputError(
                f"{place}, row {bad.row}: {bad.reason}{allowed}. Fix the row, or raise "
                "--max_bad_rows to skip such rows."
            )

    def save(self, storage: Storage, block: Block) -> None:
        """Writes the rows to `metadata/rejected/`, one JSON object per line; no file if none."""
        if not self.rows:
            return
        rows = [{"file": self.file.name, **asdict(row)} for row in self.rows]
        lines = [json.encode({k: v for k, v in row.items() if v is not None}) for row in rows]
        name = f"{REJECTED_FOLDER}/{block.file:05d}-{block.index:05d}.jsonl"
        storage.write(name, b"".join(line + b"\n" for line in lines))


def check_total(rejected: int, limit: int | str, rows: int) -> None:
    """Raises InputError if the `rows` of all source files have more rejected ones than allowed."""
    most = int(rows * Fraction(limit.removesuffix("%")) / 100) if isinstance(limit, str) else limit
    if rejected > most:
        share = "" if isinstance(limit, int) else f" of {rows:,}"
        raise InputError(
            f"{rejected} rows{share} cannot be encoded, and --max_bad_rows allows {limit}. They are"
            f" listed in {REJECTED_FOLDER}/. Fix them, or raise --max_bad_rows to skip such rows."
        )
