"""Statistics: how many documents, bytes, words and tokens there are, by length, label and host.

    metadata/statistics.parquet                       those of the first generation
    metadata/generations/0002.statistics.parquet      those of the files that the second one added

A table has one row for each count, in the form of `SCHEMA`. All numbers are sums of integers, so
they depend neither on how documents are cut into blocks nor on the order in which blocks are added
up. A generation has a table of its own, because files of an earlier one never change; add up the
tables for the whole dataset.

scope: which documents.

    input      those with text, as the source has them (with a recipe)
    in         those that a step finds
    dropped    those that a step drops, by reason, with their texts as the step found them
    kept       those that a step keeps, with the texts that it made
    changed    those of them whose text it changed
    dataset    those of the dataset

measure: by what they are counted.

    total             all of them
    bytes, tokens     length of a document: `at_least` <= length < `below`, powers of two
    dump, language    value of that column of the input; documents without one are not counted
    language_score    value of that column, in hundredths
    host              host of the column `url`, in lower case, of the dataset only: the
                      `TOP_HOSTS` with the most documents, and the sum of the others

**Hosts are exact and bounded.** There may be millions. Blocks count all of theirs, which is bounded
by the block; the counts of a source file are cut by ranges of a hash, and each range is added up by
itself. Each host is in one range, so a host of the top is in the top of its range, and the others
can be summed there. So no process holds more than the hosts of a file, or of a range.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from fineshards.errors import OutputError
from fineshards.shards.counts import MANY_VALUES, MAX_VALUES, Counts
from fineshards.shards.job.recipe_record import RecipeRecord
from fineshards.shards.parquet_file import open_parquet

# Hosts of a generation that are listed by themselves.
TOP_HOSTS = 1_000
# No host has a space in it: see `measures.py`.
OTHER_HOSTS = "(other hosts)"

LABELS = ("dump", "language")
SUMS = ("documents", "bytes", "words", "lines", "tokens")
_KEYS = ("scope", "step", "reason", "measure", "value", "at_least", "below")
# What blocks, files and ranges of hosts are added up as.
COUNTS = pa.schema(
    [
        pa.field("scope", pa.string(), nullable=False),
        pa.field("step", pa.int16()),
        pa.field("reason", pa.string()),
        pa.field("measure", pa.string(), nullable=False),
        pa.field("value", pa.string()),
        pa.field("at_least", pa.float64()),
        pa.field("below", pa.float64()),
        *(pa.field(name, pa.int64(), nullable=False) for name in SUMS),
    ]
)
# generation: from 1. step: number in the recipe, from 0, and use: its name; null for input and
# dataset. reason: why documents were dropped. value: of a column, or a host. at_least, below: the
# bin; null for one that is open. bytes: of UTF-8. words: runs of anything but ASCII white space.
# lines: ended by line feeds, or by the end of the text. tokens: with one EOT per document; null
# except for the dataset. Words and lines are null where only documents and bytes are counted.
SCHEMA = pa.schema(
    [
        pa.field("generation", pa.int32(), nullable=False),
        COUNTS.field("scope"),
        COUNTS.field("step"),
        pa.field("use", pa.string()),
        *(COUNTS.field(name) for name in ("reason", "measure", "value", "at_least", "below")),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        *(pa.field(name, pa.int64()) for name in ("words", "lines", "tokens")),
    ]
)


def merged(tables: Iterable[pa.Table]) -> pa.Table:
    """The sum of tables of `COUNTS`, in no order.

    A step with more than MAX_VALUES reasons has one instead, MANY_VALUES, and so do the values of a
    label, as in `Counts`.
    """
    table = _added(pa.concat_tables([COUNTS.empty_table(), *tables]))
    table = _capped(table, ("scope", "step"), "reason", pc.is_valid(table["reason"]))
    labels = pc.is_in(table["measure"], pa.array(LABELS))
    return _capped(table, ("scope", "step", "reason", "measure"), "value", labels)


def with_top_hosts(table: pa.Table) -> pa.Table:
    """A table in which hosts beyond the first TOP_HOSTS are one row.

    All counts of a host must be in one row. Then tables may be trimmed before they are merged.
    """
    named = pc.and_(pc.equal(table["measure"], "host"), pc.not_equal(table["value"], OTHER_HOSTS))
    hosts = table.filter(named)  # a null `value` is none of a host
    if hosts.num_rows <= TOP_HOSTS:
        return table
    hosts = hosts.sort_by([("documents", "descending"), ("value", "ascending")])
    others = hosts.slice(TOP_HOSTS)
    others = _with_column(others, "value", pa.array([OTHER_HOSTS] * len(others), pa.string()))
    rest = table.filter(pc.invert(pc.fill_null(named, False)))
    return _added(pa.concat_tables([rest, hosts.slice(0, TOP_HOSTS), others]))


def hosts_by_range(table: pa.Table, ranges: int) -> tuple[pa.Table, list[tuple[int, pa.Table]]]:
    """Takes the hosts out of a table: the others, and (number, hosts) of ranges that have any.

    ranges: a power of two. A host is in the range that the upper bits of its hash say.
    """
    are_hosts = pc.equal(table["measure"], "host")
    hosts, rest = table.filter(are_hosts), table.filter(pc.invert(are_hosts))
    if not len(hosts):
        return rest, []
    names = (name.encode() for name in hosts["value"].to_pylist())
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, names), np.uint64, len(hosts))
    # A shift by 64 bits is undefined.
    numbers = (hashes >> np.uint64(32)) >> np.uint64(33 - ranges.bit_length())
    found = [
        (int(number), hosts.filter(pa.array(numbers == number))) for number in np.unique(numbers)
    ]
    return rest, found


def finished(table: pa.Table, generation: int, steps: Sequence[str]) -> pa.Table:
    """The statistics of a generation as they are stored, sorted, from all its counts.

    steps: the names of the recipe's steps.
    """
    # What a step keeps is what the next one finds.
    found = table.filter(pc.equal(table["scope"], "in"))
    later = found.filter(pc.greater(found["step"], 0))
    kept = _with_column(later, "step", pc.cast(pc.subtract(later["step"], 1), pa.int16()))
    totals = pc.and_(pc.equal(table["scope"], "dataset"), pc.equal(table["measure"], "total"))
    last = table.filter(totals) if steps else table.slice(0, 0)
    kept = pa.concat_tables(
        [kept, _with_column(last, "step", pa.array([len(steps) - 1] * len(last), pa.int16()))]
    )
    kept = _with_column(kept, "scope", pa.array(["kept"] * len(kept), pa.string()))
    table = _blanked(pa.concat_tables([table, kept]))
    numbers = [None if step is None else steps[step] for step in table["step"].to_pylist()]
    columns = {name: table[name] for name in COUNTS.names} | {
        "generation": pa.array([generation] * len(table), pa.int32()),
        "use": pa.array(numbers, pa.string()),
    }
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA).combine_chunks()


def added_generations(tables: Sequence[pa.Table]) -> tuple[pa.Table, int | None]:
    """The sum of stored tables, as one of `COUNTS`, sorted; numbers that none has are null.

    Also the only generation whose hosts are in it, where those of several cannot be added up,
    because not all are listed; otherwise None.
    """
    table, only = pa.concat_tables(tables), None
    hosts = table.filter(pc.equal(table["measure"], "host"))
    if len(tables) > 1 and OTHER_HOSTS in hosts["value"].to_pylist():
        only = pc.max(hosts["generation"]).as_py()
        earlier = pc.and_(pc.equal(table["measure"], "host"), pc.less(table["generation"], only))
        table = table.filter(pc.invert(earlier))
    counts = [
        pc.fill_null(table[name], 0) if name in SUMS else table[name] for name in COUNTS.names
    ]
    return _blanked(merged([pa.table(counts, schema=COUNTS)])), only


def contradictions(
    tables: Sequence[pa.Table], counts: Counts, recipe: RecipeRecord | None
) -> Iterator[str]:
    """One sentence per number that is not that of the manifest.

    counts: of all source files.
    """
    table, _ = added_generations(tables)
    totals = table.filter(pc.equal(table["measure"], "total"))
    found = totals.filter(pc.equal(totals["scope"], "dataset")).to_pylist()
    sums = [sum(row[name] for row in found) for name in ("documents", "bytes", "tokens")]
    if sums != [counts.documents, counts.text_bytes, counts.tokens]:
        yield (
            f"the statistics have {sums[0]:,} documents, {sums[1]:,} bytes and {sums[2]:,} tokens, "
            f"the manifest {counts.documents:,}, {counts.text_bytes:,} and {counts.tokens:,}"
        )
    dropped = totals.filter(pc.equal(totals["scope"], "dropped")).to_pylist()
    by_reason = {(row["step"], row["reason"]): row["documents"] for row in dropped}
    listed = {(each.step, each.reason): each.documents for each in counts.dropped}
    for step, reason in sorted(by_reason.keys() | listed.keys()):
        ours, theirs = by_reason.get((step, reason), 0), listed.get((step, reason), 0)
        if ours != theirs and recipe is not None:
            yield (
                f"the statistics have {ours:,} documents that step {recipe.step_name(step)} "
                f"dropped ({reason}), the manifest {theirs:,}"
            )


def to_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file, whose pages have checksums."""
    opened = io.BytesIO()
    pq.write_table(table, opened, compression="zstd", write_page_checksum=True, store_schema=False)
    return opened.getvalue()


def from_bytes(content: bytes, path: str, schema: pa.Schema = SCHEMA) -> pa.Table:
    """The inverse of `to_bytes`; raises OutputError, with the path, if it is damaged."""
    try:
        return open_parquet(io.BytesIO(content)).read(use_threads=False).cast(schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise OutputError(f"{path} is damaged: {error}. Copy the dataset again.") from error


def _blanked(table: pa.Table) -> pa.Table:
    """A table, sorted, with null for numbers that were not counted."""
    table = table.sort_by([(name, "ascending") for name in _KEYS])
    with_tokens = pc.equal(table["scope"], "dataset")
    with_words = pc.is_in(table["scope"], pa.array(["input", "dropped", "dataset"]))
    columns = {name: table[name] for name in COUNTS.names} | {
        "words": _where(with_words, table["words"]),
        "lines": _where(with_words, table["lines"]),
        "tokens": _where(with_tokens, table["tokens"]),
    }
    return pa.table(columns)


def _added(table: pa.Table) -> pa.Table:
    """A table with one row for each key."""
    sums = table.group_by(list(_KEYS), use_threads=False).aggregate(
        [(name, "sum") for name in SUMS]
    )
    columns = [sums[name] for name in _KEYS] + [sums[f"{name}_sum"] for name in SUMS]
    return pa.table(columns, schema=COUNTS)


def _capped(table: pa.Table, keys: tuple[str, ...], column: str, rows: pa.ChunkedArray) -> pa.Table:
    """A table in which a group of more than MAX_VALUES values of a column has one, MANY_VALUES.

    Whether it has one depends on its values alone: an addend with more than MAX_VALUES makes the
    sum have more. So order and grouping of addends do not matter.
    """
    counted = table.filter(rows)
    if len(counted) <= MAX_VALUES and not pc.any(pc.equal(counted[column], MANY_VALUES)).as_py():
        return table
    grouped = counted.group_by([*keys, column], use_threads=False).aggregate([])
    names = grouped.group_by(list(keys), use_threads=False).aggregate(
        [(column, "count"), (column, "list")]
    )
    full = {
        tuple(row[key] for key in keys)
        for row in names.to_pylist()
        if row[f"{column}_count"] > MAX_VALUES or MANY_VALUES in row[f"{column}_list"]
    }
    if not full:
        return table
    places = zip(*(table[key].to_pylist() for key in keys), strict=True)
    values = [
        MANY_VALUES if there and place in full else value
        for place, value, there in zip(
            places, table[column].to_pylist(), rows.to_pylist(), strict=True
        )
    ]
    return _added(_with_column(table, column, pa.array(values, pa.string())))


def _with_column(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, table.schema.field(index), values)


def _where(mask: pa.ChunkedArray, values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(mask, values, pa.scalar(None, pa.int64()))
