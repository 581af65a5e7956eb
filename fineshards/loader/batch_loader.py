"""Training batches: the same for any number of ranks, and resumable at any step."""

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.loader.arguments import checked_integer
from fineshards.loader.batches import Batches
from fineshards.loader.context_parallel import ContextParallel, check_context
from fineshards.loader.drawn_samples import DrawnSamples
from fineshards.loader.fields import Batch, Fields, checked_dtype
from fineshards.loader.mixing.mixture import Mixture
from fineshards.loader.packing import Packing, check_packing
from fineshards.loader.prefetch import Prefetcher
from fineshards.loader.sample_sources import Source
from fineshards.loader.state import States
from fineshards.loader.steps import Position, Ramp, Ramped, Share, checked_lengths

# Attributes of a source, and what a batch without a mask then trains on.
_UNMASKED = {
    "has_loss_mask": "the documents are conversations, and prompts are trained on too. To learn "
    "the answers alone",
    "has_padding": "rows of WholeDocuments are padded, and their padding counts. To leave it out",
}
_FOR_TORCH = (
    "Wrap it for a DataLoader: DataLoader(fineshards.TorchBatches(loader), batch_size=None)."
)


class BatchLoader(DrawnSamples):
    """Iterates over one rank's part of every global batch.

    The global order is all samples in the order of training. It depends only on `source`, `seed`,
    `shuffle`, `shuffle_shards` and `packing`. Each global batch is the next part of it. Ranks take
    equal, consecutive parts of the batch, so the concatenated parts are the same for every world
    size.

    An iteration continues where the last one stopped. After the end, the next iteration goes on
    with the following `epochs` epochs, each in an order of its own.

    Args:
        source: A TokenDataset, a Mixture, or any other object with the interface of
            `fineshards.loader.sample_sources.Source`.
        batch_size: B, samples per global batch, over all ranks. A multiple of `world_size`.
            A ramp maps steps to sizes: `{0: 256, 1000: 512}`.
        seed: Any integer.
        rank: This process's rank, from 0 to `world_size - 1`.
        world_size: W, the number of ranks.
        shuffle: True gives every epoch its own order. False keeps the source's order.
        shuffle_shards: None shuffles all samples of an epoch together. A number shuffles the
            shards, then the samples of that many shards at a time, so that object storage is read
            in large requests.
        epochs: Passes over the source in one iteration; None for no end. One batch may hold samples
            of two epochs of the same iteration. A Mixture has its own end, and takes None only.
        drop_last: True leaves out a last batch of fewer than B samples. False returns it: the
            ranks' parts then differ by at most one sample and may be empty, so that every rank
            has the same number of batches.
        prefetch: Batches read ahead in a background thread; 0 for no thread.
        packing: A Packing fills rows with whole documents; docs/loader.md has the rules. The rows
            of a few windows are then shuffled together, and a batch has fields, by default `inputs`
            and `targets`.
        sequence_length: A ramp of shorter sequence lengths, such as `{0: 512, 1000: 2048}`. Each
            divides T and cuts every sample into T / length rows, so a step has the same tokens
            whatever the length.
        dtype: Of the tokens: `uint32`, `int32`, `int64`, or `uint16` for vocabularies of up to
            65,536 tokens.
        fields: Names of fields, or a mapping from keys of your own to names; each batch is then a
            dict. Fields of shape (rows, T): `inputs`; `targets`; `labels`, the inputs again for
            models that shift labels themselves; `position_ids` and `document_ids`, int32, which
            begin at 0 in each document and in each row; `loss_mask`, bool, False where the target
            belongs to another document than the input, or to one that the dataset skips. Fields of
            shape (rows,): `source_ids`, int32; `sample_ids`, int64. Of the flattened rows:
            `cu_seqlens`, int32, shape (documents + 1,); `max_seqlen`, an int.
        ignore_index: The value of targets and labels that the loss mask leaves out, such as -100.
            None leaves them as they are.
        context_parallel: A ContextParallel gives this process its part of the tokens of the rows.
            Fields of tokens then have the shape (tokens,). `rank` and `world_size` are those of
            the data-parallel group, whose ranks each are a context-parallel group.

    Yields:
        One batch per step: by default an array of shape (B / W, T + 1), where T is the source's
        sequence length. `batch[:, :-1]` is the model's input and `batch[:, 1:]` its targets. With
        `fields`, a dict of arrays. The caller owns the arrays.

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

        Batches as Hugging Face's models take them:

        >>> names = {"input_ids": "inputs", "labels": "labels"}
        >>> with BatchLoader(dataset, 8, dtype="int64", fields=names) as loader:
        ...     {key: value.shape for key, value in next(loader).items()}
        {'input_ids': (8, 1024), 'labels': (8, 1024)}
    """

    def __init__(
        self,
        source: Source | Mixture,
        batch_size: Ramped,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        shuffle: bool = True,
        shuffle_shards: int | None = None,
        epochs: int | None = None,
        drop_last: bool = False,
        prefetch: int = 2,
        packing: Packing | None = None,
        sequence_length: Mapping[int, int] | None = None,
        dtype: npt.DTypeLike = "uint32",
        fields: Sequence[str] | Mapping[str, str] | None = None,
        ignore_index: int | None = None,
        context_parallel: ContextParallel | None = None,
    ) -> None:
        if not hasattr(source, "sequence_length"):
            kind = type(source).__name__
            raise UsageError(f"the source is of type {kind}; give a TokenDataset or a Mixture.")
        seed = checked_integer("seed", seed)
        if shuffle_shards is not None:
            shuffle_shards = checked_integer("shuffle_shards", shuffle_shards, 1)
        epochs = None if epochs is None else checked_integer("epochs", epochs, 1)
        for name, flag in (("shuffle", shuffle), ("drop_last", drop_last)):
            if not isinstance(flag, bool | np.bool_):
                raise UsageError(f"{name} is {flag!r}; give True or False.")
        if shuffle_shards is not None and not shuffle:
            raise UsageError(
                f"shuffle_shards is {shuffle_shards}, but shuffle is False. Leave one of them out."
            )
        sizes = Ramp("batch_size", batch_size)
        lengths = checked_lengths(sequence_length, source.sequence_length)
        tokens = checked_dtype(dtype, source)
        if packing is not None:
            check_packing(packing, shuffle_shards)
            fields = ("inputs", "targets") if fields is None else fields
        shaped = None
        if fields is not None:
            check_context(context_parallel, source.sequence_length)
            shaped = Fields.checked(fields, tokens, ignore_index, context_parallel)
            shaped.check_labels(packing is not None)
        elif ignore_index is not None or context_parallel is not None:
            name = "context_parallel" if ignore_index is None else "ignore_index"
            raise UsageError(f"{name} needs fields, such as inputs and targets.")
        share = Share.checked(rank, world_size, sizes)
        order: dict[str, Any] = {"seed": seed, "shuffle": bool(shuffle)}
        order["shuffle_shards"] = shuffle_shards
        batches = Batches(
            source,
            share,
            sizes,
            lengths,
            **order,
            epochs=epochs,
            drop_last=bool(drop_last),
            packing=packing,
            dtype=tokens,
            fields=shaped,
        )
        super().__init__(batches)
        self.batches.steps.refuse_empty(Position())
        vocabulary = max(getattr(one, "vocabulary_size", 0) for one in self.batches.sources)
        if ignore_index in range(vocabulary) and ignore_index not in self.batches.eots:
            raise UsageError(
                f"ignore_index {ignore_index} is a token of the vocabulary, so targets that are "
                'this token would not count. Give -100, with dtype="int64".'
            )
        for member, words in _UNMASKED.items():
            masked = any(getattr(one, member, False) for one in self.batches.sources)
            if masked and not (shaped and shaped.need_mask):
                warnings.warn(
                    f"{words}, take the field loss_mask, or give ignore_index.", stacklevel=2
                )
                break
        choices = order | {"packing": None if packing is None else packing.saved()}
        self.states = States(self.batches, source, choices, epochs)
        self._depth = checked_integer("prefetch", prefetch, 0)
        self._position = Position()
        self._iterations = 0
        # The position at which a pass has ended.
        self._ended: Position | None = None
        # Batches, where the next of them begins, and the process. They are used only there. So what
        # an exception leaves anywhere else is never read on: see `_next`.
        self._items: tuple[Position, int, Iterator[Batch]] | None = None
        self._ahead: Prefetcher[Batch] | None = None
        # The thread that reads, by process: a child has its parent's notes.
        self._readers: dict[int, int] = {}

    @property
    def step(self) -> int:
        """The number of the next batch, from 0; it goes on counting after a resume."""
        return self._position.step

    @property
    def consumed(self) -> int:
        """Samples of the global order in the batches returned so far, over all ranks."""
        return self._position.consumed

    @property
    def position(self) -> Position:
        """Where the next batch begins."""
        return self._position

    def __iter__(self) -> Iterator[Batch]:
        if self._ended is self._position:
            following = self.batches.steps.next_pass(self._position)
            if following is None:
                raise UsageError(
                    "the mixture has ended. Call restart() to read it again in the same order, or "
                    'build it with exhausted="repeat".'
                )
            self._go_to(following)
        self._iterations += 1
        return _Iteration(self, self._iterations)

    def __next__(self) -> Batch:
        thread, process = threading.get_ident(), os.getpid()
        if self._readers.setdefault(process, thread) != thread:
            raise UsageError(
                "two threads read from one BatchLoader at the same time. Give each thread a "
                "loader of its own, or read in one thread."
            )
        try:
            return self._next(process)
        finally:
            self._readers.pop(process, None)

    def _next(self, process: int) -> Batch:
        """The next batch, and then the next position, in one step.

        The handler of a signal may raise between any two instructions, or use this loader. So the
        batches are taken away while one is read, and are put back with the position after it.
        """
        while True:
            position, taken = self._position, self._items
            self._items = None
            if taken is not None and taken[0] is position and taken[1] == process:
                items = taken[2]
            else:
                self._stop_ahead()
                items = self.batches.iterate_from(position, ahead=self._depth)
                if self._depth:
                    items = self._ahead = Prefetcher(items, self._depth)
            ahead = self._ahead
            try:
                batch = next(items)
            except StopIteration:
                if self._position is position and self._ahead is ahead:
                    self._ended = position
                    raise
                continue  # a handler has moved or closed the loader
            except BaseException:
                self._stop_ahead()
                raise
            following = self.batches.steps.advance(position, 1)
            if self._position is position:
                if self._ahead is ahead:
                    self._items = following, process, items
                self._position = following
                return batch

    def __len__(self) -> int:
        """The batches left in this iteration; after its end, those of the next one.

        Raises TypeError if it has no end: neither `epochs` nor a Mixture that ends gives it one.
        """
        steps, position = self.batches.steps, self._position
        if steps.length is None:
            raise TypeError(f"this BatchLoader has no end: give epochs. {_FOR_TORCH}")
        if self._ended is position:
            position = steps.next_pass(position) or position
        return steps.advance(position, steps.length).step - position.step

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: object) -> Batch:
        raise UsageError(f"a BatchLoader gives one batch after the other. {_FOR_TORCH}")

    def restart(self) -> None:
        """Goes back to the first batch of the first epoch."""
        self.batches.know_steps_from(Position())
        self._go_to(Position())

    def state_dict(self, steps: int = 0) -> dict[str, Any]:
        """The loader's position, to be saved in a checkpoint.

        It counts the batches that were returned, not those that were prefetched. All ranks' states
        are equal, so one of them is enough.

        Args:
            steps: Batches to count in addition, such as those that the workers of torch's
                DataLoader have read from a copy of this loader.

        Returns:
            A dict of a few numbers and strings, and one list of numbers, that JSON can hold.

        Raises:
            UsageError: `steps` is not an integer of at least 0.
        """
        position = self.batches.steps.advance(self._position, checked_integer("steps", steps, 0))
        if self._ended is self._position and not steps:
            position = self.batches.steps.next_pass(position) or position
        return self.states.of(position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves the loader to a saved position, with the same or another batch size and world size.

        Steps go on counting from the saved one, and so do ramps. Of a mixture, only the draws up to
        that position must be the same: its weights may change from there on.

        Args:
            state: What `state_dict` returned.

        Raises:
            UsageError: The state belongs to another order of samples or another source, or is not
                a state. The loader keeps its position.
        """
        position, since = self.states.read(state)
        self.batches.know_steps_from(since)
        self._go_to(position)

    def close(self) -> None:
        """Stops the background thread. The loader can still be used, from the same position."""
        self._items = None
        self._readers.clear()
        self._stop_ahead()

    def __repr__(self) -> str:
        share, order = self.batches.share, self.states.order
        size = self.batches.steps.sizes(self.step)
        how = f"shuffled by seed {order['seed']}" if order["shuffle"] else "in order"
        return (
            f"BatchLoader at step {self.step:,}: batches of {size:,} samples of "
            f"{order['sequence_length']:,} tokens, {how}, rank {share.rank} of {share.world_size}, "
            f"from {self.states.source!r}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_items": None, "_ahead": None, "_readers": {}}

    def _go_to(self, position: Position) -> None:
        self.close()
        self._position = position

    def _stop_ahead(self) -> None:
        """Stops the background thread, also one that an exception has left."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


class _Iteration:
    """The batches of a loader, up to its next iteration: two would share its position."""

    def __init__(self, loader: BatchLoader, number: int) -> None:
        self._loader, self._number = loader, number

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._loader._iterations != self._number:
            raise UsageError(
                "a later iteration of this BatchLoader has begun, and they share its position. "
                "Give each a loader of its own."
            )
        return next(self._loader)
