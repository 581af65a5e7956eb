"""Which reader a dataset's shards get: mapped files, requests to far storage, or a local cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from fineshards.errors import UsageError, quoted
from fineshards.extras import require
from fineshards.loader.arguments import checked_integer
from fineshards.loader.far.cache_folder import CacheFolder
from fineshards.loader.far.remote_shards import RemoteShards
from fineshards.loader.tokens.local_shards import LocalShards
from fineshards.loader.tokens.shard_contents import ShardContents
from fineshards.loader.tokens.split_shards import SplitShards


class ReadingOrder(NamedTuple):
    """The order of reading, as BatchLoader has it."""

    shuffle: bool
    shuffle_shards: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """How shards are to be read: arguments of TokenDataset, checked."""

    mapped: bool
    check: bool
    folder: CacheFolder | None

    @classmethod
    def checked(
        cls,
        split: SplitShards,
        mapped: bool,
        check: str,
        cache_folder: str | os.PathLike[str] | None,
        cache_folder_bytes: int | None,
    ) -> Reading:
        """The arguments; raises UsageError if one is wrong, OutputError for a useless folder."""
        if check not in ("header", "open"):
            raise UsageError(f"check is {quoted(check)}; choose 'header' or 'open'.")
        if check == "open" or cache_folder is not None:
            require("google_crc32c", "google-crc32c", "gcs")
        if check == "open" and cache_folder is None and not split.storage.on_disk:
            raise UsageError(
                f"check='open' reads whole shards, which must be on a local disk, but the dataset "
                f"is {split.storage.root}. Set cache_folder, or leave check out."
            )
        folder = None
        if cache_folder is not None:
            folder = _folder(split, cache_folder, cache_folder_bytes)
        elif cache_folder_bytes is not None:
            raise UsageError("cache_folder_bytes is set, but cache_folder is not. Set both.")
        return cls(mapped, check == "open", folder)

    def reader(self, split: SplitShards, order: ReadingOrder | None) -> LocalShards | RemoteShards:
        """A reader of a split's shards for an order."""
        if self.folder is not None:
            # Imported here because it needs google_crc32c, which reading in general does not.
            from fineshards.loader.far.cached_shards import CachedShards

            in_order = order is not None and not order.shuffle
            return CachedShards(split, self.folder, self.mapped, self.check, in_order)
        if split.storage.on_disk:
            contents = ShardContents(split) if self.check else None
            return LocalShards(split, self.mapped, contents)
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
