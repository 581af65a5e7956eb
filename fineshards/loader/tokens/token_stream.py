"""The tokens of a split as one stream, read from its shards wherever they are."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fineshards.errors import FineshardsError
from fineshards.loader.far.clients import RemoteShards
from fineshards.loader.far.sizes import ReadingOrder
from fineshards.loader.sample_sources import Numbers, Samples
from fineshards.loader.tokens.local_shards import LocalShards
from fineshards.loader.tokens.shard_readers import Reading
from fineshards.loader.tokens.split_shards import SplitShards


class TokenStream:
    """The tokens of a split from token `begin` on, which is token 0 here.

    Threads can share it. It can be pickled and used after a fork.

    width: tokens per sample with its last label.
    """

    def __init__(self, split: SplitShards, begin: int, width: int, reading: Reading) -> None:
        self.begin = begin
        self._split = split
        self._reading = reading
        self._sample_bytes = width * split.dtype.itemsize
        self._order: ReadingOrder | None = None
        self._process: int | None = None
        self._reader: LocalShards | RemoteShards | None = None

    @property
    def is_local(self) -> bool:
        """Whether the shards are read from a local disk in place: `files` is a LocalShards."""
        return self._reading.folder is None and self._split.storage.supports_mmap

    def place(self, token: int) -> tuple[int, int]:
        """The shard in which a token is, and its offset there."""
        return self._split.layout.place(self._split.name, self.begin + token)

    def places(self, tokens: Numbers) -> tuple[Numbers, Numbers]:
        """As `place`, of many tokens: int64."""
        return self._split.layout.places(self._split.name, self.begin + tokens)

    def fill(self, out: Samples, rows: Sequence[int], starts: Iterable[int]) -> None:
        """Fills `out[rows[i]]` with tokens from `starts[i]` on."""
        places = self._places(starts)
        self._use(lambda files: files.fill(out, rows, *places))

    def read(self, start: int, stop: int) -> npt.NDArray[np.unsignedinteger]:
        """Tokens [start, stop): a view of a mapped shard that has them all, else a copy."""
        if start == stop:
            return np.empty(0, self._split.dtype)
        shard, offset = self.place(start)
        found = None
        if isinstance(self.files(), LocalShards):
            found = self._use(lambda files: files.view(shard, offset, stop - start))
        if found is None:
            found = np.empty(stop - start, self._split.dtype)
            self._use(lambda files: files.fill(found[None], [0], [shard], [offset]))
        return found

    def request(self, starts: Iterable[int], width: int) -> None:
        """Asks far storage for `width` tokens from each start on, without waiting for them."""
        if hasattr(self.files(), "request"):
            places = self._places(starts)
            self._use(lambda files: files.request(*places, width))

    def expect(self, order: ReadingOrder) -> None:
        """Reads for an order from now on; warns if the arguments cannot work for it."""
        if order == self._order:
            return
        warning = self._reading.warning(self._split, self._sample_bytes, order)
        if warning:
            # The line that made the BatchLoader.
            warnings.warn(f"{self._split.storage.root}: {warning}", stacklevel=5)
        self._order = order
        # Readers of far storage depend on the order.
        if hasattr(self._reader, "request"):
            self.close()

    def files(self) -> LocalShards | RemoteShards:
        """The reader of the shards in this process."""
        # A fork inherits its parent's locks, but not the threads that would release them.
        reader = self._reader
        if reader is None or self._process != os.getpid():
            reader = self._reading.reader(self._split, self._sample_bytes, self._order)
            self._reader, self._process = reader, os.getpid()
        return reader

    def drop(self) -> None:
        """Leaves the reader alone, whose locks may be held for ever; the next use makes another."""
        self._reader = None

    def close(self) -> None:
        """Closes all files. The next use reopens them."""
        if self._process == os.getpid() and self._reader is not None:
            self._reader.close()
        self._process = self._reader = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None, "_process": None}

    def _places(self, starts: Iterable[int]) -> tuple[list[int], list[int]]:
        """The shard in which each token is, and its offset there."""
        shards, offsets = self.places(np.fromiter(starts, np.int64))
        return shards.tolist(), offsets.tolist()

    def _use(self, action: Callable[[Any], Any]) -> Any:
        """What an action on the reader returns."""
        try:
            return action(self.files())
        except FineshardsError:
            raise
        except BaseException:
            # The handler of a signal may have raised between any two steps of the reader.
            self.drop()
            raise
