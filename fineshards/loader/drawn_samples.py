"""Which samples the batches of a loader hold, and with which documents: computed, not searched."""

from fineshards.errors import UsageError
from fineshards.loader.arguments import checked_integer
from fineshards.loader.batches import Batches, DrawnSample
from fineshards.loader.mixing.apportionment import MAX_DRAWS
from fineshards.loader.tokens.split_documents import SampleDocument


class DrawnSamples:
    """The samples of a loader's batches, and their documents."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def samples(self, step: int) -> list[DrawnSample]:
        """The samples of this rank's part of a global batch.

        Reads no shard.

        Args:
            step: The global batch, from 0 at the beginning of the order.

        Returns:
            One DrawnSample per row of the batch, in order; none beyond the end.

        Raises:
            UsageError: `step` is not an integer of at least 0, or beyond what can be drawn.

        Example:
            >>> from fineshards import BatchLoader, TokenDataset
            >>> dataset = TokenDataset(dataset_folder, sequence_length=1024)
            >>> loader = BatchLoader(dataset, batch_size=2, seed=1)
            >>> batch = next(loader)
            >>> for drawn in loader.samples(0):
            ...     print(bool((batch[drawn.row] == dataset[drawn.sample]).all()))
            True
            True
            >>> loader.close()
        """
        step = checked_integer("step", step, 0)
        steps = self.batches.steps
        # Draws of a mixture end there.
        if steps.sizes.before(step + 1) > MAX_DRAWS:
            raise UsageError(f"step is {step}; no order is computed beyond {MAX_DRAWS} samples.")
        if step < steps.first.step:
            raise UsageError(
                f"step is {step}, but this loader was resumed at step {steps.first.step} with "
                "other batch sizes or epochs. Ask a loader with those of the earlier steps."
            )
        return self.batches.drawn(step)

    def explain(self, step: int) -> list[tuple[DrawnSample, list[SampleDocument]]]:
        """The samples of this rank's part of a global batch, each with its documents.

        Args:
            step: The global batch, from 0 at the beginning of the order.

        Returns:
            Per row of the batch, its DrawnSample and what `TokenDataset.documents` returns for it.

        Raises:
            UsageError: As `samples`, or if a source does not know its documents.
            OutputError: A document table is missing or damaged.
        """
        explained = []
        for drawn in self.samples(step):
            source = self.batches.readers[self._number(drawn.source)]
            if not hasattr(source, "documents"):
                raise UsageError(f"the source {drawn.source!r} does not know its documents.")
            explained.append((drawn, source.documents(drawn.sample)))
        return explained

    def occurrences(self, sample: int, source: str = "", epochs: int = 1) -> list[DrawnSample]:
        """Where a sample is drawn, epoch by epoch; computed, not searched.

        Args:
            sample: The sample's number in its source.
            source: The source's name in a mixture; empty for a single source.
            epochs: How many epochs of the source to look at, from the first.

        Returns:
            One DrawnSample per epoch in which the loader returns the sample, in later iterations
            too; none for a batch that is left out.

        Raises:
            UsageError: There is no such source or sample, or `epochs` is not at least 1.

        Example:
            >>> from fineshards import BatchLoader, TokenDataset
            >>> dataset = TokenDataset(dataset_folder, sequence_length=1024)
            >>> loader = BatchLoader(dataset, batch_size=8, seed=1)
            >>> (drawn,) = loader.occurrences(100)
            >>> loader.samples(drawn.step)[drawn.row] == drawn
            True
        """
        number = self._number(source)
        length = len(self.batches.sources[number])
        if checked_integer("sample", sample, 0) >= length:
            raise UsageError(f"sample is {sample}, but the source has {length} samples.")
        wanted = range(checked_integer("epochs", epochs, 1))
        draws = (self.batches.draws_of(number, sample, epoch) for epoch in wanted)
        return [drawn for drawn in draws if drawn is not None]

    def _number(self, name: str) -> int:
        if name not in self.batches.names:
            names = ", ".join(map(repr, self.batches.names))
            raise UsageError(f"source is {name!r}; choose {names}.")
        return self.batches.names.index(name)
