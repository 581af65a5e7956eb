"""Batches for torch's DataLoader and torchdata's StatefulDataLoader, with any number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from fineshards.loader.batch_loader import BatchLoader


class TorchBatches(IterableDataset[torch.Tensor]):
    """What a BatchLoader gives, in its order, as int64 tensors; for `DataLoader(batch_size=None)`.

    Of n workers each makes every n-th batch, and DataLoader takes from them in turn, so the order
    is the same for every n. An iteration begins where the loader stands, which it does not move:
    to save a place by steps, use `loader.state_dict(steps)`. StatefulDataLoader saves the place by
    itself, and wants the same number of workers again.
    """

    def __init__(self, loader: BatchLoader) -> None:
        self._loader = loader
        # Batches that this worker has given in this iteration, and where the next one begins.
        self._given = 0
        self._begin = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._given, self._begin = self._begin, 0
        return self._follow()

    def _follow(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        batches = self._loader.batches
        start = batches.after(self._loader.consumed, number + self._given * workers)
        for batch in batches.follow(start, workers):
            self._given += 1
            yield torch.from_numpy(batch.astype(np.int64))

    def state_dict(self) -> dict[str, Any]:
        """This worker's place; StatefulDataLoader asks for it."""
        return {"loader": self._loader.state_dict(), "given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iteration go on at a place of `state_dict`; raises UsageError."""
        self._loader.load_state_dict(state["loader"])
        self._given = self._begin = state["given"]
