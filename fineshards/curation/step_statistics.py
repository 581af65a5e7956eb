"""Statistics of what the steps of a stage find and drop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from fineshards.curation.batch import Batch
from fineshards.shards.tables.measures import Tally, Traits, measure


class StepStatistics:
    """Adds what happens to the documents of one batch to a tally.

    traits: of all documents that the source has with text, in the batch or beyond it.
    """

    def __init__(self, tally: Tally, traits: Traits) -> None:
        self._tally = tally
        self._traits = traits

    def enter(self, batch: Batch) -> None:
        """Counts documents as the source has them."""
        self._tally.add("input", measure(batch.texts), self._traits.at(batch.rows))

    def reach(self, step: int, batch: Batch) -> None:
        """Counts documents that a step finds."""
        text_bytes = int(pc.binary_length(batch.texts).to_numpy().astype(np.int64).sum())
        self._tally.add_total("in", step, len(batch), text_bytes)

    def drop(self, step: int, batch: Batch, reasons: Sequence[str]) -> None:
        """Counts documents that a step drops, with their texts as the step found them."""
        measured, traits = measure(batch.texts), self._traits.at(batch.rows)
        self._tally.add("dropped", measured, traits, step, reasons)
