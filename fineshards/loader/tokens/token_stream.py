"""The tokens of a split as one stream, read from its shards wherever they are."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fineshards.errors import FineshardsError, UsageError, quoted
from fineshards.extras import require
from fineshards.loader.arguments import checked_integer
from fineshards.loader.far.cached_shards import CachedShards, CacheFolder
from fineshards.loader.far.remote_shards import RemoteShards
from fineshards.loader.sample_sources import Numbers, Samples
from fineshards.loader.tokens.local_shards import LocalShards, Shelf
from fineshards.loader.tokens.split_shards import SplitShards

# Bytes of samples that are joined, or asked for, at once.
_TOGETHER = 1 << 22


class ReadingOrder(NamedTuple):
    """The order of reading, as BatchLoader has it."""

    shuffle: bool
    shuffle_shards: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """How shards are to be read: arguments of TokenDataset, checked."""

    mapped: bool
    folder: CacheFolder | None

    @classmethod
    def checked(
        cls,
        split: SplitShards,
        mapped: bool,
        cache_folder: str | os.PathLike[str] | None,
        cache_folder_bytes: int | None,
    ) -> Reading:
        """The arguments; raises UsageError if one is wrong, OutputError for a useless folder."""
        folder = None
        if cache_folder is not None:
            require("google_crc32c", "google-crc32c", "gcs")
            folder = _folder(split, cache_folder, cache_folder_bytes)
        elif cache_folder_bytes is not None:
            raise UsageError("cache_folder_bytes is set, but cache_folder is not. Set both.")
        return cls(mapped, folder)

    def reader(self, split: SplitShards, order: ReadingOrder | None) -> LocalShards | RemoteShards:
        """A reader of a split's shards for an order."""
        if self.folder is not None:
            in_order = order is not None and not order.shuffle
            return CachedShards(split, self.folder, in_order, self.mapped)
        if split.storage.on_disk:
            return LocalShards(split, self.mapped)
        return RemoteShards(split)

    def warning(self, split: SplitShards, order: ReadingOrder) -> str:
        """Why the cache folder is too small for an order; an empty string if it is not."""
        together = (order.shuffle_shards or split.shards) if order.shuffle else 0
        needed = min(together + 1, split.shards) * split.file_bytes(0)
        if self.folder is None or needed <= self.folder.limit:
            return ""
        return (
            f"the order reads at random from {needed:,} bytes of shards, and the cache folder "
            f"{self.folder.path} may hold {self.folder.limit:,}: shards would be copied many "
            f"times. Set cache_folder_bytes={needed} or more, or a smaller shuffle_shards, or "
            "leave cache_folder out."
        )


def _folder(split: SplitShards, path: str | os.PathLike[str], limit: int | None) -> CacheFolder:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise UsageError(f"cache_folder is {quoted(path)}; give a folder on a local disk.")
    if limit is not None:
        limit = checked_integer("cache_folder_bytes", limit, 1)
    folder = CacheFolder.open(os.fspath(path), limit)
    if folder.limit < split.file_bytes(0):
        raise UsageError(
            f"the cache folder {folder.path} may hold {folder.limit:,} bytes, but one shard has "
            f"{split.file_bytes(0):,}. Set a larger cache_folder_bytes, choose a disk with more "
            "room, or leave cache_folder out."
        )
    return folder


class TokenStream:
    """The tokens of a split from token `begin` on, which is token 0 here.

    Threads can share it. It can be pickled and used after a fork.

    width: tokens per sample with its last label.
    """

    def __init__(self, split: SplitShards, begin: int, width: int, reading: Reading) -> None:
        self.begin = begin
        self.split = split
        self._reading = reading
        self._sample_bytes = width * split.dtype.itemsize
        self._order: ReadingOrder | None = None
        self._process: int | None = None
        self._reader: LocalShards | RemoteShards | None = None
        # Of its open shards, whose use needs no lock: also those that a fork has inherited.
        self.shelf = Shelf()

    @property
    def is_local(self) -> bool:
        """Whether the shards are read from a local disk in place: `files` is a LocalShards."""
        return self._reading.folder is None and self.split.storage.on_disk

    def place(self, token: int) -> tuple[int, int]:
        """The shard in which a token is, and its offset there."""
        return self.split.layout.place(self.split.name, self.begin + token)

    def fill(self, out: Samples, rows: Numbers, starts: Numbers) -> None:
        """Fills `out[rows[i]]` with tokens from `starts[i]` on."""
        many = max(1, _TOGETHER // self._sample_bytes)
        for at in range(0, len(starts), many):
            some = starts[at : at + many]
            found = self.join(some, some + out.shape[1]).reshape(-1, out.shape[1])
            out[rows[at : at + many]] = found

    def join(self, starts: Numbers, stops: Numbers) -> npt.NDArray[np.unsignedinteger]:
        """Tokens `[starts[i], stops[i])` of each i, one after the other, to read."""
        found: npt.NDArray[np.unsignedinteger]
        found = self._use(lambda files: files.join(*self._ranges(starts, stops)))
        return found

    def read(self, start: int, stop: int) -> npt.NDArray[np.unsignedinteger]:
        """Tokens [start, stop): a view of a mapped shard that has them all, else a copy."""
        if start == stop:
            return np.empty(0, self.split.dtype)
        found = None
        if isinstance(self.files(), LocalShards):
            place = self.place(start)
            found = self._use(lambda files: files.view(*place, stop - start))
        if found is None:
            found = self.join(np.array([start]), np.array([stop])).copy()
        return found

    def request(self, starts: Numbers, stops: Numbers) -> None:
        """Asks far storage for tokens that will be joined, without waiting for them."""
        if hasattr(self.files(), "request"):
            self._use(lambda files: files.request(*self._ranges(starts, stops)))

    def expect(self, order: ReadingOrder) -> None:
        """Reads for an order from now on; warns if the cache folder is too small for it."""
        if order == self._order:
            return
        warning = self._reading.warning(self.split, order)
        if warning:
            # The line that made the BatchLoader.
            warnings.warn(f"{self.split.storage.root}: {warning}", stacklevel=5)
        self._order = order
        # Shards are copied in its order.
        if hasattr(self._reader, "request"):
            self.close()

    def files(self) -> LocalShards | RemoteShards:
        """The reader of the shards in this process."""
        # A fork inherits its parent's locks, but not the threads that would release them.
        reader = self._reader
        if reader is None or self._process != os.getpid():
            reader = self._reading.reader(self.split, self._order)
            self._reader, self._process = reader, os.getpid()
            if isinstance(reader, LocalShards):
                self.shelf = reader.shelf
        return reader

    def drop(self) -> None:
        """Leaves the reader alone, whose locks may be held for ever; the next use makes another."""
        self._reader, self.shelf = None, Shelf()

    def close(self) -> None:
        """Closes all files. The next use reopens them."""
        if self._process == os.getpid() and self._reader is not None:
            self._reader.close()
        self._process = None
        self.drop()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None, "_process": None, "shelf": Shelf()}

    def _ranges(self, starts: Numbers, stops: Numbers) -> tuple[list[int], list[int], list[int]]:
        """Of each range, the shard in which it begins, and where it begins and ends from there."""
        shards, begins = self.split.layout.places(self.split.name, self.begin + starts)
        return shards.tolist(), begins.tolist(), (begins + stops - starts).tolist()

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
