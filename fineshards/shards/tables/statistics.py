"""Statistics: how many documents, bytes, words, lines and tokens there are, one table per file.

    metadata/statistics/00003.parquet          what was counted of source file 3
    checkpoints/…/statistics/00003-00012.parquet
                                               of the dataset's documents in a block; earlier than
                                               the token block

What the stages of a recipe count is stored with the blocks that they have judged (`verdicts.py`).
A table has one row per count, in the form of `SCHEMA`. All numbers are sums of integers, so they
depend neither on how a file is cut into blocks nor on the order in which blocks are added up. Add
up the tables of all files for the whole dataset.

what: which documents, and by what they are counted.

    input             those with text, as the source has them (with a recipe)
    dropped           those that a step drops, by reason, with their texts as the step found them
    changed           those that a step keeps with another text, with that text
    dataset           those of the dataset
    bytes, tokens     those of the dataset by length: `at_least` <= length < 2 * `at_least`
    dump, language    those of the dataset by the value of that column of the input; documents
                      without one are not counted
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import MANY_VALUES, MAX_VALUES
from fineshards.shards.job.records import Block, MetadataFile, write_metadata
from fineshards.shards.layout import file_table
from fineshards.shards.ledger import Kind
from fineshards.shards.parquet_file import parquet_bytes, read_table
from fineshards.storage.base import Storage

# Bytes of text that are looked at together: they stay in a core's cache.
_TILE = 1 << 17
# Rows that are kept before they are added up.
_ROWS_KEPT = 1 << 18

SUMS = ("documents", "bytes", "words", "lines", "tokens")
_KEYS = ("what", "step", "value", "at_least")
# step: number in the recipe, from 0. value: the reason, or that of the column. at_least: the bin, a
# power of two, or 0. bytes: of UTF-8. words: runs of anything but ASCII white space. lines: ended
# by line feeds, or by the end of the text. tokens: with one EOT per document; null except for those
# of the dataset.
SCHEMA = pa.schema(
    [
        pa.field("what", pa.string(), nullable=False),
        pa.field("step", pa.int16()),
        pa.field("value", pa.string()),
        pa.field("at_least", pa.int64()),
        *(pa.field(name, pa.int64(), nullable=name == "tokens") for name in SUMS),
    ]
)


def measure(texts: pa.Array) -> npt.NDArray[np.int64]:
    """The bytes, words and lines of each text, shape (n, 3).

    texts: large_string without nulls.
    """
    count = len(texts)
    measured = np.zeros((count, 3), np.int64)
    _, offsets, data = texts.buffers()
    if not count or data is None:
        return measured
    borders = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + count + 1]
    content = np.frombuffer(data, np.uint8)[borders[0] : borders[-1]]
    borders = borders - borders[0]
    measured[:, 0] = np.diff(borders)
    begins, feeds = np.empty(len(content), np.bool_), np.empty(len(content), np.bool_)
    last = False
    for start in range(0, len(content), _TILE):
        tile = content[start : start + _TILE]
        filled = (tile - np.uint8(9) >= 5) & (tile != 32)
        begins[start] = filled[0] and not last
        np.greater(filled[1:], filled[:-1], out=begins[start + 1 : start + len(tile)])
        np.equal(tile, 10, out=feeds[start : start + len(tile)])
        last = filled[-1]
    # Words and lines end with the document.
    filled = measured[:, 0] > 0
    firsts, lasts = borders[:-1][filled], borders[1:][filled] - 1
    begins[firsts] = (content[firsts] - np.uint8(9) >= 5) & (content[firsts] != 32)
    feeds[lasts] = True
    places = borders.tolist()
    for column, marks in ((1, begins), (2, feeds)):
        counts = [np.count_nonzero(marks[start:stop]) for start, stop in pairwise(places)]
        measured[:, column] = counts
    return measured


class Tally:
    """Adds up statistics of documents, batch by batch."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(
        self,
        what: str,
        texts: pa.Array,
        step: int | None = None,
        reasons: Sequence[str] | None = None,
    ) -> None:
        """Adds documents, as `measure` takes them. reasons: why the step drops each."""
        values = None if reasons is None else pa.array(reasons, pa.string())
        self._add(what, measure(texts), values=values, step=step)

    def add_dataset(
        self, texts: pa.Array, tokens: npt.NDArray[np.int64], labels: Mapping[str, pa.Array]
    ) -> None:
        """Adds documents of the dataset. tokens: of each. labels: values by column, with nulls."""
        measured = measure(texts)
        self._add("dataset", measured, tokens)
        self._add("bytes", measured, tokens, bins=_bins(measured[:, 0]))
        self._add("tokens", measured, tokens, bins=_bins(tokens))
        for name, values in labels.items():
            there = values.is_valid().to_numpy(zero_copy_only=False)
            self._add(name, measured[there], tokens[there], values.drop_null().cast(pa.string()))

    def table(self) -> pa.Table:
        """All that was added, as a table of `SCHEMA`."""
        return merged(self._parts)

    def _add(
        self,
        what: str,
        measured: npt.NDArray[np.int64],
        tokens: npt.NDArray[np.int64] | None = None,
        values: pa.Array | None = None,
        bins: npt.NDArray[np.int64] | None = None,
        step: int | None = None,
    ) -> None:
        count = len(measured)
        columns = {
            "what": pa.repeat(what, count),
            "step": pa.repeat(pa.scalar(step, pa.int16()), count),
            "value": pa.nulls(count, pa.string()) if values is None else values,
            "at_least": pa.nulls(count, pa.int64()) if bins is None else pa.array(bins),
            "documents": pa.repeat(pa.scalar(1, pa.int64()), count),
            **{name: pa.array(measured[:, index]) for index, name in enumerate(SUMS[1:4])},
            "tokens": pa.nulls(count, pa.int64()) if tokens is None else pa.array(tokens),
        }
        self._parts.append(pa.table(columns, schema=SCHEMA))
        self._rows += count
        if self._rows > _ROWS_KEPT:
            self._parts, self._rows = [self.table()], 0


def _bins(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The largest power of two that is not above each length; 0 for 0."""
    # The exponent of a number is the number of its bits, of 0 it is 0.
    bits = np.frexp(lengths.astype(np.float64))[1]
    return (np.int64(1) << bits.astype(np.int64)) >> 1


def merged(tables: Iterable[pa.Table]) -> pa.Table:
    """The sum of tables, sorted.

    A step with more than MAX_VALUES reasons has one instead, MANY_VALUES, and so do the values of a
    column, as in `Counts`. Whether it has depends on its values alone: an addend with more of them
    makes the sum have more. So order and grouping of addends do not matter.
    """
    table = _added(pa.concat_tables([SCHEMA.empty_table(), *tables]))
    if len(table) > MAX_VALUES or MANY_VALUES in table["value"].to_pylist():
        values: dict[tuple[str, int | None], set[str]] = {}
        keys = list(zip(*(table[name].to_pylist() for name in _KEYS[:3]), strict=True))
        for what, step, value in keys:
            values.setdefault((what, step), set()).add(value)
        full = {key for key, of in values.items() if len(of) > MAX_VALUES or MANY_VALUES in of}
        capped = [MANY_VALUES if (what, step) in full else value for what, step, value in keys]
        table = _added(table.set_column(2, SCHEMA.field("value"), pa.array(capped, pa.string())))
    return table.sort_by([(name, "ascending") for name in _KEYS]).combine_chunks()


def _added(table: pa.Table) -> pa.Table:
    """A table with one row for each key."""
    sums = table.group_by(list(_KEYS), use_threads=False).aggregate(
        [(name, "sum") for name in SUMS]
    )
    columns = [sums[name] for name in _KEYS] + [sums[f"{name}_sum"] for name in SUMS]
    return pa.table(columns, schema=SCHEMA)


# -- tables in the checkpoints of a job, and in its dataset


# Of the documents of a block that are in the dataset, as a Parquet file.
_OF_BLOCKS = Kind("statistics", bytes)


def write_block(checkpoints: Checkpoints, block: Block, table: pa.Table) -> None:
    """Stores what was counted of a block's documents in the dataset."""
    checkpoints.ledger.put(_OF_BLOCKS, block.place.key, (), parquet_bytes(table))


def has_block(checkpoints: Checkpoints, block: Block) -> bool:
    """Whether the statistics of a block are stored, undamaged."""
    return checkpoints.ledger.get(_OF_BLOCKS, block.place.key) is not None


def write_file(checkpoints: Checkpoints, file: int, judged: Iterable[pa.Table]) -> MetadataFile:
    """Writes the statistics of a source file. judged: what the stages of a recipe counted of it."""
    storage, name = checkpoints.storage, file_table("statistics", file)
    blocks = checkpoints.read_blocks(file) or []
    stored = [checkpoints.ledger.finished(_OF_BLOCKS, block.place.key) for block in blocks]
    tables = [read_table(entry.record, checkpoints.folder, SCHEMA) for entry in stored]
    content = parquet_bytes(merged([*tables, *judged]))
    return write_metadata(storage, name, content)


def read_file(storage: Storage, file: int) -> pa.Table:
    """The statistics of a source file; raises OutputError if they are missing or damaged."""
    name = file_table("statistics", file)
    return read_table(storage.read(name), storage.path(name), SCHEMA)
