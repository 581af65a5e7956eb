"""The blocks of a job's source files, in its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from fineshards.shards.job.records import Block
from fineshards.shards.ledger import Kind, Ledger
from fineshards.storage.base import Storage

# Source files whose blocks are also stored together.
FILES_TOGETHER = 1000
# Small files of a store that are read at the same time.
_READ_THREADS = 32
_FILES = Kind("files", list[Block])
_TOGETHER = Kind("files", dict[int, list[Block]])


class DiscoveredFiles:
    """The blocks of a job's source files. folder: of its checkpoints."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._ledger = Ledger(storage, folder)

    def write_blocks(self, file: int, blocks: list[Block]) -> None:
        """Stores the blocks of a file."""
        self._ledger.put(_FILES, _key(file), (), blocks)

    def read_blocks(self, file: int) -> list[Block] | None:
        """The blocks of a file, or None if they are not stored yet, or damaged."""
        return self._ledger.get(_FILES, _key(file))

    def write_blocks_together(
        self, part: int, blocks: dict[int, list[Block]], check: Callable[[int], None]
    ) -> None:
        """Stores the blocks of many files once more, so that `status` reads few objects.

        part: of the files `[part * FILES_TOGETHER, (part + 1) * FILES_TOGETHER)`. check: called
        before, with a file; raises OutputError if another job has the folder.
        """
        first = part * FILES_TOGETHER
        key = f"{_key(first)}-{_key(first + FILES_TOGETHER - 1)}"
        if blocks and self._storage.size(self._ledger.name(_TOGETHER, key)) is None:
            check(min(blocks))
            self._ledger.put(_TOGETHER, key, (), dict(sorted(blocks.items())))

    def read_new_blocks(self, known: Collection[int]) -> dict[int, list[Block]]:
        """The blocks of all files whose blocks are stored, but of those that are known."""
        keys = self._ledger.list(_FILES)
        together = [key for key in keys if "-" in key]
        files = {int(key) for key in keys if key.isdecimal()}.difference(known)
        if len(files) < len(together):
            together.clear()
        with ThreadPoolExecutor(1 if self._storage.on_disk else _READ_THREADS) as pool:
            parts = pool.map(lambda key: self._ledger.get(_TOGETHER, key) or {}, together)
            stored = {file: part[file] for part in parts for file in files.intersection(part)}
            files.difference_update(stored)
            found = zip(files, pool.map(self.read_blocks, files), strict=True)
            return stored | {file: blocks for file, blocks in found if blocks is not None}

    def blocks_name(self, file: int) -> str:
        """The file of the blocks of a source file."""
        return self._ledger.name(_FILES, _key(file))


def _key(file: int) -> str:
    return f"{file:05d}"
