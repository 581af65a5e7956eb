"""The tokens of a split as one stream, read from its shards wherever they are.

Also which of them are learned, and which are of redacted documents.
"""

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
from fineshards.loader.boundaries import Bools, joined_ranges
from fineshards.loader.far.cached_shards import CachedShards, CacheFolder
from fineshards.loader.far.remote_shards import RemoteShards
from fineshards.loader.sample_sources import Numbers, Samples
from fineshards.loader.tokens.local_shards import LocalShards, Shelf
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards.job.job import Job, job_name, load_redaction
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME

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
            tokens = self.join(some, some + out.shape[1])
            out[rows[at : at + many]] = tokens.reshape(-1, out.shape[1])

    def join(self, starts: Numbers, stops: Numbers) -> npt.NDArray[np.unsignedinteger]:
        """Tokens `[starts[i], stops[i])` of each i, one after the other, to read."""
        tokens: npt.NDArray[np.unsignedinteger]
        tokens = self._use(lambda files: files.join(*self._ranges(starts, stops)))
        return tokens

    def read(self, start: int, stop: int) -> npt.NDArray[np.unsignedinteger]:
        """Tokens [start, stop): a view of a mapped shard that has them all, else a copy."""
        if start == stop:
            return np.empty(0, self.split.dtype)
        tokens = None
        if isinstance(self.files(), LocalShards):
            place = self.place(start)
            tokens = self._use(lambda files: files.view(*place, stop - start))
        if tokens is None:
            tokens = self.join(np.array([start]), np.array([stop])).copy()
        return tokens

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
        """Abandons the reader, whose locks may stay held; the next use makes another."""
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


class RedactedTokens:
    """The tokens of all documents of a split that were redacted, in whatever generation.

    A redacted document is a run of EOTs in its old place. An EOT starts a document, so the tokens
    alone would make a document of each: the job records, which need no Arrow, say where they are.
    Also those of a redaction that is not finished, for its shards are replaced one by one. Records
    are read when they are first needed. Threads can share it.
    """

    def __init__(self, split: SplitShards) -> None:
        self._split = split
        # The generation after the latest, the versions of the records, and the ranges. Replaced
        # together, so that threads need no lock.
        self._records: tuple[int, list[str | None], Numbers] | None = None
        # The last shard that was opened when the versions were compared.
        self._compared: object = None

    def within(self, places: Numbers) -> Bools:
        """Which tokens are in a redacted document, behind its first one: bool, shape (n,).

        places: EOTs of the split that follow an EOT: of a redacted document, or of a document
        behind one without text.
        """
        within = _within((self._records or self._load())[2], places)
        rest = places[~within]
        # Two in a row: a document that has been redacted since the records were read.
        if (np.diff(rest) == 1).any() and self._is_old():
            within = _within(self._load()[2], places)
        return within

    def _is_old(self) -> bool:
        records, opened = self._records, self._split.last_opened()
        # In a store all reads of an opened shard are of one version, and a comparison is requests.
        if opened is self._compared and not self._split.storage.on_disk:
            return False
        if records is None or self._versions(records[0]) != records[1]:
            return True
        self._compared = opened
        return False

    def _load(self) -> tuple[int, list[str | None], Numbers]:
        storage, redacted = self._split.storage, list[tuple[str, int, int]]()
        generations = Manifest.load_finished(storage).generations
        following = len(generations) + 1
        versions = self._versions(following)
        for number, generation in enumerate(generations, 1):
            if generation.redacted:
                redacted += load_redaction(storage, number, generation).ranges
        job = Job.load(storage, following)
        if job is not None and job.redaction is not None:
            redacted += job.redaction.ranges
        ranges = sorted(
            {(begin, end) for split, begin, end in redacted if split == self._split.name}
        )
        records = following, versions, np.array(ranges, np.int64).reshape(-1, 2)
        self._records = records
        return records

    def _versions(self, following: int) -> list[str | None]:
        names = MANIFEST_NAME, job_name(following)
        return [self._split.storage.version(name) for name in names]


def _within(ranges: Numbers, places: Numbers) -> Bools:
    at = np.searchsorted(ranges[:, 0], places) - 1
    within: Bools = at >= 0
    within[within] = places[within] < ranges[at[within], 1]
    return within


class LearnedTokens:
    """The learned bits of a split's tokens. Threads can share it; it can be pickled.

    The masks beside the shards are read as shards of bytes: fetched, cached and checked as these.
    """

    def __init__(self, split: SplitShards, length: int, reading: Reading) -> None:
        masks = split.of_masks()
        self._begins = split.layout.begins(split.name)
        # The bits with which shards begin, and how many more there are before each than tokens.
        self._gaps = 8 * masks.layout.begins(split.name) - self._begins
        self._stream = TokenStream(masks, 0, -(-length // 8) + 1, reading)
        self._used = False

    def of(self, starts: Numbers, stops: Numbers) -> Bools:
        """Which tokens of ranges are learned, one range after the other."""
        self._used = True
        begins, ends = self._bits(starts, stops)
        low, high = begins // 8, -(-ends // 8)
        bits = np.unpackbits(self._stream.join(low, high).view(np.uint8), bitorder="little").data
        moved = 8 * (np.cumsum(high - low) - high)
        places = zip((begins + moved).tolist(), (ends + moved).tolist(), strict=True)
        return np.frombuffer(b"".join([bits[begin:end] for begin, end in places]), np.bool_)

    def request(self, starts: Numbers, stops: Numbers) -> None:
        """Asks far storage for the bits of ranges of tokens, once any were needed."""
        if self._used:
            begins, ends = self._bits(starts, stops)
            self._stream.request(begins // 8, -(-ends // 8))

    def expect(self, order: ReadingOrder) -> None:
        """Reads for an order from now on."""
        self._stream.expect(order)

    def close(self) -> None:
        """Closes all files. The next use reopens them."""
        self._stream.close()

    def _bits(self, starts: Numbers, stops: Numbers) -> tuple[Numbers, Numbers]:
        """Where the bits of ranges begin and end, among those of all masks.

        Those of a shard begin with a byte, so a range is cut where a shard begins.
        """
        first, last = (np.searchsorted(self._begins, at, "right") for at in (starts, stops - 1))
        shards, parts = joined_ranges(first, last + 1) - 1, last + 1 - first
        begins = np.maximum(np.repeat(starts, parts), self._begins[shards])
        ends = np.minimum(np.repeat(stops, parts), self._begins[shards + 1])
        return begins + self._gaps[shards], ends + self._gaps[shards]
