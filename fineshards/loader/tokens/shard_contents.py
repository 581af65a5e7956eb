"""Compares shards with their checksums in the manifest, each once, before it is used."""

from __future__ import annotations

from typing import BinaryIO

from fineshards.errors import OutputError
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards.job.job import job_name
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.storage.base import READ_AHEAD


class ShardContents:
    """Checks whole shards of a split by size and CRC-32C; needs google_crc32c."""

    def __init__(self, split: SplitShards) -> None:
        self._split = split
        self._checked: set[int] = set()
        manifest = Manifest.load_finished(split.storage, split.generation)
        self._expected = {
            name: checksum for shard in manifest.shards for name, _, checksum in shard.files()
        }
        self._version: str | None = None
        self._latest = manifest

    def expected(self, shard: int) -> str:
        """The CRC-32C of a shard in its generation, in base64."""
        return self._expected[self._split.shard_name(shard)]

    def check(self, shard: int) -> None:
        """As `compare`, of the stored shard, but not a second time."""
        if shard not in self._checked:
            name = self._split.shard_name(shard)
            with self._split.storage.open(name, READ_AHEAD) as file:
                self.compare(shard, file)
            self._checked.add(shard)

    def compare(self, shard: int, file: BinaryIO) -> None:
        """Raises OutputError if a file is neither the shard of its generation nor the latest.

        That may have redacted documents, which the latest manifest knows.
        """
        from fineshards.storage.checksums import checksum_to_base64, file_checksum

        name = self._split.shard_name(shard)
        file.seek(0)  # one that was just written is at its end
        found = checksum_to_base64(file_checksum(file))
        if found != self._expected[name] and not self._is_latest(name, found):
            raise OutputError(
                f"the shard {self._split.storage.path(name)} has the crc32c {found}, expected "
                f"{self._expected[name]}: {self._explanation()}"
            )

    def _is_latest(self, name: str, found: str) -> bool:
        version = self._split.storage.version(MANIFEST_NAME)
        if version != self._version:
            self._latest, self._version = Manifest.load_finished(self._split.storage), version
        return any(
            (file, checksum) == (name, found)
            for shard in self._latest.shards
            for file, _, checksum in shard.files()
        )

    def _explanation(self) -> str:
        change = job_name(self._latest.generation + 1)
        if self._split.storage.size(change) is not None:
            return (
                f"another change of the dataset is not finished (see {change}). Finish it by its "
                "own command, or wait until it has ended."
            )
        return "it is damaged. Copy it again from its origin, or run fineshards repair."
