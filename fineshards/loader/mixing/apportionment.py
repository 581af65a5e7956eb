"""Which source each draw of a mixture comes from: closed forms in exact integers.

Draws with constant weights follow a divisor method of apportionment (Balinski and Young, "Fair
Representation", 1982), read as a clock. Draw k = 0, 1, … from a source of weight w is due at the
virtual time (k + 1 - phase) / w; the mixture is the draws of all sources in the order of these
times. With every phase at 1/2 this is Webster's method (Sainte-Laguë). Phases spread over [0, 1)
keep many small sources from being due at the same time. A divisor method is house monotone: one
more draw never takes a draw away from a source. So for every n, the first n draws take a prefix of
each source, and the length of each prefix follows from the time of the n-th draw alone.

Time is measured in ticks, 2^10 per draw on average. Weights are integers with the sum 2^50. Up to
and including a tick, a source has been drawn floor((tick * weight + phase) / 2^60) times, where
its phase is an integer too. Draws of the same tick are in the order of the sources.

After n draws, the number of draws from a source of weight w, among K sources, differs from w * n by
less than 1 + w * (K - 1), whatever the phases; `Stretch` has the proof. With the phases of
`spread_phases` it differs by less than 1 + w * (K / 2 - 1) + 2^-9.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from operator import attrgetter
from typing import Literal, TypeAlias

import numpy as np

from fineshards.loader.permutation import key
from fineshards.loader.sample_sources import Numbers

Weight: TypeAlias = int | float | Fraction
Row: TypeAlias = tuple[Weight, ...]

WEIGHT_BITS = 50
UNIT_BITS = 60
WEIGHT_SUM = 1 << WEIGHT_BITS
UNIT = 1 << UNIT_BITS
# Up to this many draws no tick reaches 2^61, even when most of the weight is exhausted.
MAX_DRAWS = 1 << 45
# The cap of a source that never ends.
ENDLESS = 1 << 62

# With `drop`, a new stretch begins when less than this weight is left: weights are rescaled there.
_REBALANCE_BELOW = WEIGHT_SUM // 16

# The fraction of the golden ratio, times 2^64. Its multiples, mod 2^64, are spread most evenly.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def integer_weights(weights: Sequence[int | float | Fraction]) -> Numbers:
    """Weights as integers with the sum 2^50, by largest remainders; a positive one is at least 1.

    Each differs from the exact quotient by less than 1, unless one had to be raised to 1. Weights
    must not be negative, and at least one must be positive.
    """
    ratios = [weight.as_integer_ratio() for weight in weights]
    denominator = lcm(*[below for _, below in ratios])
    numerators = [above * (denominator // below) for above, below in ratios]
    total = sum(numerators)
    shares = [divmod(numerator << WEIGHT_BITS, total) for numerator in numerators]
    rounded = [share for share, _ in shares]
    by_remainder = sorted(range(len(shares)), key=lambda source: -shares[source][1])
    for source in by_remainder[: WEIGHT_SUM - sum(rounded)]:
        rounded[source] += 1
    raised = [source for source, above in enumerate(numerators) if above and not rounded[source]]
    for source in raised:
        rounded[source] = 1
    rounded[max(range(len(rounded)), key=rounded.__getitem__)] -= len(raised)
    return np.array(rounded, dtype=np.int64)


def spread_phases(weights: Numbers, hashes: Sequence[int], start: int) -> Numbers:
    """A phase per source: the K numbers (r + 1/2) / K, in units of 2^-60.

    Sources are ordered by weight, then by hash, and take phases in steps of the golden ratio. So
    sources of similar weight have distant phases, and their draws are spread evenly.
    start: any integer; another one assigns the phases differently.
    """
    count = len(weights)
    steps = np.arange(count, dtype=np.uint64) + np.uint64(start % 2**32)
    ranks = np.empty(count, dtype=np.int64)
    ranks[np.argsort(steps * _GOLDEN, kind="stable")] = np.arange(count)
    phases = np.empty(count, dtype=np.int64)
    by_weight = list(zip(weights.tolist(), hashes, range(count), strict=True))
    order = [source for _, _, source in sorted(by_weight)]
    phases[order] = [(2 * rank + 1) * UNIT // (2 * count) for rank in ranks.tolist()]
    return phases


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Draws with constant weights, beginning with draw `first`.

    weights: integers with the sum 2^50. phases: from 0 to less than 2^60 + 2^50; 2^60 and more is
    due at once. counts: draws from each source before `first`. caps: draws from each source in
    total, ENDLESS for no limit. A source at its cap is skipped, and the others keep their
    proportions, as in any divisor method.

    Proof of the bound: after n draws the tick is t * 2^10, and source i has been drawn
    w_i t + phase_i - e_i times, with 0 <= e_i < 1 (+ w_i * 2^-10 within a tick). The sum over all
    sources is n. This gives t, and then the deviation
    (1 - w_i)(phase_i - e_i) - w_i * (sum over j != i of phase_j - e_j).
    """

    first: int
    weights: Numbers
    phases: Numbers
    counts: Numbers
    caps: Numbers

    def counts_at(self, draws: int) -> Numbers:
        """Draws from each source among the first `draws` draws (at least `first`)."""
        before, sources, _ = self._around(draws, draws)
        here = draws - self.first - int(before.sum())
        return self.counts + before + np.bincount(sources[:here], minlength=len(before))

    def draws(self, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """The draws [start, stop) of the mixture: (source indices, numbers within the source)."""
        before, sources, numbers = self._around(start, stop)
        begin = self.first + int(before.sum())
        return sources[start - begin : stop - begin], numbers[start - begin : stop - begin]

    def position(self, source: int, number: int) -> int:
        """The draw of the mixture that takes number `number` of a source, counted from 0.

        The source's weight must be positive, and the number at least its count at `first`.
        """
        tick = self.tick(source, number)
        drawn = self._drawn(tick - 1)
        drawn[:source] = self._drawn(tick)[:source]
        drawn[source] = number - self.counts[source]
        return self.first + int(drawn.sum())

    def tick(self, source: int, number: int) -> int:
        """The tick when number `number` of a source is due; Python integers, so of any size."""
        wanted = (number - int(self.counts[source]) + 1) * UNIT - int(self.phases[source])
        return max(0, -(-wanted // int(self.weights[source])))

    def follow(self, draws: int) -> Stretch:
        """The stretch with the same weights that follows the first `draws` draws.

        Each source keeps its count and its progress towards its next draw.
        """
        before, sources, numbers = self._around(max(draws - 1, self.first), draws)
        here = draws - self.first - int(before.sum())
        drawn = before + np.bincount(sources[:here], minlength=len(before))
        last = self.tick(int(sources[here - 1]), int(numbers[here - 1])) if here else 0
        progress = _residue(self.weights, last, self.phases, drawn)
        # An exhausted source has no next draw.
        phases = np.where(drawn < self.caps - self.counts, progress, 0)
        return Stretch(draws, self.weights, phases, self.counts + drawn, self.caps)

    def reweighted(self, weights: Numbers) -> Stretch:
        """The stretch with other weights from its beginning."""
        phases = self.phases
        if not weights.all():
            # A source of weight 0 must not be due.
            phases = np.where(weights == 0, np.minimum(phases, UNIT - 1), phases)
        return Stretch(self.first, weights, phases, self.counts, self.caps)

    def _around(self, start: int, stop: int) -> tuple[Numbers, Numbers, Numbers]:
        """Draws in order, from `start` or some before, up to `stop` or some after.

        Returns the draws from each source before them in this stretch, and of each its source and
        the number within the source.
        """
        tick, before = self._tick_before(start - self.first)
        after = before
        while (missing := stop - self.first - int(after.sum())) > 0:
            # Draws and weights differ by less than one draw per source, so this is late enough,
            # unless a source ends before.
            tick += (missing + len(after)) * UNIT // self._active(after) + 1
            after = self._drawn(tick)
        drawn = after - before
        sources = np.repeat(np.arange(len(drawn)), drawn)
        firsts = self.counts + before - (np.cumsum(drawn) - drawn)
        numbers = np.arange(len(sources)) + np.repeat(firsts, drawn)
        # Stable, so that draws of one tick stay in the order of the sources.
        order = np.argsort(self._ticks(sources, numbers), kind="stable")
        return before, sources[order], numbers[order]

    def _tick_before(self, wanted: int) -> tuple[int, Numbers]:
        """A tick with at most `wanted` draws up to it, not many fewer; and these, by source."""
        # The sum of the phases does not fit into 64 bits; this is at least as much.
        phases = int(((self.phases >> 30) + 1).sum()) << 30
        tick = max(-1, (wanted * UNIT - phases) // WEIGHT_SUM)
        drawn = self._drawn(tick)
        # Only where sources have ended by then.
        while (missing := wanted - int(drawn.sum()) - 2 * len(drawn)) > 0:
            tick += missing * UNIT // self._active(drawn) + 1
            drawn = self._drawn(tick)
        return tick, drawn

    def _active(self, drawn: Numbers) -> int:
        """The weight of the sources that have not ended, after so many draws from each."""
        return int(self.weights[drawn < self.caps - self.counts].sum())

    def _drawn(self, tick: int) -> Numbers:
        """Draws from each source in this stretch, up to and including a tick; -1 is before all."""
        if tick < 0:
            return np.zeros(len(self.weights), dtype=np.int64)
        # The float quotient is off by at most 1; the residue corrects it.
        estimate = (self.weights * (tick / UNIT)).astype(np.int64)
        drawn = estimate + (_residue(self.weights, tick, self.phases, estimate) >> UNIT_BITS)
        capped: Numbers = np.minimum(drawn, self.caps - self.counts)
        return capped

    def _ticks(self, sources: Numbers, numbers: Numbers) -> Numbers:
        """The ticks of many draws; `tick`, vectorised."""
        weights, phases = self.weights[sources], self.phases[sources]
        drawn = numbers - self.counts[sources] + 1
        estimate = ((drawn * float(UNIT) - phases) / weights).astype(np.int64)
        ticks = estimate - _residue(weights, estimate, phases, drawn) // weights
        return np.maximum(ticks, 0)


def _residue(weights: Numbers, ticks: Numbers | int, phases: Numbers, drawn: Numbers) -> Numbers:
    """ticks * weights + phases - drawn * 2^60, exactly, for results of less than 2^63 either way.

    The terms have up to 110 bits. Their sum modulo 2^64 is exact, and therefore so is the result.
    """
    product = weights.view(np.uint64) * np.asarray(ticks, dtype=np.int64).view(np.uint64)
    total = product + phases.view(np.uint64) - drawn.view(np.uint64) * np.uint64(UNIT)
    return total.view(np.int64)


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
        number = bisect_right(stretches, draw, key=attrgetter("first"))
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
