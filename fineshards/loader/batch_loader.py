"""Training batches: the same for any number of ranks, and resumable at any step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from fineshards.errors import UsageError
from fineshards.loader.apportionment import MAX_DRAWS
from fineshards.loader.arguments import checked_integer
from fineshards.loader.batches import Batches, DrawnSample, Share
from fineshards.loader.dataset import SampleDocument
from fineshards.loader.permutation import ALGORITHM_VERSION
from fineshards.loader.prefetch import Prefetcher
from fineshards.loader.sample_sources import MixedSource, Samples, Source

STATE_VERSION = 1
# Saved states have older names for two of the arguments.
_ARGUMENTS = {"tokens_a_sample": "sequence_length", "window": "shuffle_shards"}


class BatchLoader:
    """Iterates over one rank's part of every global batch.

    Global batch b holds samples `[b * B, (b + 1) * B)` of the global order, where B is the batch
    size. The global order depends only on `source`, `seed`, `shuffle` and `shuffle_shards`. Ranks
    take equal, consecutive parts, so the concatenated parts are the same for every world size.

    An iteration continues where the last one stopped. After the end, the next iteration starts
    again from the first batch, in the same order.

    Args:
        source: A TokenDataset, a Mixture, or any other object with the interface of `Source` or
            `MixedSource` in `fineshards.loader.sample_sources`.
        batch_size: B, samples per global batch, over all ranks. A multiple of `world_size`.
        seed: Any integer.
        rank: This process's rank, from 0 to `world_size - 1`.
        world_size: W, the number of ranks.
        shuffle: True gives every epoch its own order. False keeps the source's order.
        shuffle_shards: None shuffles all samples of an epoch together. A number shuffles the
            shards, then the samples of that many shards at a time, so that object storage is read
            in large requests.
        epochs: Passes over the source; None for no end. One batch may hold samples of two epochs.
            A Mixture has its own end, and takes None only.
        drop_last: True leaves out a last batch of fewer than B samples. False returns it: the
            ranks' parts then differ by at most one sample and may be empty, so that every rank
            has the same number of batches.
        prefetch: Batches read ahead in a background thread; 0 for no thread.

    Yields:
        One batch per step: uint32, shape (B / W, T + 1), where T is the source's sequence length.
        `batch[:, :-1]` is the model's input and `batch[:, 1:]` its labels. The caller owns the
        array.

    Raises:
        UsageError: An argument is out of range, or arguments contradict each other.
        OutputError: While iterating, if a shard is missing or damaged. The next call tries the
            same batch again.

    Example:
        >>> from fineshards import BatchLoader, TokenDataset
        >>> dataset = TokenDataset(dataset_folder, sequence_length=1024)
        >>> with BatchLoader(dataset, batch_size=32, seed=1) as loader:
        ...     batch = next(loader)
        ...     state = loader.state_dict()
        ...     following = next(loader)
        >>> batch.shape, batch.dtype
        ((32, 1025), dtype('uint32'))

        Resume on another number of ranks:

        >>> with BatchLoader(dataset, batch_size=32, seed=1, rank=3, world_size=4) as loader:
        ...     loader.load_state_dict(state)
        ...     bool((next(loader) == following[24:]).all())
        True
    """

    def __init__(
        self,
        source: Source | MixedSource,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        shuffle: bool = True,
        shuffle_shards: int | None = None,
        epochs: int | None = None,
        drop_last: bool = True,
        prefetch: int = 2,
    ) -> None:
        seed = checked_integer("seed", seed)
        if shuffle_shards is not None:
            shuffle_shards = checked_integer("shuffle_shards", shuffle_shards, 1)
        epochs = None if epochs is None else checked_integer("epochs", epochs, 1)
        share = Share.checked(batch_size, rank, world_size)
        self.batches = Batches(source, share, seed, shuffle, shuffle_shards, epochs, drop_last)
        # What the order depends on. A state can be loaded only where all of it is equal. These are
        # the keys of saved states, which must not change.
        self._order = {
            "algorithm": ALGORITHM_VERSION,
            "fingerprint": source.fingerprint,
            # A mixture's fingerprint covers its sources' lengths. Its own end may still change.
            "samples": None if isinstance(source, MixedSource) else len(source),
            "tokens_a_sample": source.sequence_length,
            "seed": seed,
            "shuffle": bool(shuffle),
            "window": shuffle_shards if shuffle else None,
        }
        self._mixture = source if isinstance(source, MixedSource) else None
        self._depth = checked_integer("prefetch", prefetch, 0)
        self._consumed = 0
        self._ended = False
        self._items: Iterator[Samples] | None = None
        self._process: int | None = None

    @property
    def consumed(self) -> int:
        """Samples of the global order in the batches returned so far, over all ranks."""
        return self._consumed

    def __iter__(self) -> Iterator[Samples]:
        if self._ended:
            self.restart()
        return self

    def __next__(self) -> Samples:
        try:
            if self._items is None or self._process != os.getpid():
                self._process = os.getpid()
                self._items = self.batches.iterate_from(self._consumed)
                # Read in this thread, so that the first batch does not wait for one to start.
                batch = next(self._items)
                if self._depth:
                    self._items = Prefetcher(self._items, self._depth)
            else:
                batch = next(self._items)
        except StopIteration:
            self._ended = True
            raise
        except BaseException:
            # A generator that raised is finished. The next call must read the same batch again.
            self.close()
            raise
        self._consumed = self.batches.after(self._consumed, 1)
        return batch

    def restart(self) -> None:
        """Goes back to the first batch."""
        self._go_to(0)

    def state_dict(self, steps: int = 0) -> dict[str, Any]:
        """The loader's position, to be saved in a checkpoint.

        It counts the batches that were returned, not those that were prefetched. All ranks' states
        are equal, so one of them is enough.

        Args:
            steps: Batches to count in addition, such as those that the workers of torch's
                DataLoader have read from a copy of this loader.

        Returns:
            A dict of a few numbers and strings that JSON can hold.

        Raises:
            UsageError: `steps` is not an integer of at least 0.
        """
        consumed = self.batches.after(self._consumed, checked_integer("steps", steps, 0))
        return {
            "version": STATE_VERSION,
            **self._order_of(consumed),
            "consumed": consumed,
            # For `explain`; a state can be loaded with another batch size.
            "batch_size": self.batches.share.batch_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves the loader to a saved position, with the same or another batch size and world size.

        Of a mixture, only the draws up to that position must be the same: its weights may change
        from there on.

        Args:
            state: What `state_dict` returned.

        Raises:
            UsageError: The state belongs to another order of samples or another source, or is not
                a state. The loader keeps its position.
        """
        names = ("version", *self._order, "consumed")
        missing = [name for name in names if name not in state]
        if missing:
            raise UsageError(
                f"this is not the state of a BatchLoader: it lacks {', '.join(missing)}. "
                "Pass what state_dict() returned."
            )
        consumed = checked_integer("consumed in the state", state["consumed"], 0)
        known = {"version": STATE_VERSION, **self._order_of(consumed)}
        different = [
            f"{_ARGUMENTS.get(name, name)} is {state[name]!r} in the state but {here!r} here"
            for name, here in known.items()
            if state[name] != here
        ]
        if different:
            self._refuse_other_generation(state["fingerprint"])
            raise UsageError(
                f"the state belongs to another order of samples: {'; '.join(different)}. Open the "
                "same dataset with the same arguments, in the version of fineshards that saved the "
                "state, or start without it."
            )
        self._go_to(consumed)

    def _refuse_other_generation(self, fingerprint: object) -> None:
        """Raises UsageError if a state belongs to another generation of the dataset."""
        if self._mixture is not None:
            return
        (source,) = self.batches.sources
        # Other sources than a TokenDataset may not have generations.
        find: Callable[[object], int | None] = getattr(source, "generation_of", lambda _: None)
        found = None if fingerprint == source.fingerprint else find(fingerprint)
        if found is not None:
            raise UsageError(
                f"the state belongs to generation {found} of the dataset, and this is another "
                f"one. Open the dataset with generation={found} to go on."
            )

    def samples(self, step: int) -> list[DrawnSample]:
        """The samples of this rank's part of a global batch; reads no shard.

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
        # Draws of a mixture end there.
        if (step + 1) * self.batches.share.batch_size > MAX_DRAWS:
            raise UsageError(f"step is {step}; no order is computed beyond {MAX_DRAWS} samples.")
        return self.batches.drawn(step)

    def explain(self, step: int) -> list[tuple[DrawnSample, list[SampleDocument]]]:
        """The samples of this rank's part of a global batch, each with its documents.

        Args:
            step: The global batch, from 0 at the beginning of the order.

        Returns:
            For each row of the batch its DrawnSample, and what `TokenDataset.documents` says of it.

        Raises:
            UsageError: As `samples`, or if a source does not know its documents.
            OutputError: A document table is missing or damaged.
        """
        explained = []
        for drawn in self.samples(step):
            source = self._source(drawn.source)
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
            One DrawnSample per epoch in which the loader returns the sample.

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
        length = len(self._source(source))
        if checked_integer("sample", sample, 0) >= length:
            raise UsageError(f"sample is {sample}, but the source has {length} samples.")
        number = self.batches.names.index(source)
        wanted = range(checked_integer("epochs", epochs, 1))
        found = (self.batches.draws_of(number, sample, epoch) for epoch in wanted)
        return [drawn for drawn in found if drawn is not None]

    def _source(self, name: str) -> Any:
        if name not in self.batches.names:
            known = ", ".join(map(repr, self.batches.names))
            raise UsageError(f"source is {name!r}; choose {known}.")
        return self.batches.sources[self.batches.names.index(name)]

    def close(self) -> None:
        """Stops the background thread. The loader can still be used, from the same position."""
        if isinstance(self._items, Prefetcher) and self._process == os.getpid():
            self._items.close()
        self._items = self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_items": None, "_process": None}

    def _order_of(self, consumed: int) -> dict[str, Any]:
        """What the order of the first `consumed` samples depends on."""
        if self._mixture is None:
            return self._order
        return self._order | {"fingerprint": self._mixture.fingerprint_of(consumed)}

    def _go_to(self, consumed: int) -> None:
        self.close()
        self._consumed = consumed
        self._ended = False
