"""Shards on a local disk, opened on first use: mapped into memory, or read by pread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from io import BufferedReader
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fineshards.errors import OutputError
from fineshards.loader.memory import Memory
from fineshards.loader.sample_sources import Samples
from fineshards.loader.tokens.open_shards import OPEN_SHARDS, Shelf
from fineshards.loader.tokens.shard_contents import ShardContents
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards import npy

Tokens = npt.NDArray[np.unsignedinteger]

# Bytes joined together, so that they stay in the processor's cache.
_TOGETHER = 1 << 18


class Parts(NamedTuple):
    """Ranges of tokens: `[begins[i], stops[i])`, from the start of shard `shards[i]` on.

    The shard is of reader `which[i]`; what is beyond its end is in the next ones.
    """

    which: Sequence[int]
    shards: Sequence[int]
    begins: Sequence[int]
    stops: Sequence[int]


class LocalShards:
    """Reads token ranges from local shards. Threads can share a reader; processes cannot.

    mapped: whether to map shards. A mapped shard that is cut short kills the process by SIGBUS when
    it is read; one that is not mapped raises OutputError. contents: compares each shard with its
    checksum before its first use; None for no comparison.
    """

    def __init__(
        self, split: SplitShards, mapped: bool = True, contents: ShardContents | None = None
    ) -> None:
        self._split = split
        self._mapped = mapped
        self._contents = contents
        self._lock = threading.Lock()
        # The tokens of each open shard: a memoryview, of which a part takes the least time.
        self.shelf = Shelf()

    def join(self, shards: Sequence[int], begins: Sequence[int], stops: Sequence[int]) -> Tokens:
        """Ranges of tokens, one after the other; see Parts.

        Raises OutputError if a shard is missing or damaged.
        """
        parts = Parts([0] * len(shards), shards, begins, stops)
        return join(parts, [self.shelf], {self._split.dtype}, lambda: [self])

    def view(self, shard: int, offset: int, count: int) -> Tokens | None:
        """Tokens `[offset, offset + count)` of a shard, to read; None if it has fewer."""
        tokens = np.asarray(self.opened(shard)[offset : offset + count])
        return tokens if len(tokens) == count else None

    def close(self) -> None:
        """Releases all files; each is closed when its last use ends."""
        self.shelf.clear()

    def opened(self, shard: int) -> Shard:
        """The tokens of a shard."""
        found: Shard | None = self.shelf.get(shard)
        if found is not None:
            return found
        with self._lock:
            # Another thread may have opened it in the meantime.
            found = self.shelf.get(shard)
            if found is None:
                found = OPEN_SHARDS.put(self.shelf, shard, lambda: self._load(shard))
            return found

    def _load(self, shard: int) -> Shard:
        split, name = self._split, self._split.shard_name(shard)
        loaded: Shard
        if self._mapped:
            content = split.storage.open_mapped(name)
            split.check(shard, len(content), content[: npy.HEADER_BYTES])
            offset = npy.HEADER_BYTES
            loaded = np.frombuffer(content, split.dtype, split.length(shard), offset).data
        else:
            loaded = ReadShard(split, shard)
        if self._contents is not None:
            self._contents.check(shard)
        return loaded


def read_rows(
    memory: Memory,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    parts: Parts,
    borders: Sequence[int],
    shelves: Shelves,
    dtypes: Set[np.dtype[Any]],
    readers: Readers = list,
) -> tuple[Samples, int]:
    """An array whose first rows have parts: row r has `[borders[r], borders[r + 1])`.

    Also returns the largest token there. Joining many parts and converting them at once takes less
    time than assigning each to its row.
    """
    if dtypes == {dtype}:
        out = memory.joined(views(parts, shelves, readers), shape, dtype)
        return out, int(out[: len(borders) - 1].max(initial=0))
    out = memory.empty(shape, dtype)
    rows, largest = -(-_TOGETHER // (4 * shape[1])), 0
    for at in range(0, len(borders) - 1, rows):
        ends = borders[at : at + rows + 1]
        some = slice(ends[0], ends[-1])
        tokens = join(Parts(*[each[some] for each in parts]), shelves, dtypes, readers)
        out[at : at + len(ends) - 1] = tokens.reshape(-1, shape[1])
        largest = max(largest, int(tokens.max(initial=0)))
    return out, largest


def join(
    parts: Parts, shelves: Shelves, dtypes: Set[np.dtype[Any]], readers: Readers = list
) -> Tokens:
    """The tokens of parts, one after the other, to read; see `views`. dtypes: of all readers."""
    found: Sequence[Any] = views(parts, shelves, readers)
    dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
    if len(dtypes) > 1:
        found = [np.asarray(part, dtype) for part in found]
    return np.frombuffer(b"".join(found), dtype)


def views(parts: Parts, shelves: Shelves, readers: Readers) -> list[Any]:
    """The tokens of parts, each in one view or several.

    shelves: of each reader, the tokens of its open shards. readers: called where one is not open.
    """
    try:
        if len(shelves) == 1:  # a sixth faster
            shelf = shelves[0]
            found = [
                shelf[shard][begin:stop] for shard, begin, stop in zip(*parts[1:], strict=True)
            ]
        else:
            found = [
                shelves[number][shard][begin:stop]
                for number, shard, begin, stop in zip(*parts, strict=True)
            ]
        complete = sum(map(len, found)) == sum(parts.stops) - sum(parts.begins)
    except LookupError:
        complete = False
    return found if complete else _opened(parts, readers())


def _opened(parts: Parts, readers: Sequence[LocalShards]) -> list[Any]:
    """Parts whose shards must be opened, or that reach from one shard into the next."""
    found: list[Any] = []
    for number, shard, begin, stop in zip(*parts, strict=True):
        reader, missing = readers[number], stop - begin
        while missing:
            if shard not in reader.shelf:
                # A part keeps its shard open; copies of the parts let the shards close.
                found = [np.array(part) for part in found]
            part = reader.opened(shard)[begin : begin + missing]
            found.append(part)
            missing -= len(part)
            shard, begin = shard + 1, 0
    return found


class ReadShard:
    """A shard that is not mapped: a slice of it reads the tokens.

    Where reading fails, it is opened once more: the descriptor of a file on a network may be stale.
    """

    def __init__(self, split: SplitShards, shard: int) -> None:
        self._split, self._shard = split, shard
        self._tokens = split.length(shard)
        self._file: _File | None = self._opened()

    def __len__(self) -> int:
        return self._tokens

    def __getitem__(self, part: slice) -> Tokens:
        """A copy of tokens `[start, stop)`; raises OutputError if the file has become shorter."""
        start, stop, _ = part.indices(self._tokens)
        out = np.empty(stop - start, self._split.dtype)
        buffer = out.view(np.uint8).data
        position = npy.HEADER_BYTES + start * self._split.dtype.itemsize
        file = self._file
        if file is not None:
            try:
                file.read(buffer, position)
                return out
            except OutputError as error:
                if not isinstance(error.__cause__, OSError):
                    raise
            # Other threads may still read from it, so it closes after its last use.
            self._file = file = None
        opened = OPEN_SHARDS.with_room(self._opened)
        opened.read(buffer, position)
        self._file = opened
        return out

    def _opened(self) -> _File:
        split, name = self._split, self._split.shard_name(self._shard)
        file = _File(split.storage.path(name), split.storage.open(name))
        first_bytes = bytearray(min(npy.HEADER_BYTES, file.size))
        file.read(memoryview(first_bytes), 0)
        split.check(self._shard, file.size, bytes(first_bytes))
        return file


class _File:
    """An open file. Closes when it is no longer referenced."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        # Without the buffer, which would take more memory than the file's state.
        self._file = cast(BufferedReader, file).detach()
        self._path = path
        self.size = os.fstat(self._file.fileno()).st_size

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # the handler of a signal may have raised before
            self._file.close()

    def read(self, buffer: memoryview, position: int) -> None:
        """Fills a buffer from a place on; raises OutputError if that is impossible."""
        filled = 0
        while filled < len(buffer):  # the system reads at most 2 GiB at a time, or less
            try:
                count = os.preadv(self._file.fileno(), [buffer[filled:]], position + filled)
            except OSError as error:
                raise OutputError(
                    f"the shard {self._path} cannot be read: {error.strerror}. Check the disk, or "
                    "copy the shard again from its origin."
                ) from error
            if count == 0:
                raise OutputError(
                    f"the shard {self._path} ends before byte {position + len(buffer):,}: it was "
                    "cut short after it was opened. Copy it again from its origin, or run "
                    "fineshards repair."
                )
            filled += count


Shard = memoryview | ReadShard
Shelves = Sequence[Mapping[int, Any]]
Readers = Callable[[], Sequence[LocalShards]]
