"""Checks that each document is in the split that the hash of its key decides, as part of verify."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fineshards.shards.job.records import ShardRecord
from fineshards.shards.layout import SplitRule, table_name
from fineshards.shards.split_hash import hash_files, hash_keys
from fineshards.shards.tables.documents import DocumentTable
from fineshards.wording import counted


def check_sides(
    shard: ShardRecord, table: DocumentTable, rule: SplitRule, file_numbers: dict[str, int]
) -> Iterator[str]:
    """Every document of a table is on its side; a hash that follows from the table is right."""
    hashes = table.split_hash
    if hashes is None:
        return
    wrong = rule.in_test(hashes) != (shard.split == "test")
    if wrong.any():
        other = "train" if shard.split == "test" else "test"
        yield f"{_where(shard, table, wrong)} belong to {other} by split_hash"
    if rule.key in ("row", "id") or rule.test_files is not None:
        files = table.file_numbers(file_numbers)
        if rule.test_files is not None:
            expected = hash_files(files, rule.test_files)
        else:
            expected = hash_keys(table.ids if rule.key == "id" else None, files, table.row)
        wrong = hashes != expected
        if wrong.any():
            yield f"{_where(shard, table, wrong)} have a split_hash that is not that of {rule.key}"


def _where(shard: ShardRecord, table: DocumentTable, wrong: npt.NDArray[np.bool_]) -> str:
    count = counted(int(wrong.sum()), "document")
    first = table.document[np.argmax(wrong)]
    return f"{table_name(shard.name)}: {count}, the first of them number {first},"
