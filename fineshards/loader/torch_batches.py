"""Batches for torch's DataLoader and torchdata's StatefulDataLoader, with any worker count."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import IterableDataset, get_worker_info

from fineshards.errors import UsageError
from fineshards.loader.arguments import checked_integer
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.steps import Position


class TorchBatches(IterableDataset[Any]):
    """The batches of a BatchLoader as tensors, for `DataLoader(batch_size=None)`.

    Each of n workers reads every n-th batch, and DataLoader takes from the workers in turn, so the
    order is the same for every n. An iteration begins at the loader's position and does not move
    it: save `loader.state_dict(steps)`, where steps counts the batches taken. For a loader with
    `epochs`, call `set_epoch` before each epoch, as trainers do; workers that persist see it, too.
    They do not see that the loader was moved, so load its state before the first iteration.
    After an error in a worker the iteration ends; without workers the same batch is tried again.
    StatefulDataLoader saves the position itself; it can be restored only with the same number of
    workers.

    Args:
        loader: The BatchLoader; its `prefetch` is not used.

    Yields:
        What the loader returns, with tensors in place of arrays. Tokens of dtype uint16 and uint32
        become int64, which torch can compute with; other dtypes are not copied.
    """

    def __init__(self, loader: BatchLoader) -> None:
        self._loader = loader
        # The epoch, or -1. In shared memory, for workers that persist keep their copy of this.
        self._epoch = torch.tensor(-1).share_memory_()
        # Batches this worker has returned in this iteration, and where the next iteration begins.
        self._given = 0
        self._begin = 0

    def set_epoch(self, epoch: int) -> None:
        """Lets the next iteration be that of an epoch, counted in the loader's passes from 0.

        The epoch of the loader's position begins at that position, a later one at its first batch.

        Raises:
            UsageError: The epoch is before the loader's position, or the loader has no end.
        """
        number = checked_integer("epoch", epoch, 0)
        self._position(number)
        self._epoch.fill_(number)

    def __iter__(self) -> Iterator[Any]:
        self._given, self._begin = self._begin, 0
        return _Iteration(self, int(self._epoch))

    def batches_from(self, epoch: int, given: int) -> Iterator[Any]:
        """This worker's batches of an epoch, or from the loader's position on if it is -1.

        given: how many of them are left out.
        """
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        batches = self._loader.batches
        start = batches.steps.advance(self._position(epoch), number + given * workers)
        return batches.iterate_from(start, workers)

    def _position(self, epoch: int) -> Position:
        """Where an epoch begins; -1 is the one of the loader."""
        steps, position = self._loader.batches.steps, self._loader.position
        if epoch < 0:
            return position
        if steps.length is None:
            return position  # one endless epoch, whatever the trainer calls it
        here = position.begin // steps.length
        if epoch < here:
            raise UsageError(
                f"epoch {epoch} was asked for, but the loader is in epoch {here}. Load an "
                "earlier state, or call restart()."
            )
        for _ in range(epoch - here):
            following = steps.next_pass(steps.advance(position, steps.length))
            if following is None:
                raise UsageError("the mixture has one pass; there is no further epoch.")
            position = following
        return position

    def state_dict(self) -> dict[str, Any]:
        """This worker's position; StatefulDataLoader calls this."""
        return {"loader": self._loader.state_dict(), "given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iteration start at a saved position.

        Raises UsageError if this is no such state, or belongs to another order of samples.
        """
        if not isinstance(state, dict) or set(state) != {"loader", "given"}:
            raise UsageError("this is not the state of TorchBatches. Pass what state_dict() gave.")
        given = checked_integer("given in the state", state["given"], 0)
        self._loader.load_state_dict(state["loader"])
        self._given = self._begin = given


class _Iteration:
    """An iteration over a worker's batches; after an exception it goes on with the same batch.

    An iterator of batches is used only where the count of returned ones says that it is. So what
    the handler of a signal leaves by an exception is dropped.
    """

    def __init__(self, source: TorchBatches, epoch: int) -> None:
        self._source, self._epoch = source, epoch
        self._items: tuple[int, Iterator[Any]] | None = None

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        worker = get_worker_info()
        if worker is None:
            return self._next()
        try:
            return self._next()
        except Exception as error:
            if isinstance(error, StopIteration):
                raise
            return _LastBatch(sys.exc_info(), f"in DataLoader worker process {worker.id}")

    def _next(self) -> Any:
        source, taken = self._source, self._items
        given, self._items = source._given, None
        if taken is None or taken[0] != given:
            taken = given, source.batches_from(self._epoch, given)
        batch = next(taken[1])
        if isinstance(batch, dict):
            batch = {key: _tensor(value) for key, value in batch.items()}
        else:
            batch = _tensor(batch)
        self._items = given + 1, taken[1]
        source._given = given + 1
        return batch


class _LastBatch(ExceptionWrapper):  # type: ignore[misc]
    """An error that takes a batch's place; DataLoader raises it, as it does its own."""

    def reraise(self) -> None:
        """Ends the iteration: other workers have read later batches, which must not follow."""
        reader = sys._getframe(1).f_locals.get("self")
        if hasattr(reader, "_rcvd_idx") and hasattr(reader, "_send_idx"):
            reader._rcvd_idx = reader._send_idx
        super().reraise()


def _tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return torch.from_numpy(value.astype(np.int64) if value.dtype.kind == "u" else value)
