"""The order of a source's samples: a new shuffle for every epoch, computed without a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.loader.permutation import Permutation, key, permute
from fineshards.loader.sample_sources import Numbers, Source

# Places that are permuted together: their permutation, their indices, and the first such place.
Group = tuple[Permutation, Numbers, int]


class EpochOrder:
    """An endless sequence of epochs, each of which has every sample of a source once.

    The order of an epoch depends on seed, name and the epoch's number. shuffle: False keeps the
    source's order. shuffle_shards: None shuffles all samples, a number that many shards at a time;
    see GroupedShuffle. windows: for packed rows, the rows per window and how many windows are
    shuffled together; see WindowShuffle. Raises UsageError if the source has no shards to shuffle.
    """

    def __init__(
        self,
        source: Source,
        seed: int,
        name: str,
        shuffle: bool = True,
        shuffle_shards: int | None = None,
        windows: tuple[int, int] | None = None,
    ) -> None:
        self.samples = len(source)
        self._seed = seed
        self._name = name
        self._shuffle = shuffle
        self._shuffle_shards = shuffle_shards
        self._windows = windows
        self._bounds: Numbers | None = None
        if shuffle and shuffle_shards is not None:
            bounds = getattr(source, "shard_bounds", None)
            if bounds is None:
                which = f"the source {name!r}" if name else "the source"
                raise UsageError(
                    f"shuffle_shards is {shuffle_shards}, but {which} has no shards; leave "
                    "shuffle_shards out."
                )
            self._bounds = bounds
        # The order of the last epoch used. Other threads may replace it, so read it once.
        self._last: tuple[int, _Order] | None = None

    def positions(self, samples: Numbers, epoch: int) -> Numbers:
        """Where samples are in one epoch, counted from the beginning of the first epoch."""
        order = self.of(epoch)
        return epoch * self.samples + (samples if order is None else order.inverse(samples))

    def of(self, epoch: int) -> _Order | None:
        """The shuffle of an epoch; None for the source's order."""
        if not self._shuffle:
            return None
        last = self._last
        if last is None or last[0] != epoch:
            epoch_key = key(self._seed, "epoch", self._name, epoch)
            order: _Order
            if self._windows is not None:
                order = WindowShuffle(self.samples, *self._windows, epoch_key)
            elif self._bounds is None:
                order = Permutation(self.samples, epoch_key)
            else:
                assert self._shuffle_shards is not None
                order = GroupedShuffle(self._bounds, self._shuffle_shards, epoch_key)
            last = self._last = epoch, order
        return last[1]


def locate(orders: Sequence[EpochOrder], which: Numbers, positions: Numbers) -> Numbers:
    """The samples at `positions[i]` of order `which[i]`; all orders are computed together."""
    sizes = np.array([order.samples for order in orders])
    epochs, places = np.divmod(positions, sizes[which])
    by_order = np.lexsort((epochs, which))
    changed = (np.diff(which[by_order]) != 0) | (np.diff(epochs[by_order]) != 0)
    borders = [0, *(np.flatnonzero(changed) + 1).tolist(), len(by_order)]
    parts: list[tuple[Permutation, Numbers]] = []
    permuted: list[Numbers] = []
    begins: list[int] = []
    grouped: list[tuple[GroupedShuffle | WindowShuffle, Numbers]] = []
    samples = places.copy()
    for here in [by_order[first:stop] for first, stop in pairwise(borders) if first < stop]:
        order = orders[which[here[0]]].of(int(epochs[here[0]]))
        if order is None:
            continue
        groups: Iterable[Group] = [(order, np.arange(len(here)), 0)]
        if not isinstance(order, Permutation):
            groups = order.groups(places[here])
            grouped.append((order, here))
        for permutation, inside, begin in groups:
            parts.append((permutation, places[here[inside]] - begin))
            permuted.append(here[inside])
            begins.append(begin)
    if parts:
        moved = np.repeat(begins, list(map(len, permuted)))
        samples[np.concatenate(permuted)] = permute(parts) + moved
    for shuffle, here in grouped:
        samples[here] = shuffle.at(samples[here])
    return samples


class GroupedShuffle:
    """A permutation of samples in which neighbours come from a few shards.

    The order of the shards is permuted and cut into groups of `group_shards`; the samples of each
    group are permuted together. A sample belongs to the shard of its first token. So at any time
    samples come at random from at most `group_shards` shards, all samples of a shard come within
    one group, and nothing mixes between groups. A single group is a shuffle of all samples.

    bounds: int64, shape (shards + 1,): each shard's first sample, then the number of samples.
    """

    def __init__(self, bounds: npt.NDArray[np.int64], group_shards: int, epoch_key: int) -> None:
        shards = len(bounds) - 1
        self._key = epoch_key
        order = Permutation(shards, key(epoch_key, "shards"))(np.arange(shards))
        self._firsts = bounds[order]
        # The places in the epoch where each shard begins, and each group.
        self._begins = np.append(0, np.cumsum(bounds[order + 1] - self._firsts))
        self._groups = np.append(self._begins[:-1:group_shards], self._begins[-1])

    def at(self, shuffled: Numbers) -> Numbers:
        """The sample numbers at places in the order of the shards."""
        shard = np.searchsorted(self._begins, shuffled, side="right") - 1
        numbers: Numbers = self._firsts[shard] + shuffled - self._begins[shard]
        return numbers

    def inverse(self, numbers: Numbers) -> Numbers:
        """The places in the epoch of samples."""
        # A shard's first sample is less than the next shard's, except where shards hold none.
        order = np.argsort(self._firsts, kind="stable")
        sizes = np.diff(self._begins)
        order = order[sizes[order] > 0]
        shard = order[np.searchsorted(self._firsts[order], numbers, side="right") - 1]
        shuffled = self._begins[shard] + numbers - self._firsts[shard]
        return _before(self.groups(shuffled), shuffled)

    def groups(self, places: Numbers) -> Iterator[Group]:
        """The groups that places are in."""
        groups = np.searchsorted(self._groups, places, side="right") - 1
        for group in np.unique(groups).tolist():
            begin, end = self._groups[group : group + 2].tolist()
            # "window" is part of the key, so it stays: another word would be another order.
            order = _permutation(end - begin, self._key, "window", group)
            yield order, np.flatnonzero(groups == group), begin


class WindowShuffle:
    """A permutation of packed rows in which neighbours come from a few windows.

    Row i is in window `i // rows`; the last window may have fewer. The order of the windows is
    permuted and cut into groups of `group_windows`; the rows of each group are permuted together.
    Nothing is stored per window, so trillions of rows cost nothing.
    """

    def __init__(self, samples: int, rows: int, group_windows: int, epoch_key: int) -> None:
        self._rows = rows = min(rows, samples)
        self._count = -(-samples // rows)
        self._group_windows = min(group_windows, self._count)
        self._key = epoch_key
        self._order = Permutation(self._count, key(epoch_key, "windows"))
        # Where the last window comes in that order: later windows begin so many rows earlier.
        self._short = int(self._order.inverse(np.array([self._count - 1]))[0])
        self._missing = self._count * rows - samples

    def at(self, shuffled: Numbers) -> Numbers:
        """The row numbers at places in the order of the windows."""
        windows, rows = self._split(shuffled)
        return self._order(windows) * self._rows + rows

    def inverse(self, numbers: Numbers) -> Numbers:
        """The places in the epoch of rows."""
        windows, rows = np.divmod(numbers, self._rows)
        shuffled = self._begin(self._order.inverse(windows)) + rows
        return _before(self.groups(shuffled), shuffled)

    def _begin(self, windows: Numbers) -> Numbers:
        """The places where windows begin, given their place in the order of windows."""
        return windows * self._rows - self._missing * (windows > self._short)

    def _split(self, places: Numbers) -> tuple[Numbers, Numbers]:
        """The window at each place, as its place in the order of windows, and the row in it."""
        after = places >= (self._short + 1) * self._rows - self._missing
        windows, rows = np.divmod(places + self._missing * after, self._rows)
        return windows, rows

    def groups(self, places: Numbers) -> Iterator[Group]:
        """The groups that places are in."""
        groups = self._split(places)[0] // self._group_windows
        for group in np.unique(groups).tolist():
            ends = np.array([group, group + 1]) * self._group_windows
            begin, end = self._begin(np.minimum(ends, self._count)).tolist()
            order = _permutation(end - begin, self._key, "rows", group)
            yield order, np.flatnonzero(groups == group), begin


@lru_cache(maxsize=64)
def _permutation(n: int, epoch_key: int, word: str, group: int) -> Permutation:
    """The order within a group, of which usually one is in use for each source."""
    return Permutation(n, key(epoch_key, word, group))


def _before(groups: Iterable[Group], places: Numbers) -> Numbers:
    """Where places were before they were permuted within their groups."""
    before = np.empty_like(places)
    for permutation, here, begin in groups:
        before[here] = begin + permutation.inverse(places[here] - begin)
    return before


_Order = Permutation | GroupedShuffle | WindowShuffle
