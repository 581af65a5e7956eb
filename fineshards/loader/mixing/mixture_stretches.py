"""The stretches of constant weights of a mixture, laid out as far as they are needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from fineshards.loader.mixing.apportionment import (
    ENDLESS,
    WEIGHT_SUM,
    Stretch,
    integer_weights,
    spread_phases,
)
from fineshards.loader.mixing.mixture_weights import Row
from fineshards.loader.permutation import key
from fineshards.loader.sample_sources import Numbers

# With `drop`, a new stretch begins when less than this weight is left: weights are rescaled there.
_REBALANCE_BELOW = WEIGHT_SUM // 16


class Stretches:
    """One stretch per change of weights, and a few more with `drop`.

    A change is computed from the one before. A schedule may have thousands, so those of an endless
    mixture are laid out when a draw beyond them is asked for. Phases are dealt among the sources
    that have a weight at the start, and then among those that join at the same change: they do not
    depend on sources that join later, which a run may add where it is resumed.

    changes: the weights of all sources from each draw on, from draw 0. names, lengths: of the
    sources. joins: for each source, the first change that gives it a weight; -1 if none does.
    length: the number of draws; None if the mixture is endless.
    """

    def __init__(
        self,
        changes: Mapping[int, Row],
        names: Sequence[str],
        lengths: Numbers,
        seed: int,
        exhausted: Literal["repeat", "stop", "drop"],
    ) -> None:
        self._changes, self._names, self._lengths = changes, names, lengths
        self._seed, self._exhausted = seed, exhausted
        self._starts = list(changes)
        has_weight = np.array(list(changes.values()), dtype=bool)
        first = np.array(self._starts)[has_weight.argmax(axis=0)]
        self.joins: Numbers = np.where(has_weight.any(axis=0), first, -1)
        self._join_draws = set(self.joins.tolist())
        self.length: int | None = None
        caps = lengths if exhausted == "drop" else np.full(len(lengths), ENDLESS)
        weights, phases, counts = np.zeros((3, len(lengths)), dtype=np.int64)
        begin = self._begin(Stretch(0, weights, phases, counts, caps))
        assert begin is not None
        # The stretches so far, and where the next one begins, or None. Replaced together, so that
        # threads need no lock: two may lay out the same stretches.
        self._laid_out: tuple[list[Stretch], int | None] = [begin], self._end(begin)
        if exhausted != "repeat":
            self._up_to(None)

    def at(self, draw: int) -> tuple[Stretch, int | None]:
        """The stretch that a draw belongs to, and where the next one begins; None for the last."""
        stretches, end = self._up_to(draw)
        number = bisect_right(stretches, draw, key=_first)
        return stretches[number - 1], stretches[number].first if number < len(stretches) else end

    def of(self, source: int, number: int) -> Stretch:
        """The stretch that takes number `number` of a source, which must be taken in one."""
        stretches, end = self._laid_out
        while end is not None and stretches[-1].counts[source] <= number:
            stretches, end = self._up_to(end)
        counts = [int(stretch.counts[source]) for stretch in stretches]
        return stretches[bisect_right(counts, number) - 1]

    def _up_to(self, draw: int | None) -> tuple[list[Stretch], int | None]:
        """The stretches that begin at a draw or before it; None for all of them."""
        stretches, end = self._laid_out
        more: list[Stretch] = []
        while end is not None and (draw is None or end <= draw):
            last = more[-1] if more else stretches[-1]
            following = self._begin(last.follow(end))
            if following is None:
                self.length, end = end, None
            else:
                more.append(following)
                end = self._end(following)
        self._laid_out = [*stretches, *more] if more else stretches, end
        return self._laid_out

    def _begin(self, before: Stretch) -> Stretch | None:
        """The stretch from the first draw of `before` on; None if no source is left."""
        draw = before.first
        at = self._starts[bisect_right(self._starts, draw) - 1]
        weights = self._changes[at]
        if self._exhausted == "drop":
            left = (before.counts < before.caps).tolist()
            weights = tuple(
                weight if is_left else 0 for weight, is_left in zip(weights, left, strict=True)
            )
            if not any(weights):
                return None
        whole = integer_weights(weights)
        if at == draw and at in self._join_draws:
            joining = np.flatnonzero(self.joins == at)
            hashes = [key(self._seed, "phase", self._names[source]) for source in joining.tolist()]
            start = key(self._seed, "phases", *([at] if at else []))
            before.phases[joining] = spread_phases(whole[joining], hashes, start)
        return before.reweighted(whole)

    def _end(self, stretch: Stretch) -> int | None:
        """Where the next stretch begins; None if there is none. Sets `length` if that is known."""
        following = bisect_right(self._starts, stretch.first)
        until = self._starts[following] if following < len(self._starts) else None
        end = self._exhaustion(stretch, until)
        if end is None or (until is not None and end >= until):
            return until
        if self._exhausted == "drop":
            return end
        self.length = end
        return None

    def _exhaustion(self, stretch: Stretch, until: int | None) -> int | None:
        """Where sources that end need new weights (`drop`) or end the mixture (`stop`).

        None if that is nowhere; None or any draw beyond `until` if it is beyond that.
        """
        if self._exhausted == "repeat":
            return None
        drops = self._exhausted == "drop"
        # The last draw of each source, or the first draw that would repeat a sample.
        numbers = self._lengths - 1 if drops else self._lengths
        ending = (stretch.weights > 0) & (stretch.counts <= numbers)
        if until is not None:
            ending &= numbers - stretch.counts < until - stretch.first
        active = np.flatnonzero(ending).tolist()
        ends = sorted((stretch.tick(source, int(numbers[source])), source) for source in active)
        left = int(stretch.weights[stretch.counts <= numbers].sum())
        for tick, source in ends:
            # Until here the sources that are left have a sixteenth of the weight or more.
            if until is not None and tick > (until - stretch.first + len(numbers) + 1) << 14:
                return None
            left -= int(stretch.weights[source])
            if not drops:
                return stretch.position(source, int(numbers[source]))
            if left < _REBALANCE_BELOW:
                return stretch.position(source, int(numbers[source])) + 1
        return None


def _first(stretch: Stretch) -> int:
    return stretch.first
