"""Batches for torch's DataLoader and torchdata's StatefulDataLoader, with any worker count."""

from __future__ import annotations

import sys
import warnings
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
    `epochs`, call `set_epoch` before each epoch, as trainers do; persistent workers see it too.
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
        # The epoch, or -1, and the step at which the last iteration began, or -1. In shared memory,
        # because workers have copies of this object.
        self._epoch, self._last = torch.full((2,), -1).share_memory_()
        # The last iteration of this process, and how many batches the next one leaves out.
        self._iteration: _Iteration | None = None
        self._begin = 0

    def set_epoch(self, epoch: int) -> None:
        """Starts the next iteration at an epoch, counted in the loader's passes from 0.

        The epoch of the loader's position begins at that position, a later one at its first batch.

        Raises:
            UsageError: The epoch is before the loader's position, or the loader has no end.
        """
        number = checked_integer("epoch", epoch, 0)
        self._position(number)
        self._epoch.fill_(number)
        if self._loader.batches.steps.length is not None:
            self._last.fill_(-1)

    def __iter__(self) -> Iterator[Any]:
        begin = self._position(int(self._epoch))
        self._iteration, self._begin = _Iteration(self._loader, begin, self._begin, self._last), 0
        return self._iteration

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_iteration": None}

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
        return {
            "loader": self._loader.state_dict(),
            "given": self._begin if self._iteration is None else self._iteration.given,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iteration start at a saved position.

        Raises UsageError if this is not such a state, or belongs to another order of samples.
        """
        if not isinstance(state, dict) or set(state) != {"loader", "given"}:
            raise UsageError(
                "this is not the state of TorchBatches. Pass what state_dict() returned."
            )
        given = checked_integer("given in the state", state["given"], 0)
        self._loader.load_state_dict(state["loader"])
        self._iteration, self._begin = None, given


class _Iteration:
    """This worker's batches from a position on; after an exception the same batch is tried again.

    given: batches returned, or left out at the beginning. last: the step at which the iteration
    before began, for all processes; -1 if another one is to begin there.

    An iterator of batches is used only where the count of returned ones says that it is. So what
    the handler of a signal leaves by an exception is dropped.
    """

    def __init__(
        self, loader: BatchLoader, begin: Position, given: int, last: torch.Tensor
    ) -> None:
        self._loader, self._first, self.given, self._last = loader, begin, given, last
        self._items: tuple[int, Iterator[Any]] | None = None

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        try:
            return self._next()
        except Exception as error:
            worker = get_worker_info()
            if worker is None or isinstance(error, StopIteration):
                raise
            return _LastBatch(sys.exc_info(), f"in DataLoader worker process {worker.id}")

    def _next(self) -> Any:
        given, taken = self.given, self._items
        self._items = None
        if taken is None or taken[0] != given:
            taken = given, self._batches_from(given)
        batch = next(taken[1], None)
        self._warn_if_repeated(given, ended=batch is None)
        if batch is None:
            raise StopIteration
        if isinstance(batch, dict):
            batch = {key: _tensor(value) for key, value in batch.items()}
        else:
            batch = _tensor(batch)
        self._items = given + 1, taken[1]
        self.given = given + 1
        return batch

    def _warn_if_repeated(self, given: int, ended: bool) -> None:
        """Warns at the first batch of an iteration if the one before gave the same batches."""
        worker, step = get_worker_info(), self._first.step
        if worker is not None and worker.id:
            return
        # Lightning begins twice, and takes a batch the first time. Workers are some batches ahead.
        if ended or given == (1 if worker is None else 4):
            self._last.fill_(step)
        endless = self._loader.batches.steps.length is None
        if (
            not (given or ended)
            and self._last == step
            and (endless or self._loader.states.order["shuffle"])
        ):
            advice = "load the state of the batches taken" if endless else "call set_epoch"
            warnings.warn(
                "TorchBatches repeats the batches of the last iteration, because it does not move "
                f"the loader: {advice} before each iteration. Lightning calls no set_epoch; "
                "docs/trainers.md says what to do.",
                stacklevel=5,
            )

    def _batches_from(self, given: int) -> Iterator[Any]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        batches = self._loader.batches
        start = batches.steps.advance(self._first, number + given * workers)
        return batches.iterate_from(start, workers)


class _LastBatch(ExceptionWrapper):
    """An error that takes a batch's place; DataLoader raises it, as it does its own."""

    def reraise(self) -> None:
        """Ends the iteration: other workers have read later batches, which must not follow."""
        reader: Any = sys._getframe(1).f_locals.get("self")
        if hasattr(reader, "_send_idx"):
            reader._rcvd_idx = reader._send_idx
        super().reraise()


def _tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return torch.from_numpy(value.astype(np.int64) if value.dtype.kind == "u" else value)
