"""Shards on a local disk, opened on first use, and how many a process keeps open.

An open shard holds a file descriptor, because Python's mmap keeps a duplicate. The usual limit is
1,024 for the whole process, and a training program needs most of them itself.

The open shards have no lock: each step is one operation of a deque or a dict, which threads may do
at the same time. So a fork cannot inherit a held lock, and a collected dataset has nothing to wait
for.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fineshards.errors import OutputError
from fineshards.loader.memory import Memory
from fineshards.loader.sample_sources import Samples
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards import npy

Tokens = npt.NDArray[np.unsignedinteger]
_Loaded = TypeVar("_Loaded")

# At most this many, and at most this share of the limit. A process may also have only 65,530
# mappings (vm.max_map_count).
_MOST = 4096
_SHARE = 4

# No descriptor is left for the process, or for the machine; no mapping is left.
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

# Bytes joined together, so that they stay in the processor's cache.
_TOGETHER = 1 << 18


class Shelf(dict[int, Any]):
    """The open shards of one reader, by number. One that is taken off closes after its last use."""


class OpenShards:
    """The open shards on all shelves: above a limit, and when descriptors run out, the oldest go.

    Closing the oldest, not the one that was used the longest ago, keeps the lookup in a shelf as
    fast as in a dict. Shelves are referenced weakly. The places of shards that are no longer there
    count until they are the oldest.
    """

    def __init__(self) -> None:
        self._places: deque[tuple[weakref.ref[Shelf], int]] = deque()
        self._allowed: int | None = None
        self._limit = 1

    def put(self, shelf: Shelf, shard: int, load: Callable[[], _Loaded]) -> _Loaded:
        """Loads a shard and puts it on a shelf; raises what `load` raises."""
        self._keep(self.limit() - 1)
        loaded = self.with_room(load)
        # In this order, so that each shard on a shelf has a place.
        shelf[shard] = loaded
        self._places.append((weakref.ref(shelf), shard))
        return loaded

    def with_room(self, load: Callable[[], _Loaded]) -> _Loaded:
        """Calls `load`; where no descriptors are left, closes half of the shards and retries.

        From then on the limit is that half, so that the program's next file finds room as well.
        """
        while True:
            try:
                return load()
            except OutputError as error:
                opened = len(self._places)
                if not opened or not _none_left(error):
                    raise
            # Outside of the handler: the error holds the frames of what failed.
            self._limit = max(1, opened // 2)
            self._keep(opened // 2)

    def limit(self) -> int:
        """How many shards may be open, of all datasets together."""
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if allowed != self._allowed:
            unlimited = allowed == resource.RLIM_INFINITY
            self._limit = _MOST if unlimited else max(1, min(_MOST, allowed // _SHARE))
            self._allowed = allowed
        return self._limit

    def _keep(self, count: int) -> None:
        """Closes the oldest shards until there are at most `count` places."""
        while len(self._places) > count:
            try:
                shelf, shard = self._places.popleft()
            except IndexError:  # another thread was faster
                return
            if (owner := shelf()) is not None:
                owner.pop(shard, None)


def _none_left(error: OutputError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _NONE_LEFT


OPEN_SHARDS = OpenShards()


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
    it is read; one that is not mapped raises OutputError.
    """

    def __init__(self, split: SplitShards, mapped: bool = True) -> None:
        self._split = split
        self._mapped = mapped
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
        tokens: Shard | None = self.shelf.get(shard)
        if tokens is not None:
            return tokens
        with self._lock:
            # Another thread may have opened it in the meantime.
            tokens = self.shelf.get(shard)
            if tokens is None:
                tokens = OPEN_SHARDS.put(self.shelf, shard, lambda: self._load(shard))
            return tokens

    def _load(self, shard: int) -> Shard:
        split = self._split
        if not self._mapped:
            return ReadShard(split, shard)
        content = split.storage.open_mapped(split.shard_name(shard))
        split.check(shard, len(content), content[: npy.HEADER_BYTES])
        return np.frombuffer(content, split.dtype, split.length(shard), npy.HEADER_BYTES).data


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
        tokens = join(Parts(*[column[some] for column in parts]), shelves, dtypes, readers)
        out[at : at + len(ends) - 1] = tokens.reshape(-1, shape[1])
        largest = max(largest, int(tokens.max(initial=0)))
    return out, largest


def join(
    parts: Parts, shelves: Shelves, dtypes: Set[np.dtype[Any]], readers: Readers = list
) -> Tokens:
    """The tokens of parts, one after the other, to read; see `views`. dtypes: of all readers."""
    pieces: Sequence[Any] = views(parts, shelves, readers)
    dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
    if len(dtypes) > 1:
        pieces = [np.asarray(piece, dtype) for piece in pieces]
    return np.frombuffer(b"".join(pieces), dtype)


def views(parts: Parts, shelves: Shelves, readers: Readers) -> list[Any]:
    """The tokens of parts, each in one view or several.

    shelves: of each reader, the tokens of its open shards. readers: called where one is not open.
    """
    try:
        if len(shelves) == 1:  # a sixth faster
            shelf = shelves[0]
            pieces = [
                shelf[shard][begin:stop] for shard, begin, stop in zip(*parts[1:], strict=True)
            ]
        else:
            pieces = [
                shelves[number][shard][begin:stop]
                for number, shard, begin, stop in zip(*parts, strict=True)
            ]
        complete = sum(map(len, pieces)) == sum(parts.stops) - sum(parts.begins)
    except LookupError:
        complete = False
    return pieces if complete else _opened(parts, readers())


def _opened(parts: Parts, readers: Sequence[LocalShards]) -> list[Any]:
    """Parts whose shards must be opened, or that reach from one shard into the next."""
    pieces: list[Any] = []
    for number, shard, begin, stop in zip(*parts, strict=True):
        reader, missing = readers[number], stop - begin
        while missing:
            if shard not in reader.shelf:
                # A part keeps its shard open; copies of the parts let the shards close.
                pieces = [np.array(piece) for piece in pieces]
            part = reader.opened(shard)[begin : begin + missing]
            pieces.append(part)
            missing -= len(part)
            shard, begin = shard + 1, 0
    return pieces


class ReadShard:
    """A shard that is not mapped: a slice of it reads the tokens from the open file.

    Before each read the file is compared with the opened one, by inode, size and header. One that
    was replaced, cut short or overwritten is opened and checked again.
    """

    def __init__(self, split: SplitShards, shard: int) -> None:
        self._split, self._shard = split, shard
        self._tokens = split.length(shard)
        self._file = _OpenFile(split, shard)

    def __getitem__(self, part: slice) -> Tokens:
        """A copy of tokens `[start, stop)`; raises OutputError if the file is damaged by now."""
        start, stop, _ = part.indices(self._tokens)
        itemsize = self._split.dtype.itemsize
        begin, count = npy.HEADER_BYTES + start * itemsize, (stop - start) * itemsize
        file = self._file
        if not file.is_unchanged():
            file = OPEN_SHARDS.with_room(lambda: _OpenFile(self._split, self._shard))
            self._file = file
        content = file.read(begin, count)
        if len(content) < count:  # it was cut short after the comparison
            self._split.check(self._shard, begin + len(content), b"")
        return np.frombuffer(content, self._split.dtype)


class _OpenFile:
    """The file of a shard, open and checked. It closes after its last use."""

    def __init__(self, split: SplitShards, shard: int) -> None:
        name = split.shard_name(shard)
        self._path = split.storage.path(name)
        file = split.storage.open(name)
        weakref.finalize(self, file.close)
        self._descriptor = file.fileno()
        self._status = os.fstat(self._descriptor)
        self._header = self.read(0, npy.HEADER_BYTES)
        split.check(shard, self._status.st_size, self._header)

    def is_unchanged(self) -> bool:
        """Whether the path still leads to this file, with the same size and header."""
        try:
            status = os.stat(self._path)
        except OSError:
            return False
        is_same = os.path.samestat(status, self._status)
        if not is_same or status.st_size != self._status.st_size:
            return False
        return self.read(0, npy.HEADER_BYTES) == self._header

    def read(self, begin: int, count: int) -> bytes:
        """Bytes of the file, fewer at its end."""
        parts: list[bytes] = []
        try:
            # The system reads at most 2 GiB at once.
            while count and (part := os.pread(self._descriptor, count, begin)):
                parts.append(part)
                begin, count = begin + len(part), count - len(part)
        except OSError as error:
            raise OutputError(
                f"the shard {self._path} cannot be read: {error.strerror}. Check the disk, or copy "
                "the shard again from its origin."
            ) from error
        return b"".join(parts)


Shard = memoryview | ReadShard
Shelves = Sequence[Mapping[int, Any]]
Readers = Callable[[], Sequence[LocalShards]]
