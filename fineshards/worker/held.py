"""Token blocks that a worker keeps in memory until their place in the shards is known. No Beam."""

from __future__ import annotations

from fineshards.shards.block_writer import BlockWriter
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.piece_plan import Place

# Bytes of tokens that a worker keeps, beside the block that it makes: those of one large block.
HELD_BYTES = 128 << 20
# As many small ones at most: their names, which go with each answer, never fill a pipe.
HELD_BLOCKS = 64


class HeldBlocks:
    """The blocks in a worker's memory, in the order in which they were made.

    most: bytes of tokens; 0 where no place is known before all blocks are counted.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._blocks: dict[TokenBlock, BlockWriter] = {}
        self.most = 0

    @property
    def names(self) -> set[TokenBlock]:
        """Which they are."""
        return {*self._blocks}

    def add(self, block: BlockWriter) -> None:
        """Takes a block that is made."""
        self._blocks[block.name] = block

    def settle(self, places: list[Place] | None) -> None:
        """Finishes blocks at their places, unless that is done; without places, all blocks."""
        if places is None:
            self.store()
        for place in places or ():
            if (block := self._blocks.pop(place.block, None)) is not None:
                self._checkpoints.stop_if_replaced(block.name.file)
                self._checkpoints.blocks.place(block, place)

    def store(self, most: int = 0) -> None:
        """Finishes the first blocks in files of their own, until few have under `most` bytes."""
        while (count := len(self._blocks)) and (
            count > HELD_BLOCKS or sum(block.bytes for block in self._blocks.values()) >= most
        ):
            block = self._blocks.pop(next(iter(self._blocks)))
            self._checkpoints.stop_if_replaced(block.name.file)
            self._checkpoints.blocks.store(block)
