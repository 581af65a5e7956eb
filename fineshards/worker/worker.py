"""What one process needs for the tasks of a job. No Beam."""

from __future__ import annotations

from functools import cached_property

from fineshards.encoders.encoder import Encoder
from fineshards.sources.places.hub_token import provide_token
from fineshards.worker.document_encoder import document_encoder
from fineshards.worker.held import HeldBlocks
from fineshards.worker.judging import Judging
from fineshards.worker.work import Work


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
