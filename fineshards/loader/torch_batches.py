"""Batches for torch's DataLoader and torchdata's StatefulDataLoader, with any worker count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from fineshards.loader.batch_loader import BatchLoader


class TorchBatches(IterableDataset[torch.Tensor]):
    """The batches of a BatchLoader as int64 tensors, for `DataLoader(batch_size=None)`.

    Each of n workers reads every n-th batch, and DataLoader takes from the workers in turn, so the
    order is the same for every n. An iteration begins at the loader's position and does not move
    it: save `loader.state_dict(steps)`, where steps counts the batches taken. StatefulDataLoader
    saves the position itself; it can be restored only with the same number of workers.

    Args:
        loader: The BatchLoader; its `prefetch` is not used.

    Yields:
        One int64 tensor per batch, of the shape that the loader returns.
    """

    def __init__(self, loader: BatchLoader) -> None:
        self._loader = loader
        # Batches this worker has returned in this iteration, and where the next iteration begins.
        self._given = 0
        self._begin = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._given, self._begin = self._begin, 0
        return self._batches()

    def _batches(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        batches = self._loader.batches
        start = batches.after(self._loader.consumed, number + self._given * workers)
        for batch in batches.iterate_from(start, workers):
            self._given += 1
            yield torch.from_numpy(batch.astype(np.int64))

    def state_dict(self) -> dict[str, Any]:
        """This worker's position; StatefulDataLoader calls this."""
        return {"loader": self._loader.state_dict(), "given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iteration start at a saved position.

        Raises UsageError if the state belongs to another order of samples.
        """
        self._loader.load_state_dict(state["loader"])
        self._given = self._begin = state["given"]
