"""What one process needs for the tasks of a job, and the token blocks that it keeps. No Beam."""

from functools import cached_property

from fineshards.encoders.encoder import Encoder
from fineshards.shards.block_writer import BlockWriter
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.piece_plan import Place
from fineshards.sources.places.hub_token import provide_token
from fineshards.worker.documents import document_encoder
from fineshards.worker.judging import Judging
from fineshards.worker.work import Work

# Bytes of tokens that a worker keeps besides the block that it makes: those of one large block.
HELD_BYTES = 128 << 20
# As many small ones at most: their names go with each answer.
HELD_BLOCKS = 64


class Worker:
    """What one process needs for the tasks of a job; loaded when a task first needs it.

    alone: whether no other run of the job writes unfinished shards.
    """

    def __init__(self, work: Work, alone: bool = False) -> None:
        provide_token(work.hf_token_secret)
        self.work = work
        self.alone = alone
        self.held = HeldBlocks(work.checkpoints)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder of the job."""
        work = self.work
        return document_encoder(work.settings, work.checkpoints.storage, work.tokenizer_engine)

    @cached_property
    def judging(self) -> Judging | None:
        """The steps of the job's recipe, if it has one."""
        return None if self.work.settings.recipe is None else Judging(self.work)

    @property
    def recipe(self) -> Judging:
        """The steps of the job's recipe, which it has."""
        assert self.judging is not None
        return self.judging

    @cached_property
    def paths(self) -> list[str]:
        """The paths of the source files, by index."""
        return [file.name for file in self.work.checkpoints.job().files]


class HeldBlocks:
    """Token blocks in a worker's memory, as made, until their place in the shards is known.

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
