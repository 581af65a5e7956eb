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

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from fineshards.loader.sample_sources import Numbers

WEIGHT_BITS = 50
UNIT_BITS = 60
WEIGHT_SUM = 1 << WEIGHT_BITS
UNIT = 1 << UNIT_BITS
TICKS_PER_DRAW = 1 << (UNIT_BITS - WEIGHT_BITS)
# Up to this many draws no tick reaches 2^61, even when most of the weight is exhausted.
MAX_DRAWS = 1 << 45
# The cap of a source that never ends.
ENDLESS = 1 << 62

# The fraction of the golden ratio, times 2^64. Its multiples, mod 2^64, are spread most evenly.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def integer_weights(weights: Sequence[Fraction]) -> Numbers:
    """Weights as integers with the sum 2^50, by largest remainders; a positive one is at least 1.

    Each differs from the exact quotient by less than 1, unless one had to be raised to 1. Weights
    must not be negative, and at least one must be positive.
    """
    denominator = lcm(*(weight.denominator for weight in weights))
    numerators = [int(weight * denominator) for weight in weights]
    total = sum(numerators)
    shares = [divmod(each * WEIGHT_SUM, total) for each in numerators]
    rounded = [share for share, _ in shares]
    by_remainder = sorted(range(len(shares)), key=lambda source: -shares[source][1])
    for source in by_remainder[: WEIGHT_SUM - sum(rounded)]:
        rounded[source] += 1
    raised = [source for source, each in enumerate(numerators) if each and not rounded[source]]
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
        return self._at(draws)[0]

    def draws(self, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """The draws [start, stop) of the mixture: (source indices, numbers within the source)."""
        before, after = self.counts_at(start), self.counts_at(stop)
        drawn = after - before
        sources = np.repeat(np.arange(len(drawn)), drawn)
        ends = np.cumsum(drawn)
        numbers = np.arange(stop - start) + np.repeat(before - (ends - drawn), drawn)
        # Stable, so that draws of one tick stay in the order of the sources.
        order = np.argsort(self._ticks(sources, numbers), kind="stable")
        return sources[order], numbers[order]

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

    def follow(self, draws: int, weights: Numbers) -> Stretch:
        """The stretch with other weights that follows the first `draws` draws.

        Each source keeps its count and its progress towards its next draw.
        """
        counts, tick = self._at(draws)
        drawn = counts - self.counts
        phases = _residue(self.weights, tick, self.phases, drawn)
        # An exhausted source has no next draw, and a source of weight 0 must not be due.
        phases[counts >= self.caps] = 0
        phases[weights == 0] = np.minimum(phases[weights == 0], UNIT - 1)
        return Stretch(draws, weights, phases, counts, self.caps)

    def _at(self, draws: int) -> tuple[Numbers, int]:
        """Counts after `draws` draws, and the tick of the last of them (0 if there is none)."""
        wanted = draws - self.first
        if wanted == 0:
            return self.counts.copy(), 0
        # No tick up to `low` is late enough: even without caps there are fewer draws by then.
        phases = int(self.phases.sum(dtype=np.float64) / UNIT) + 1
        low = max(0, (wanted - phases - 1) * TICKS_PER_DRAW) - 1
        step = 2 * TICKS_PER_DRAW * len(self.weights)
        while int(self._drawn(low + step).sum()) < wanted:
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if int(self._drawn(middle).sum()) < wanted:
                low = middle
            else:
                high = middle
        before = self._drawn(low)
        due = self._drawn(high) > before
        due &= np.cumsum(due) <= wanted - int(before.sum())
        return self.counts + before + due, high

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
