"""Shards on a local disk, opened on first use: mapped into memory, or read by pread."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from io import BufferedReader
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from fineshards.errors import OutputError
from fineshards.loader.open_shards import OPEN_SHARDS, Shelf
from fineshards.loader.sample_sources import Samples
from fineshards.loader.shard_contents import ShardContents
from fineshards.loader.split_shards import SplitShards
from fineshards.shards import npy

Tokens = npt.NDArray[np.unsignedinteger]


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
        self,
        out: Samples,
        rows: Sequence[int],
        shards: Sequence[int],
        offsets: Sequence[int],
    ) -> None:
        """Fills `out[rows[i]]` from token `offsets[i]` of shard `shards[i]`, and later shards.

        Raises OutputError if a shard is missing or damaged.
        """
        width, last = out.shape[1], -1
        # Sorted by shard, so that at most two shards are in use at a time.
        for at in sorted(range(len(shards)), key=shards.__getitem__):
            shard, offset = shards[at], offsets[at]
            if shard != last:
                tokens, last = self._tokens(shard), shard
            if offset + width <= len(tokens):
                out[rows[at]] = tokens[offset : offset + width]
            else:
                self._fill_across(out[rows[at]], shard, offset)

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
            loaded = ReadShard(split, shard, split.storage.open(name))
        if self._contents is not None:
            self._contents.check(shard)
        return loaded


class ReadShard:
    """An open shard: a slice of it reads the tokens. Closes when it is no longer referenced."""

    def __init__(self, split: SplitShards, shard: int, file: BinaryIO) -> None:
        # Without the buffer, which would take more memory than the file's state.
        self._file = cast(BufferedReader, file).detach()
        self._path = split.storage.path(split.shard_name(shard))
        self._dtype, self._tokens = split.dtype, split.length(shard)
        first_bytes = os.pread(self._file.fileno(), npy.HEADER_BYTES, 0)
        split.check(shard, os.fstat(self._file.fileno()).st_size, first_bytes)

    def __del__(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._tokens

    def __getitem__(self, part: slice) -> Tokens:
        """A copy of tokens `[start, stop)`; raises OutputError if the file has become shorter."""
        start, stop, _ = part.indices(self._tokens)
        out = np.empty(stop - start, self._dtype)
        buffer, filled = out.view(np.uint8).data, 0
        position = npy.HEADER_BYTES + start * self._dtype.itemsize
        while filled < out.nbytes:  # the system reads at most 2 GiB at a time
            try:
                count = os.preadv(self._file.fileno(), [buffer[filled:]], position + filled)
            except OSError as error:
                raise OutputError(
                    f"the shard {self._path} cannot be read: {error.strerror}. Check the disk, or "
                    "copy the shard again from its origin."
                ) from error
            if count == 0:
                raise OutputError(
                    f"the shard {self._path} ends before byte {position + out.nbytes:,}: it was "
                    "cut short after it was opened. Copy it again from its origin, or run "
                    "fineshards repair."
                )
            filled += count
        return out
