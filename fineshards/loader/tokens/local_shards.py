"""Shards on a local disk, opened on first use: mapped into memory, or read by pread."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence, Set
from io import BufferedReader
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fineshards.errors import OutputError
from fineshards.loader.sample_sources import Samples
from fineshards.loader.tokens.open_shards import OPEN_SHARDS, Shelf
from fineshards.loader.tokens.shard_contents import ShardContents
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards import npy

Tokens = npt.NDArray[np.unsignedinteger]

# Rows copied together, so that they stay in the processor's cache.
_ROWS = 32


class OpenShard(NamedTuple):
    """A shard in use.

    whole: its tokens. data: the same, of which a part takes the least time.
    """

    whole: Tokens | ReadShard
    data: memoryview | ReadShard


class LocalShards:
    """Reads token ranges from local shards. Threads can share a reader; processes cannot.

    mapped: whether to map shards. A mapped shard that is cut short kills the process by SIGBUS when
    it is read; one that is not mapped raises OutputError. contents: compares each shard with its
    checksum before its first use; None for no comparison.
    """

    def __init__(
        self, split: SplitShards, mapped: bool = True, contents: ShardContents | None = None
    ) -> None:
        self.dtype = split.dtype
        self._split = split
        self._mapped = mapped
        self._contents = contents
        self._lock = threading.Lock()
        self._open = Shelf()

    def fill(
        self, out: Samples, rows: Sequence[int], shards: Sequence[int], offsets: Sequence[int]
    ) -> None:
        """Fills `out[rows[i]]` from token `offsets[i]` of shard `shards[i]`, and later shards.

        Raises OutputError if a shard is missing or damaged.
        """
        if isinstance(rows, range):
            fill_rows(out[rows.start : rows.stop], {0: self}, [0] * len(rows), shards, offsets)
        else:
            found = np.empty((len(rows), out.shape[1]), out.dtype)
            fill_rows(found, {0: self}, [0] * len(rows), shards, offsets)
            out[rows] = found

    def view(self, shard: int, offset: int, count: int) -> Tokens | None:
        """Tokens `[offset, offset + count)` of a shard, to read; None if it has fewer."""
        tokens = self._tokens(shard).whole
        return tokens[offset : offset + count] if offset + count <= len(tokens) else None

    def close(self) -> None:
        """Releases all files; each is closed when its last use ends."""
        self._open.clear()

    def _tokens(self, shard: int) -> OpenShard:
        found: OpenShard | None = self._open.get(shard)
        if found is not None:
            return found
        with self._lock:
            # Another thread may have opened it in the meantime.
            found = self._open.get(shard)
            if found is None:
                found = OPEN_SHARDS.put(self._open, shard, lambda: self._load(shard))
            return found

    def _load(self, shard: int) -> OpenShard:
        split, name = self._split, self._split.shard_name(shard)
        if self._mapped:
            content = split.storage.open_mapped(name)
            split.check(shard, len(content), content[: npy.HEADER_BYTES])
            tokens = np.frombuffer(
                content, split.dtype, split.length(shard), offset=npy.HEADER_BYTES
            )
            loaded = OpenShard(tokens, tokens.data)
        else:
            read = ReadShard(split, shard)
            loaded = OpenShard(read, read)
        if self._contents is not None:
            self._contents.check(shard)
        return loaded


def fill_rows(
    out: Samples,
    readers: Mapping[int, LocalShards],
    which: Sequence[int],
    shards: Sequence[int],
    offsets: Sequence[int],
) -> None:
    """Fills `out[i]` from the reader `which[i]`, as `LocalShards.fill` does."""
    width = out.shape[1]
    dtypes = {each.dtype for each in readers.values()}
    opened = {number: each._open for number, each in readers.items()}
    parts: list[Any] = []
    for row, (number, shard, offset) in enumerate(zip(which, shards, offsets, strict=True)):
        if row and row % _ROWS == 0:
            join(out[row - _ROWS : row], parts, dtypes)
            parts = []
        missing = width
        while missing:
            found = opened[number].get(shard)
            if found is None:
                # A part keeps its shard open; copies of the parts let the shards close.
                parts = [np.array(part) for part in parts]
                found = readers[number]._tokens(shard)
            part = found.data[offset : offset + missing]
            parts.append(part)
            missing -= len(part)
            shard, offset = shard + 1, 0
    if parts:
        join(out[(len(out) - 1) // _ROWS * _ROWS :], parts, dtypes)


def join(rows: Samples, parts: Sequence[Any], dtypes: Set[np.dtype[Any]]) -> None:
    """Fills rows with parts of these dtypes, one after the other.

    Joining them and converting all at once takes less time than assigning each to its row.
    """
    dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
    if len(dtypes) > 1:
        parts = [np.asarray(part, dtype) for part in parts]
    rows[...] = np.frombuffer(b"".join(parts), dtype).reshape(rows.shape)


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
