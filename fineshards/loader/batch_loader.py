"""Batches for training: the same for any number of readers, and resumable at any step at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from fineshards.errors import UsageError
from fineshards.loader.arguments import whole_number
from fineshards.loader.batches import Batches, Share
from fineshards.loader.permutation import ALGORITHM_VERSION
from fineshards.loader.prefetch import Prefetcher
from fineshards.loader.sample_sources import Samples, SampleStream, Source

STATE_VERSION = 1


class BatchLoader:
    """An iterator over one rank's part of every global batch: uint32, shape (B / W, T + 1).

    Global batch b holds the samples b * B to (b + 1) * B of the global order, which depends on
    source, seed, shuffle and window alone. Ranks take equal consecutive parts, so that the parts of
    all ranks in a row are the same for every world size.

    source: a TokenDataset, a Mixture, or anything else that `loader.sample_sources` describes.
    batch_size: B, of all ranks together. seed: any integer. rank, world_size: this reader's number,
    of how many (W). shuffle: anew for every epoch; False for the source's own order. window: None
    to shuffle all samples of an epoch together, or how many shards are shuffled together, so that
    object storage is read in large blocks (`loader.order.WindowedShuffle`). epochs: passes over a
    source, None for no end; a batch may have samples of two. keep_last: gives the last batch also
    when it has fewer than B samples; ranks' parts then differ by one sample at most and may be
    empty, so that all ranks have as many batches. prefetch: batches made ahead in a background
    thread; 0 for none.

    An iteration goes on where the last one stopped. After the end has been reached, the next
    begins anew, with the same order. Raises UsageError for arguments that do not go together.
    """

    def __init__(
        self,
        source: Source | SampleStream,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        shuffle: bool = True,
        window: int | None = None,
        epochs: int | None = None,
        keep_last: bool = False,
        prefetch: int = 2,
    ) -> None:
        seed = whole_number("seed", seed)
        window = None if window is None else whole_number("window", window, 1)
        epochs = None if epochs is None else whole_number("epochs", epochs, 1)
        share = Share.checked(batch_size, rank, world_size)
        self.batches = Batches(source, share, seed, shuffle, window, epochs, keep_last)
        # What the order depends on: a state is of use only where all of it is the same.
        self._order = {
            "algorithm": ALGORITHM_VERSION,
            "fingerprint": source.fingerprint,
            # A stream's fingerprint has the sources' lengths; its own end may still be changed.
            "samples": None if isinstance(source, SampleStream) else len(source),
            "tokens_a_sample": source.tokens_a_sample,
            "seed": seed,
            "shuffle": bool(shuffle),
            "window": window if shuffle else None,
        }
        self._stream = source if isinstance(source, SampleStream) else None
        self._depth = whole_number("prefetch", prefetch, 0)
        self._consumed = 0
        self._ended = False
        self._items: Iterator[Samples] | None = None
        self._process: int | None = None

    @property
    def consumed(self) -> int:
        """Samples of the global order, of all ranks, in the batches that were handed out."""
        return self._consumed

    def __iter__(self) -> Iterator[Samples]:
        if self._ended:
            self.restart()
        return self

    def __next__(self) -> Samples:
        try:
            if self._items is None or self._process != os.getpid():
                self._process = os.getpid()
                self._items = self.batches.follow(self._consumed)
                # Made here: nobody has to wait for a thread to start, and to be given its turn.
                batch = next(self._items)
                if self._depth:
                    self._items = Prefetcher(self._items, self._depth)
            else:
                batch = next(self._items)
        except StopIteration:
            self._ended = True
            raise
        except BaseException:
            # An iterator that raised is over; whoever asks again is to get the same batch.
            self.close()
            raise
        self._consumed = self.batches.after(self._consumed, 1)
        return batch

    def restart(self) -> None:
        """Goes back to the first batch."""
        self._go_to(0)

    def state_dict(self, steps_elsewhere: int = 0) -> dict[str, Any]:
        """Where the loader stands: a few numbers and names, for JSON or any checkpoint.

        What counts is what was handed out, not what was prefetched. All ranks' states are equal.
        steps_elsewhere: batches taken since by others, such as the workers of torch's DataLoader.
        """
        steps = whole_number("steps_elsewhere", steps_elsewhere, 0)
        consumed = self.batches.after(self._consumed, steps)
        return {"version": STATE_VERSION, **self._order_of(consumed), "consumed": consumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to where a state was taken, also with another batch size or number of ranks.

        Raises UsageError, and stays where it is, if the state belongs to another order or source.
        Of a mixture, the draws up to there must be the same; weights may change from then on.
        """
        names = ("version", *self._order, "consumed")
        missing = [name for name in names if name not in state]
        if missing:
            raise UsageError(
                f"this is not the state of a BatchLoader: {', '.join(missing)} is missing. "
                "Give what state_dict() returned."
            )
        consumed = whole_number("consumed, in the state,", state["consumed"], 0)
        known = {"version": STATE_VERSION, **self._order_of(consumed)}
        different = [
            f"{name} {state[name]!r} there and {here!r} here"
            for name, here in known.items()
            if state[name] != here
        ]
        if different:
            raise UsageError(
                f"the state is of another order of samples: {'; '.join(different)}. Open the same "
                "dataset with the same settings, by the version of fineshards that saved it, or "
                "begin without the state."
            )
        self._go_to(consumed)

    def close(self) -> None:
        """Ends the background thread. The loader may be used again and goes on where it stood."""
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
        """What the order of the first samples depends on."""
        if self._stream is None:
            return self._order
        return self._order | {"fingerprint": self._stream.fingerprint_of(consumed)}

    def _go_to(self, consumed: int) -> None:
        self.close()
        self._consumed = consumed
        self._ended = False
