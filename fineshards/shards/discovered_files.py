"""The blocks of a job's source files, in its checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from msgspec import convert, to_builtins
from msgspec.structs import astuple

from fineshards.shards.checkpoint_file import read_json, write_json
from fineshards.shards.job.records import Block
from fineshards.storage.base import Storage

# Source files whose blocks are also stored together.
FILES_TOGETHER = 1000
# Small files of a store that are read at the same time.
_READ_THREADS = 32
_FILES_NAME = re.compile(r"(\d{5,})(?:-(\d{5,}))?\.json", re.ASCII)


class DiscoveredFiles:
    """The blocks of a job's source files. folder: of its checkpoints."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder

    def write_blocks(self, file: int, blocks: list[Block]) -> None:
        """Stores the blocks of a file."""
        write_json(self._storage, self.blocks_name(file), to_builtins(blocks))

    def read_blocks(self, file: int) -> list[Block] | None:
        """The blocks of a file, or None if they are not stored yet, or damaged."""
        stored = read_json(self._storage, self.blocks_name(file))
        blocks = convert(stored or [], list[Block])
        return None if stored is None or not _are_all(blocks, file) else blocks

    def write_blocks_together(
        self, part: int, blocks: dict[int, list[Block]], check: Callable[[int], None]
    ) -> None:
        """Stores the blocks of many files once more, so that `status` reads few objects.

        part: of the files `[part * FILES_TOGETHER, (part + 1) * FILES_TOGETHER)`. check: called
        before, with a file; raises OutputError if another job has the folder.
        """
        first = part * FILES_TOGETHER
        name = f"{self._folder}/files/{first:05d}-{first + FILES_TOGETHER - 1:05d}.json"
        if blocks and self._storage.size(name) is None:
            check(min(blocks))
            content = {file: [astuple(block) for block in blocks[file]] for file in sorted(blocks)}
            write_json(self._storage, name, content)

    def read_new_blocks(self, known: Collection[int]) -> dict[int, list[Block]]:
        """The blocks of all files whose blocks are stored, but of those that are known."""
        together, files = list[str](), set[int]()
        for name in self._storage.names(f"{self._folder}/files/"):
            match = _FILES_NAME.fullmatch(name.rpartition("/")[2])
            if match and match[2]:
                together.append(name)
            elif match:
                files.add(int(match[1]))
        files.difference_update(known)
        if len(files) < len(together):
            together.clear()
        with ThreadPoolExecutor(_READ_THREADS if self._storage.composes else 1) as pool:
            parts = pool.map(self._read_blocks_together, together)
            stored = {file: blocks for part in parts for file, blocks in part if file in files}
            files.difference_update(stored)
            found = zip(files, pool.map(self.read_blocks, files), strict=True)
            return stored | {file: blocks for file, blocks in found if blocks is not None}

    def _read_blocks_together(self, name: str) -> list[tuple[int, list[Block]]]:
        stored = read_json(self._storage, name) or {}
        found = [(int(file), [Block(*fields) for fields in of]) for file, of in stored.items()]
        return [(file, blocks) for file, blocks in found if _are_all(blocks, file)]

    def blocks_name(self, file: int) -> str:
        """The file of the blocks of a source file."""
        return f"{self._folder}/files/{file:05d}.json"


def _are_all(blocks: list[Block], file: int) -> bool:
    """Whether blocks are those of a file, in order."""
    places = [(block.file, block.index, block.blocks) for block in blocks]
    return places == [(file, index, len(blocks)) for index in range(len(blocks))]
