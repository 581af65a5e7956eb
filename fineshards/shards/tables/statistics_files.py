"""Statistics in the checkpoints of a job: by block, by source file, and by range of hosts.

    statistics/00003-00012.parquet             of the dataset's documents in a block; earlier than
                                               the token block
    statistics/hosts/00003-00005-of-00016.parquet
                                               hosts of a source file in a range of hashes, where
                                               they do not travel themselves

What the stages of a recipe count is stored with the blocks that they have judged (`verdicts.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa

from fineshards.errors import OutputError
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.curated_files import statistics_name
from fineshards.shards.job.records import Block, MetadataFile
from fineshards.shards.job.settings import Settings
from fineshards.shards.tables.statistics import (
    COUNTS,
    finished,
    from_bytes,
    hosts_by_range,
    merged,
    to_bytes,
    with_top_hosts,
)
from fineshards.shards.tables.verdicts import StageFiles
from fineshards.storage.checksums import checksum_to_base64, crc32c

# Bytes of source files whose hosts are added up at once: some million documents, whose hosts have
# about a hundred megabytes.
_RANGE_BYTES = 16 << 30

# Hosts of a source file in a range: the number of the file, and the hosts themselves as a table,
# where they travel.
Hosts = tuple[int, bytes | None]


class StatisticsFiles:
    """The statistics in the checkpoints of a job.

    inline: whether hosts travel themselves.
    """

    def __init__(self, checkpoints: Checkpoints, settings: Settings, inline: bool) -> None:
        self._checkpoints = checkpoints
        self._storage = checkpoints.storage
        self._settings = settings
        self._inline = inline

    def write_block(self, block: Block, table: pa.Table) -> None:
        """Stores what was counted of a block's documents in the dataset."""
        self._storage.write(self._block_name(block), to_bytes(table), durable=False)

    def has_block(self, block: Block) -> bool:
        """Whether the statistics of a block are stored, undamaged."""
        return self._read(self._block_name(block)) is not None

    def of_file(self, file: int) -> tuple[bytes, list[tuple[int, Hosts]]]:
        """The statistics of a source file without hosts, and its hosts by range: see `Hosts`."""
        recipe = self._settings.recipe
        stages = 0 if recipe is None else len(recipe.keyed) + 1
        tables = []
        for block in self._checkpoints.discovered.read_blocks(file) or []:
            name = self._block_name(block)
            tables.append(from_bytes(self._storage.read(name), self._storage.path(name), COUNTS))
            for number in range(stages):
                tables.append(StageFiles(self._checkpoints, number).statistics(block))
        ranges = self._ranges
        rest, hosts = hosts_by_range(merged(tables), ranges)
        found: list[tuple[int, Hosts]] = []
        for number, table in hosts:
            content = to_bytes(table)
            if not self._inline:
                name = self._hosts_name(file, number, ranges)
                self._storage.write(name, content, durable=False)
            found.append((number, (file, content if self._inline else None)))
        return to_bytes(rest), found

    def top_hosts(self, number: int, parts: Sequence[Hosts]) -> bytes:
        """The sum of the hosts of a range, with the top ones by themselves."""
        ranges = self._ranges
        total = COUNTS.empty_table()
        for file, content in parts:
            name = self._hosts_name(file, number, ranges)
            if content is None:
                content = self._storage.read(name)
            total = merged([total, from_bytes(content, name, COUNTS)])
        return to_bytes(with_top_hosts(total))

    def finish(self, content: bytes) -> MetadataFile:
        """Writes the statistics of the job's generation, from all counts."""
        recipe, generation = self._settings.recipe, self._checkpoints.job().generation
        steps = () if recipe is None else tuple(step.use for step in recipe.steps)
        name = statistics_name(generation)
        stored = to_bytes(finished(from_bytes(content, name, COUNTS), generation, steps))
        self._storage.write(name, stored)
        return MetadataFile(name, len(stored), checksum_to_base64(crc32c(stored)))

    @cached_property
    def _ranges(self) -> int:
        """The number of ranges of hosts, a power of two. It decides no byte of the result."""
        size = sum(file.size for file in self._checkpoints.job().new_files)
        return 1 << max(size // _RANGE_BYTES, 0).bit_length()

    def _read(self, name: str) -> pa.Table | None:
        content = self._storage.read_if_there(name)
        try:
            return None if content is None else from_bytes(content, name, COUNTS)
        except OutputError:
            return None

    def _block_name(self, block: Block) -> str:
        return self._name(f"{block.file:05d}-{block.index:05d}.parquet")

    def _hosts_name(self, file: int, number: int, ranges: int) -> str:
        return self._name(f"hosts/{file:05d}-{number:05d}-of-{ranges:05d}.parquet")

    def _name(self, name: str) -> str:
        return f"{self._checkpoints.folder}/statistics/{name}"


def added_up(contents: Sequence[bytes]) -> bytes:
    """The sum of statistics in which all counts of a host are in one row."""
    tables = (from_bytes(content, "statistics", COUNTS) for content in contents)
    return to_bytes(with_top_hosts(merged(tables)))
