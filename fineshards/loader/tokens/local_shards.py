"""Shards on a local disk, opened on first use: mapped into memory, or read by pread."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from io import BufferedReader
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from fineshards.errors import OutputError
from fineshards.loader.sample_sources import Numbers, Samples
from fineshards.loader.tokens.open_shards import OPEN_SHARDS, Shelf
from fineshards.loader.tokens.shard_contents import ShardContents
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards import npy

Tokens = npt.NDArray[np.unsignedinteger]

# More than a dataset's shards; see `fill_rows`.
PLACES = 1 << 40


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
        self._open = Shelf()

    def fill(
        self, out: Samples, rows: Sequence[int], shards: Sequence[int], offsets: Sequence[int]
    ) -> None:
        """Fills `out[rows[i]]` from token `offsets[i]` of shard `shards[i]`, and later shards.

        Raises OutputError if a shard is missing or damaged.
        """
        fill_rows(out, {0: self}, np.array(rows), np.array(shards), np.array(offsets))

    def _fill_across(self, row: Samples, shard: int, offset: int) -> None:
        filled = 0
        while filled < len(row):
            part = self._tokens(shard)[offset : offset + len(row) - filled]
            row[filled : filled + len(part)] = part
            filled += len(part)
            shard, offset = shard + 1, 0

    def view(self, shard: int, offset: int, count: int) -> Tokens | None:
        """Tokens `[offset, offset + count)` of a shard, to read; None if it has fewer."""
        tokens = self._tokens(shard)
        return tokens[offset : offset + count] if offset + count <= len(tokens) else None

    def close(self) -> None:
        """Releases all files; each is closed when its last use ends."""
        self._open.clear()

    def _tokens(self, shard: int) -> Tokens | ReadShard:
        found: Tokens | ReadShard | None = self._open.get(shard)
        if found is not None:
            return found
        with self._lock:
            # Another thread may have opened it in the meantime.
            found = self._open.get(shard)
            if found is None:
                found = OPEN_SHARDS.put(self._open, shard, lambda: self._load(shard))
            return found

    def _load(self, shard: int) -> Tokens | ReadShard:
        split, name = self._split, self._split.shard_name(shard)
        loaded: Tokens | ReadShard
        if self._mapped:
            content = split.storage.open_mapped(name)
            split.check(shard, len(content), content[: npy.HEADER_BYTES])
            tokens = split.length(shard)
            loaded = np.frombuffer(content, split.dtype, tokens, offset=npy.HEADER_BYTES)
        else:
            loaded = ReadShard(split, shard)
        if self._contents is not None:
            self._contents.check(shard)
        return loaded


def fill_rows(
    out: Samples,
    readers: Mapping[int, LocalShards],
    rows: Numbers,
    places: Numbers,
    offsets: Numbers,
) -> None:
    """Fills `out[rows[i]]` from a reader's shard and offset, as `LocalShards.fill` does.

    places: of each row, the reader's number times `PLACES` plus the shard. Rows are filled in their
    order, so that at most two shards are in use at a time.
    """
    order = np.argsort(places, kind="stable")
    width, last = out.shape[1], -1
    each = zip(rows[order].tolist(), places[order].tolist(), offsets[order].tolist(), strict=True)
    for row, place, offset in each:
        if place != last:
            reader, shard = readers[place // PLACES], place % PLACES
            # A call less for what most rows of a mixture need.
            tokens: Any = reader._open.get(shard)
            if tokens is None:
                tokens = reader._tokens(shard)
            end, last = len(tokens) - width, place
        if offset <= end:
            out[row] = tokens[offset : offset + width]
        else:
            reader._fill_across(out[row], shard, offset)


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
