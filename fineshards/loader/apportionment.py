"""Which source gives each draw of a mixture: closed forms in exact integers.

A stretch of constant weights is a divisor method of apportionment (Balinski and Young, "Fair
Representation", 1982) read as a clock. A source of weight w gives its draws at the virtual times
(k + 1 - phase) / w, k = 0, 1, …; the draws of all sources in the order of these times are the
mixture. With all phases at 1/2 it would be Webster's method (Sainte-Laguë). Phases spread over
[0, 1) keep many small sources from being due all at once. A divisor method is house monotone: one
draw more takes nothing from anybody. So the first n draws are a prefix of every source for each n,
and how many come from each follows from the time of the n-th draw alone.

Time is cut into ticks, 2^10 for one draw on average. Weights are integers that add up to 2^50, and
a source has given floor((tick * weight + phase) / 2^60) draws up to and including a tick, where its
phase is an integer too. Draws of the same tick come in the order of the sources' numbers.

The deviation of a source of weight w among K, after n draws of a stretch, is less than
1 + w * (K - 1) draws from w * n, whatever the phases; `Stretch` shows why. With phases that are
spread as `spread_phases` does, it is less than 1 + w * (K / 2 - 1) + 2^-9.
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
TICKS_A_DRAW = 1 << (UNIT_BITS - WEIGHT_BITS)
# Below this many draws no tick reaches 2^61, even when most of the weight is exhausted.
MAX_DRAWS = 1 << 45
# As `caps` and `lengths`: a source that never ends.
ENDLESS = 1 << 62

# The golden ratio's fraction times 2^64: its multiples, mod 2^64, are spread as evenly as can be.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def integer_weights(weights: Sequence[Fraction]) -> Numbers:
    """Weights as integers with the sum 2^50, by largest remainders; positive ones get at least 1.

    Each is less than 1 away from the exact quotient, if none had to be raised to 1. The weights
    must not be negative, and not all zero.
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
    """A phase for each source: the K numbers (r + 1/2) / K, in units of 2^-60.

    They are dealt by the golden ratio to the sources in the order of weight and, where weights are
    equal, of hash, so that sources of about the same weight have phases far apart and come evenly.
    start: any number; another one deals the phases otherwise.
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
    """Draws from `first` on with constant weights.

    weights: integers with the sum 2^50. phases: from 0 to less than 2^60 + 2^50, where 2^60 and
    more is due at once. counts: what each source had given before. caps: what each source gives in
    all (ENDLESS: no limit); a source at its cap is passed over, so that the others go on in their
    own proportions, as a divisor method does by itself.

    The bound: after n draws the tick is t * 2^10, and source i has given w_i t + phase_i - e_i,
    with 0 <= e_i < 1 (+ w_i * 2^-10 within a tick). The sum over all sources is n, which gives t,
    and the deviation (1 - w_i)(phase_i - e_i) - w_i * (sum over j != i of phase_j - e_j).
    """

    first: int
    weights: Numbers
    phases: Numbers
    counts: Numbers
    caps: Numbers

    def counts_at(self, draws: int) -> Numbers:
        """What each source has given when `draws` draws of the mixture are made (first or more)."""
        return self._at(draws)[0]

    def draws(self, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """The draws [start, stop) of the mixture: (source numbers, numbers within source)."""
        before, after = self.counts_at(start), self.counts_at(stop)
        given = after - before
        sources = np.repeat(np.arange(len(given)), given)
        ends = np.cumsum(given)
        numbers = np.arange(stop - start) + np.repeat(before - (ends - given), given)
        # Stable: draws of one tick stay in the order of the sources.
        order = np.argsort(self._ticks(sources, numbers), kind="stable")
        return sources[order], numbers[order]

    def position(self, source: int, number: int) -> int:
        """The mixture's draw that is a source's `number`-th, counted from 0.

        The source must have a weight, and give that draw in this stretch if it went on for ever.
        """
        tick = self.tick(source, number)
        given = self._given(tick - 1)
        given[:source] = self._given(tick)[:source]
        given[source] = number - self.counts[source]
        return self.first + int(given.sum())

    def tick(self, source: int, number: int) -> int:
        """The tick of a source's draw; any size, by Python's integers."""
        wanted = (number - int(self.counts[source]) + 1) * UNIT - int(self.phases[source])
        return max(0, -(-wanted // int(self.weights[source])))

    def follow(self, draws: int, weights: Numbers) -> Stretch:
        """The stretch that begins when `draws` draws are made, with other weights.

        Each source keeps what it has given, and how far it is on the way to its next draw.
        """
        counts, tick = self._at(draws)
        given = counts - self.counts
        phases = _residue(self.weights, tick, self.phases, given)
        # What is exhausted has no next draw, and without a weight nothing is due.
        phases[counts >= self.caps] = 0
        phases[weights == 0] = np.minimum(phases[weights == 0], UNIT - 1)
        return Stretch(draws, weights, phases, counts, self.caps)

    def _at(self, draws: int) -> tuple[Numbers, int]:
        """Counts after `draws` draws, and the tick that they reach into (-1: none is begun)."""
        wanted = draws - self.first
        if wanted == 0:
            return self.counts.copy(), 0
        # No tick up to `low` is enough: without caps, the sources have given at most this many.
        phases = int(self.phases.sum(dtype=np.float64) / UNIT) + 1
        low = max(0, (wanted - phases - 1) * TICKS_A_DRAW) - 1
        step = 2 * TICKS_A_DRAW * len(self.weights)
        while int(self._given(low + step).sum()) < wanted:
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if int(self._given(middle).sum()) < wanted:
                low = middle
            else:
                high = middle
        before = self._given(low)
        due = self._given(high) > before
        due &= np.cumsum(due) <= wanted - int(before.sum())
        return self.counts + before + due, high

    def _given(self, tick: int) -> Numbers:
        """What each source has given in this stretch up to and including a tick (-1: nothing)."""
        if tick < 0:
            return np.zeros(len(self.weights), dtype=np.int64)
        # The quotient as a float is at most 1 off; what is left over tells it exactly.
        estimate = (self.weights * (tick / UNIT)).astype(np.int64)
        given = estimate + (_residue(self.weights, tick, self.phases, estimate) >> UNIT_BITS)
        capped: Numbers = np.minimum(given, self.caps - self.counts)
        return capped

    def _ticks(self, sources: Numbers, numbers: Numbers) -> Numbers:
        """The ticks of draws, vectorised: the same as `tick`."""
        weights, phases = self.weights[sources], self.phases[sources]
        given = numbers - self.counts[sources] + 1
        estimate = ((given * float(UNIT) - phases) / weights).astype(np.int64)
        ticks = estimate - _residue(weights, estimate, phases, given) // weights
        return np.maximum(ticks, 0)


def _residue(weights: Numbers, ticks: Numbers | int, phases: Numbers, given: Numbers) -> Numbers:
    """ticks * weights + phases - given * 2^60, exactly, where it is less than 2^63 either way.

    The terms have up to 110 bits. Their sum is right modulo 2^64, and so right.
    """
    product = weights.view(np.uint64) * np.asarray(ticks, dtype=np.int64).view(np.uint64)
    total = product + phases.view(np.uint64) - given.view(np.uint64) * np.uint64(UNIT)
    return total.view(np.int64)
