"""A head start: a thread finishes the first blocks while Beam is imported.

Importing Beam and building the graph keep one core busy for most of a second, and the others idle.
The thread calls the same functions as the steps and leaves what an interrupted run would leave. It
begins no block after the step has asked for one, and the step waits for a block that the thread is
working on. An error here is not reported: the step meets it again and reports it.
"""

import threading
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import load_encoder
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.records import Block, SourceFile
from fineshards.shards.reports import BlockSummary
from fineshards.transforms.blocks import discover_file, finish_block
from fineshards.transforms.work import Work

# By the folder of their checkpoints: Beam copies the steps, even within the process.
_begun: dict[str, "HeadStart"] = {}


class HeadStart:
    """Works while its context lasts, or until the step asks for a block."""

    def __init__(self, work: Work) -> None:
        self._job_work = work
        self._checkpoints = work.checkpoints
        self._lock = threading.Lock()
        self._ended = False
        self._given_up = threading.Event()
        self._blocks: dict[Block, Future[tuple[BlockSummary, bool] | None]] = {}
        self._thread = threading.Thread(target=self._work, name="head start", daemon=True)

    def __enter__(self) -> None:
        _begun[_place(self._checkpoints)] = self
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._ended = True
        # After an error, wait for the record batch at work but not for the block, which may be a
        # large file. A thread in foreign code while the interpreter ends may abort the process.
        if error is not None:
            self._given_up.set()
        self._thread.join()
        # Another build of the same job in this process may have taken the place.
        if _begun.get(_place(self._checkpoints)) is self:
            del _begun[_place(self._checkpoints)]

    def take(self, block: Block) -> tuple[BlockSummary, bool] | None:
        """Returns what `finish_block` returned for a block, or None if it was not called."""
        with self._lock:
            self._ended = True
            future = self._blocks.pop(block, None)
        return None if future is None else future.result()

    def _work(self) -> None:
        with suppress(Exception):
            # All footers first, as in the graph: a wrong flag leaves no block behind.
            blocks = [
                (file, block)
                for file in self._checkpoints.job().files
                if not self._ended
                for block in discover_file(file, self._job_work)
            ]
            encoder = load_encoder(
                self._job_work.settings.tokenizer,
                self._checkpoints.storage,
                self._job_work.tokenizer_engine,
            )
            for file, block in blocks:
                if not self._finish(file, block, encoder):
                    return

    def _finish(self, file: SourceFile, block: Block, encoder: Encoder) -> bool:
        """Finishes a block; returns False if it is too late to begin one."""
        future: Future[tuple[BlockSummary, bool] | None] = Future()
        with self._lock:
            if self._ended:
                return False
            self._blocks[block] = future
        finished = None
        try:
            finished = finish_block(file, block, encoder, self._job_work, self._given_up)
        finally:
            future.set_result(finished)
        return True


def take(checkpoints: Checkpoints, block: Block) -> tuple[BlockSummary, bool] | None:
    """Returns what a head start made of a block, as `finish_block` does, or None."""
    head_start = _begun.get(_place(checkpoints))
    return None if head_start is None else head_start.take(block)


def _place(checkpoints: Checkpoints) -> str:
    return checkpoints.storage.path(checkpoints.folder)
