"""The tokens of a split as they are exported, and where its documents begin.

The stream of a dataset is `EOT document EOT document …`. Trainers that want the token after each
document (`document EOT document EOT …`) get the same stream without its first token, and with one
more EOT at its end. So nothing is tokenized again, and a document of the one is where that of the
other is, one token later.

A redacted document is a run of EOTs in its shard, which a reader that finds documents by their EOT
takes for many documents without text. `--skip redacted` leaves these tokens out.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from fineshards.errors import OutputError, UsageError
from fineshards.exports.source_columns import ColumnReader
from fineshards.shards import npy
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.job import job_name, load_redaction
from fineshards.shards.job.manifest import readable_manifest
from fineshards.shards.job.records import ShardRecord
from fineshards.shards.layout import SPLITS, table_name
from fineshards.shards.npy import is_learned
from fineshards.shards.tables.documents import DocumentTable
from fineshards.storage.base import READ_AHEAD
from fineshards.storage.checksums import checksum_to_base64, crc32c

# Small enough to stay in a core's cache between the read, the checksum and the write.
_READ_BYTES = 1 << 20
# Tokens `[begin, end)` of a shard, ascending and apart: int64, shape (n, 2).
Ranges = npt.NDArray[np.int64]
NONE: Mapping[str, Ranges] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Read:
    """Tokens `[start, stop)` of a shard that were read, and their CRC-32C."""

    shard: str
    start: int
    stop: int
    crc32c: int


class Stream:
    """The tokens of one split, or of both, in the order of the dataset.

    split: `test`, `train`, or `all` for the one stream of a dataset that was built with a number of
    test shards. redacted: what is left out of it, by shard; a place in the stream is then a place
    among the tokens that are left. shards: their records. starts: where each shard begins, and
    where the last one ends. columns: reads those of the sources, if any are asked for.
    """

    columns: ColumnReader | None = None

    def __init__(self, dataset: Dataset, split: str, redacted: Mapping[str, Ranges] = NONE) -> None:
        manifest = dataset.manifest
        self.dataset, self.split, self.redacted = dataset, split, redacted
        self.dtype = manifest.settings.token_dtype
        self.eot = manifest.settings.tokenizer.eot
        self.shards = [shard for shard in manifest.shards if split in (shard.split, "all")]
        lengths = [shard.tokens - length_of(redacted.get(shard.name)) for shard in self.shards]
        self.starts: list[int] = [0, *np.cumsum(lengths, dtype=np.int64).tolist()]
        self.table = lru_cache(maxsize=2)(lambda number: self._parse(self.shards[number]))
        self._learned = lru_cache(maxsize=2)(lambda number: self.table(number).ranges())

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.starts[-1]

    @cached_property
    def begins_whole(self) -> bool:
        """Whether the first token is a document's first, its EOT."""
        return bool(self.tokens) and self.document_at_or_after(0) == 0

    @cached_property
    def ends_whole(self) -> bool:
        """Whether the last document does not go on in the next split."""
        manifest = self.dataset.manifest
        following = [shard for shard in manifest.shards if shard.split == "train"]
        if self.split != "test" or manifest.settings.split.by_document or not following:
            return True
        table = self._parse(following[0])
        # The rest of a document that is left out is left out too.
        return int(table.start[0]) == 0 or bool(self.redacted and table.redacted[0])

    def skipped(self) -> dict[str, int]:
        """The redacted documents that begin in the stream and are left out, and their tokens."""
        documents = tokens = 0
        for number, shard in enumerate(self.shards):
            ranges = self.redacted.get(shard.name)
            if ranges is not None:
                begins, (rows, _) = self.table(number).start == 0, self._rows(number)
                documents += int(begins.sum() - begins[rows].sum())
                tokens += length_of(ranges)
        return {"documents": documents, "tokens": tokens}

    def document_at_or_after(self, token: int) -> int:
        """The first place from a token on where a document begins; the end if there is none."""
        first = bisect_right(self.starts, token) - 1
        for number in range(first, len(self.shards)):
            rows, begins = self._rows(number)
            begins = begins[self.table(number).start[rows] == 0]
            following = begins[begins >= token]
            if len(following):
                return int(following[0])
        return self.tokens

    def documents(
        self, start: int, stop: int
    ) -> Iterator[tuple[npt.NDArray[np.int64], DocumentTable, npt.NDArray[np.int64]]]:
        """The documents with tokens in `[start, stop)`, shard by shard.

        Yields where they begin in the stream (`start` for one that begins before it), and the
        shard's table with their rows: int64, shape (documents,).
        """
        for number in self.overlap(start, stop):
            table = self.table(number)
            rows, begins = self._rows(number)
            meant = (begins + table.length[rows] > start) & (begins < stop)
            # One that goes on from the shard before was a row of that shard's table.
            meant &= (table.start[rows] == 0) | (begins <= start)
            yield np.maximum(begins[meant], start), table, rows[meant]

    def read(
        self, start: int, stop: int, reads: list[Read]
    ) -> Iterator[npt.NDArray[np.unsignedinteger]]:
        """Tokens `[start, stop)` in chunks, in the dtype of the shards.

        reads: gets a record of what was read of each shard. Raises OutputError if a shard is too
        short.
        """
        storage, size = self.dataset.storage, self.dtype.itemsize
        for number in self.overlap(start, stop):
            shard, ranges = self.shards[number], self.ranges(number, start, stop)
            least = min(sum(end - begin for begin, end in ranges) * size, READ_AHEAD)
            with storage.open(shard.name, least) as opened:
                for begin, end in ranges:
                    checksum, left = 0, (end - begin) * size
                    opened.seek(npy.HEADER_BYTES + begin * size)
                    while left:
                        content = opened.read(min(left, _READ_BYTES))
                        if len(content) % size or not content:
                            raise damaged(self.dataset, shard.name, f"it ends {left:,} bytes early")
                        checksum = crc32c(content, checksum)
                        left -= len(content)
                        yield np.frombuffer(content, self.dtype)
                    reads.append(Read(shard.name, begin, end, checksum))

    def eot_read(self, shard: ShardRecord, begin: int, end: int) -> Read:
        """What reading tokens `[begin, end)` of a shard would give if all of them were EOTs."""
        checksum, position = 0, begin
        while position < end:
            count = min(end - position, _READ_BYTES // self.dtype.itemsize)
            checksum = crc32c(np.full(count, self.eot, self.dtype).tobytes(), checksum)
            position += count
        return Read(shard.name, begin, end, checksum)

    def learned(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Whether each of the tokens `[start, stop)` of conversations is learned."""
        masks = [np.empty(0, np.bool_)]
        for number in self.overlap(start, stop):
            learned = self._learned(number)
            assert learned is not None
            masks += [is_learned(learned, *range_) for range_ in self.ranges(number, start, stop)]
        return np.concatenate(masks)

    def ranges(self, number: int, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges of a shard that are tokens `[start, stop)` of the stream."""
        first = max(start - self.starts[number], 0)
        end = min(stop, self.starts[number + 1]) - self.starts[number]
        return [*remaining(self.redacted.get(self.shards[number].name), first, end)]

    def _rows(self, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The rows of a shard's table that are in the stream, and where each begins in it."""
        table, redacted = self.table(number), self.redacted.get(self.shards[number].name)
        if redacted is None:
            return np.arange(len(table)), table.offset + self.starts[number]
        rows, offsets = outside(redacted, table.offset)
        return rows, offsets + self.starts[number]

    def overlap(self, start: int, stop: int) -> range:
        """The numbers of the shards with tokens in `[start, stop)`."""
        first = bisect_right(self.starts, start) - 1
        return range(first, bisect_left(self.starts, stop) if start < stop else first)

    def _parse(self, shard: ShardRecord) -> DocumentTable:
        """A shard's document table; raises OutputError if it is damaged."""
        name = table_name(shard.name)
        content = self.dataset.storage.read(name)
        if checksum_to_base64(crc32c(content)) != shard.table_crc32c:
            raise damaged(self.dataset, name, "its content is not what the manifest says")
        return self.dataset.parse_table(shard, content)


def damaged(dataset: Dataset, name: str, why: str) -> OutputError:
    """The error for a file of the dataset that is not as it was in its generation.

    Raises it itself where a redaction is not finished.
    """
    storage, generation = dataset.storage, dataset.manifest.generation
    later = readable_manifest(storage).generations[generation:]
    if any(since.redacted for since in later):
        return OutputError(
            f"{storage.path(name)} is not what it was in generation {generation}: {why}. "
            "Documents were redacted since, and a generation before a redaction cannot be "
            "exported any more. Export the latest one."
        )
    return OutputError(
        f"{storage.path(name)} is damaged: {why}. Run fineshards repair, then export again."
    )


def splits_of(dataset: Dataset, split: str | None, whole_documents: bool) -> list[str]:
    """The streams that an export has: the splits that are not empty, or the one that is named.

    whole_documents: whether no stream may cut a document, as the border of test shards does.
    """
    counts = dataset.manifest.splits
    splits = [name for name in SPLITS if counts[name]["tokens"]]
    cut = whole_documents and not dataset.manifest.settings.split.by_document and len(splits) > 1
    if cut and split not in (None, "all"):
        raise UsageError(
            f"--split {split}: the border of the splits may cut a document in two. Use --split all."
        )
    return ["all"] if cut else splits if split is None else [split]


def redacted_ranges(dataset: Dataset) -> dict[str, Ranges]:
    """The tokens of redacted documents, by the names of the shards that have any.

    Raises OutputError if a record of what was redacted is damaged.
    """
    manifest = dataset.manifest
    ranges = defaultdict[str, list[tuple[int, int]]](list)
    shards = {(shard.split, shard.index): shard for shard in manifest.shards}
    for split, begin, end in _ranges(dataset):
        while begin < end:
            index, at = manifest.layout.place(split, begin)
            shard = shards[split, index]
            last = min(at + end - begin, shard.tokens)
            ranges[shard.name].append((at, last))
            begin += last - at
    return {name: np.array(sorted(of_shard), np.int64) for name, of_shard in ranges.items()}


def _ranges(dataset: Dataset) -> Iterator[tuple[str, int, int]]:
    """The tokens of redacted documents, as (split, begin, end) within the split."""
    storage, manifest = dataset.storage, dataset.manifest
    checksums = {file.name: file.crc32c for file in manifest.metadata}
    for number, generation in enumerate(manifest.generations, 1):
        if generation.redacted:
            redaction, name = load_redaction(storage, number, generation), job_name(number)
            checksum = checksum_to_base64(crc32c(storage.read(name)))
            if checksum != (expected := checksums.get(name, checksum)):
                raise damaged(dataset, name, f"its crc32c is {checksum}, expected {expected}")
            yield from redaction.ranges


def length_of(ranges: Ranges | None) -> int:
    """The number of tokens in ranges."""
    return 0 if ranges is None else int((ranges[:, 1] - ranges[:, 0]).sum())


def remaining(ranges: Ranges | None, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Tokens `[first, end)` among those outside of ranges, as ranges of the shard."""
    edges = [0, *(() if ranges is None else ranges.ravel().tolist()), 1 << 63]
    passed = 0  # tokens outside of ranges before `begin`
    for begin, stop in zip(edges[::2], edges[1::2], strict=True):
        low, high = begin + max(first - passed, 0), min(begin + end - passed, stop)
        if low < high:
            yield low, high
        passed += stop - begin


def outside(
    ranges: Ranges, offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which offsets are in no range, and what each is without the tokens in ranges before it."""
    before = np.searchsorted(ranges[:, 1], offsets, side="right")
    left_out = np.append(0, np.cumsum(ranges[:, 1] - ranges[:, 0]))
    inside = before < len(ranges)
    inside[inside] = ranges[before[inside], 0] <= offsets[inside]
    rows = np.flatnonzero(~inside)
    return rows, offsets[rows] - left_out[before[rows]]
