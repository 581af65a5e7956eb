"""The order in which a source's samples come: its epochs, each shuffled anew, without a table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.loader.permutation import Permutation, key
from fineshards.loader.sample_sources import Numbers, Source


class EpochOrder:
    """Endless passes over the samples of a source; every pass has each sample once.

    seed, purpose: what the order of an epoch depends on, beside its number. shuffle: False for the
    samples' own order. window: None to shuffle all samples, else how many shards to shuffle
    together; see WindowedShuffle. Raises UsageError for a window over a source without shards.
    """

    def __init__(
        self,
        source: Source,
        seed: int,
        purpose: str,
        shuffle: bool = True,
        window: int | None = None,
    ) -> None:
        self._samples = len(source)
        self._seed = seed
        self._purpose = purpose
        self._shuffle = shuffle
        self._window = window
        self._bounds: Numbers | None = None
        if shuffle and window is not None:
            bounds = getattr(source, "shard_bounds", None)
            if bounds is None:
                raise UsageError(
                    f"window={window}: the source {purpose!r} has no shards to shuffle within; "
                    "leave window out."
                )
            self._bounds = bounds
        # Of the epoch last asked for. Threads may replace it, so it is looked at once.
        self._last: tuple[int, Callable[[Numbers], Numbers]] | None = None

    def __call__(self, positions: Numbers) -> Numbers:
        """The sample numbers at positions, int64 from 0 on; len(source) of them are an epoch."""
        epochs, places = np.divmod(positions, self._samples)
        if not self._shuffle:
            return places
        found = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            found[here] = self._order(epoch)(places[here])
        return found

    def _order(self, epoch: int) -> Callable[[Numbers], Numbers]:
        last = self._last
        if last is None or last[0] != epoch:
            epoch_key = key(self._seed, "epoch", self._purpose, epoch)
            if self._bounds is None:
                last = epoch, Permutation(self._samples, epoch_key)
            else:
                assert self._window is not None
                last = epoch, WindowedShuffle(self._bounds, self._window, epoch_key)
            self._last = last
        return last[1]


class WindowedShuffle:
    """A permutation of samples in which neighbours come from a few shards.

    The order of the shards is permuted, and the samples of every `window` shards in it together. A
    sample belongs to the shard of its first token. So wherever an epoch is entered, samples come
    from `window` shards at random, those of one shard all within one window; between windows
    nothing mixes. With all shards in one window this is a shuffle of all samples.

    bounds: int64, shape (shards + 1,), the first sample of each shard, and the number of samples.
    """

    def __init__(self, bounds: npt.NDArray[np.int64], window: int, epoch_key: int) -> None:
        shards = len(bounds) - 1
        self._key = epoch_key
        self._window = window
        order = Permutation(shards, key(epoch_key, "shards"))(np.arange(shards))
        self._firsts = bounds[order]
        # Where each shard begins in the epoch, and where each window does.
        self._begins = np.append(0, np.cumsum(bounds[order + 1] - self._firsts))
        self._windows = np.append(self._begins[:-1:window], self._begins[-1])
        self._last: tuple[int, Permutation] | None = None

    def __call__(self, places: Numbers) -> Numbers:
        """The sample numbers at places in the epoch."""
        windows = np.searchsorted(self._windows, places, side="right") - 1
        found = np.empty_like(places)
        for window in np.unique(windows).tolist():
            here = windows == window
            begin = self._windows[window]
            shuffled = begin + self._permutation(window)(places[here] - begin)
            shard = np.searchsorted(self._begins, shuffled, side="right") - 1
            found[here] = self._firsts[shard] + shuffled - self._begins[shard]
        return found

    def _permutation(self, window: int) -> Permutation:
        last = self._last
        if last is None or last[0] != window:
            size = int(self._windows[window + 1] - self._windows[window])
            last = self._last = window, Permutation(size, key(self._key, "window", window))
        return last[1]
