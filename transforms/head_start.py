"""A head start: the first blocks, finished by a thread while Beam is imported.

Beam and the graph keep one core of a machine busy for most of a second, and the others idle. The
thread does what the steps will do, by the same functions, and leaves what an interrupted run would
have left. It begins no other block once the step asks for one, and the step does not begin a block
that the thread is at work on. What goes wrong here goes wrong there once more, where it is told.
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

# By the folder of their checkpoints: Beam hands the steps over as copies, within the process too.
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
        # An error does not wait for a block, which may be a large file, but for the batch at work:
        # a thread that is in foreign code while the interpreter ends may abort the process.
        if error is not None:
            self._given_up.set()
        self._thread.join()
        del _begun[_place(self._checkpoints)]

    def take(self, block: Block) -> tuple[BlockSummary, bool] | None:
        """What `finish_block` gave for a block, or None if it is still to be called."""
        with self._lock:
            self._ended = True
            future = self._blocks.pop(block, None)
        return None if future is None else future.result()

    def _work(self) -> None:
        with suppress(Exception):
            # All footers first, as in the graph: a mistake in the flags leaves no block behind.
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
        """Finishes a block; False if it is too late to begin one."""
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
    """What a head start made of a block, as `finish_block` gives it; None if it did not."""
    head_start = _begun.get(_place(checkpoints))
    return None if head_start is None else head_start.take(block)


def _place(checkpoints: Checkpoints) -> str:
    return checkpoints.storage.path(checkpoints.folder)
