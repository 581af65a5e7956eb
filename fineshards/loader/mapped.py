"""Shards on a local disk, mapped into memory on first use."""

from __future__ import annotations

import resource
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fineshards.loader.sample_sources import Samples
from fineshards.loader.split_shards import SplitShards
from fineshards.shards import npy

# A mapped file holds a descriptor. At most half of the process's limit is used.
_MAX_OPEN = 4096


class MappedShards:
    """Reads token ranges from local shards. Threads can share a reader; processes cannot."""

    def __init__(self, split: SplitShards) -> None:
        self._split = split
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = allowed == resource.RLIM_INFINITY
        self._limit = _MAX_OPEN if unlimited else min(_MAX_OPEN, allowed // 2)
        self._lock = threading.Lock()
        self._open: dict[int, npt.NDArray[np.unsignedinteger]] = {}

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
        for at in np.argsort(shards, kind="stable").tolist():
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

    def view(self, shard: int, offset: int, count: int) -> npt.NDArray[np.unsignedinteger] | None:
        """Tokens `[offset, offset + count)` of a shard, read-only; None if it has fewer."""
        tokens = self._tokens(shard)
        return tokens[offset : offset + count] if offset + count <= len(tokens) else None

    def close(self) -> None:
        """Releases all files; each is unmapped when its last use ends."""
        with self._lock:
            self._open.clear()

    def _tokens(self, shard: int) -> npt.NDArray[np.unsignedinteger]:
        found = self._open.get(shard)
        if found is not None:
            return found
        with self._lock:
            # Another thread may have opened it in the meantime.
            if shard not in self._open:
                if len(self._open) >= self._limit:
                    # Evict the oldest: tracking the last use of each would cost more.
                    del self._open[next(iter(self._open))]
                self._open[shard] = self._map(shard)
            return self._open[shard]

    def _map(self, shard: int) -> npt.NDArray[np.unsignedinteger]:
        content = self._split.storage.open_mapped(self._split.shard_name(shard))
        self._split.check(shard, len(content), content[: npy.HEADER_BYTES])
        return np.frombuffer(
            content, self._split.dtype, self._split.length(shard), offset=npy.HEADER_BYTES
        )
