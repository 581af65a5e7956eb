"""Mixtures: which source, and which of its samples, each sample of training is.

Nothing is precomputed but the stretches of constant weights, of which there is one for each entry
of a schedule, and with `drop` some more: `loader/apportionment.py` has the arithmetic of one.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

import numpy as np

from fineshards.errors import UsageError
from fineshards.loader.apportionment import (
    ENDLESS,
    MAX_DRAWS,
    WEIGHT_SUM,
    Stretch,
    integer_weights,
    spread_phases,
)
from fineshards.loader.arguments import whole_number
from fineshards.loader.mixture_plan import SourcePlan, table
from fineshards.loader.permutation import key
from fineshards.loader.sample_sources import Numbers, Source

Weight: TypeAlias = int | float | Fraction
Exhausted = Literal["repeat", "stop", "drop"]

# Part of every fingerprint: changes when the order of any mixture does.
ALGORITHM_VERSION = 1
# With `drop`, a new stretch makes up the weight of the exhausted sources when this much is left.
_RENEWAL = WEIGHT_SUM // 16


class Mixture:
    """An endless or finite sequence of draws, (source, number within source), by weights.

    Number k of a source is its (k + 1)-th draw, whatever is drawn from others; from `len(source)`
    on, the source is being repeated, and k // len(source) is the epoch. The first n draws hold the
    numbers from 0 up to some k of each source, for every n: nothing twice, nothing left out.

    sources: name -> (source, weight). Weights are of any sum, exact as given (int, float or
    Fraction), and are used to 2^-50 of their sum, a positive one as at least that.
    seed: any integer; another one may interleave the sources otherwise.
    exhausted: when all samples of a source are drawn, `repeat` begins it again (readers shuffle it
    anew), `stop` ends the mixture before the first draw that would repeat one, and `drop` goes on
    with the others in their proportions, until none with a weight at that time is left.
    weights_in: `samples`, or `tokens` for sources with samples of several lengths.
    schedule: number of a draw (step * batch size) -> weights of all sources from that draw on.
    No source loses its place: where weights change, each keeps what it has given, and how far it is
    on the way to its next draw.

    After n draws a source of weight w, of K sources, has given w * n to within
    1 + w * (K / 2 - 1) + 2^-9, before any change of weights and as long as no source is dropped;
    between changes, what it gives deviates by less than (1 + w * (K - 2)) * (1 + 2^-10).
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[Source, Weight]],
        seed: int = 0,
        exhausted: Exhausted = "repeat",
        weights_in: Literal["samples", "tokens"] = "samples",
        schedule: Mapping[int, Mapping[str, Weight]] | None = None,
    ) -> None:
        """Raises UsageError for sources, weights or a schedule that give no mixture."""
        seed = whole_number("seed", seed)
        if not sources:
            raise UsageError("a mixture needs at least one source, and there is none.")
        if exhausted not in get_args(Exhausted):
            raise UsageError(f"exhausted={exhausted!r}: expected 'repeat', 'stop' or 'drop'.")
        if weights_in not in ("samples", "tokens"):
            raise UsageError(f"weights_in={weights_in!r}: expected 'samples' or 'tokens'.")
        for name, pair in sources.items():
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise UsageError(f"source {name!r} of the mixture is not (source, weight).")
        self.names = tuple(sources)
        self.sources: tuple[Source, ...] = tuple(source for source, _ in sources.values())
        self.lengths = np.array([len(source) for source in self.sources], dtype=np.int64)
        for name, length in zip(self.names, self.lengths, strict=True):
            if length < 1:
                raise UsageError(f"source {name!r} of the mixture has no samples; leave it out.")
        if (samples := sum(map(len, self.sources))) > MAX_DRAWS:
            raise UsageError(f"the sources have {samples} samples; a mixture takes {MAX_DRAWS}.")
        self._sizes = [source.tokens_a_sample for source in self.sources]
        self._exhausted = exhausted
        self._in_tokens = weights_in == "tokens"
        initial = {name: weight for name, (_, weight) in sources.items()}
        changes = {0: initial, **self._checked(schedule or {})}
        weights = {at: self._weights(at, changes[at]) for at in sorted(changes)}
        phases = spread_phases(
            integer_weights(weights[0]),
            [key(seed, "phase", name) for name in self.names],
            key(seed, "phases"),
        )
        self._stretches, self.length = self._lay_out(weights, phases)
        self._firsts = [stretch.first for stretch in self._stretches]
        self._seed, self._changes = seed, weights
        self.fingerprint = self.fingerprint_of(MAX_DRAWS)

    @property
    def tokens_a_sample(self) -> int:
        """The tokens of every sample; raises UsageError if the sources' samples differ in it."""
        for name, size in zip(self.names, self._sizes, strict=True):
            if size != self._sizes[0]:
                raise UsageError(
                    f"samples of {self.names[0]!r} have {self._sizes[0]} tokens and those of "
                    f"{name!r} {size}: open both with the same sequence_length for one batch."
                )
        return self._sizes[0]

    def __len__(self) -> int:
        """The number of draws; raises TypeError if there is no end (`length` is None then)."""
        if self.length is None:
            raise TypeError("the mixture is endless")
        return self.length

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, draw: int) -> tuple[str, int]:
        """The source's name and the number within the source of one draw."""
        draw = operator.index(draw)
        sources, numbers = self.draws(draw, draw + 1)
        return self.names[int(sources[0])], int(numbers[0])

    def draws(self, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """The draws [start, stop): (numbers of the sources in `sources`, numbers within source).

        Raises IndexError beyond the end.
        """
        start, stop = operator.index(start), operator.index(stop)
        self._check_range(start, stop)
        parts = []
        while start < stop:
            at = bisect_right(self._firsts, start) - 1
            end = min([stop, *self._firsts[at + 1 : at + 2]])
            parts.append(self._stretches[at].draws(start, end))
            start = end
        if len(parts) == 1:
            return parts[0]
        empty = np.empty(0, dtype=np.int64)
        return (
            np.concatenate([empty, *(sources for sources, _ in parts)]),
            np.concatenate([empty, *(numbers for _, numbers in parts)]),
        )

    def fingerprint_of(self, draws: int) -> str:
        """Of all that decides the first draws, or what is read for them.

        Mixtures that differ in later weights have the same, so that a schedule may be changed, or
        begun, where a run is resumed.
        """
        weights = {at: list(map(str, given)) for at, given in self._changes.items() if at < draws}
        content = {
            "version": ALGORITHM_VERSION,
            "seed": self._seed,
            "sources": [
                [name, source.fingerprint, len(source), source.tokens_a_sample]
                for name, source in zip(self.names, self.sources, strict=True)
            ],
            "exhausted": self._exhausted,
            "weights": weights or {0: list(map(str, self._changes[0]))},
        }
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def counts(self, draws: int) -> dict[str, int]:
        """What each source gives among the first `draws` draws; raises IndexError."""
        return dict(zip(self.names, self._counts(draws).tolist(), strict=True))

    def plan(self, steps: int, batch_size: int = 1) -> tuple[SourcePlan, ...]:
        """What each source will give in `steps` batches; prints it as a table, and returns it.

        A mixture that ends earlier is planned up to its end. Raises UsageError.
        """
        steps, batch_size = (
            whole_number("steps", steps, 1),
            whole_number("batch_size", batch_size, 1),
        )
        end = MAX_DRAWS if self.length is None else self.length
        draws = min(steps * batch_size, end)
        counts = self._counts(draws)
        shares = self._stretches[0].weights / WEIGHT_SUM
        plan = tuple(
            SourcePlan(
                name=name,
                weight=float(shares[source]),
                samples=(given := int(counts[source])),
                tokens=given * self._sizes[source],
                epochs=given / int(self.lengths[source]),
                first_repeated_step=(
                    self._position(source, int(self.lengths[source])) // batch_size
                    if given > self.lengths[source]
                    else None
                ),
            )
            for source, name in enumerate(self.names)
        )
        print(table(plan, draws, batch_size))
        return plan

    def _checked(
        self, schedule: Mapping[int, Mapping[str, Weight]]
    ) -> dict[int, Mapping[str, Weight]]:
        checked = {}
        for at, weights in schedule.items():
            if not isinstance(at, int | np.integer) or not 0 < at < MAX_DRAWS:
                raise UsageError(
                    f"the schedule changes weights at {at!r}: expected the number of a draw, from "
                    "1 on (step * batch size)."
                )
            if odd := sorted(set(weights) ^ set(self.names)):
                known = "no weight for" if odd[0] in self.names else "an unknown source,"
                raise UsageError(
                    f"the schedule has {known} {odd[0]!r} at draw {at}; it needs a weight for each "
                    f"of {', '.join(self.names)}."
                )
            checked[int(at)] = weights
        return checked

    def _weights(self, at: int, given: Mapping[str, Weight]) -> list[Fraction]:
        """Weights in samples, checked, in the order of the sources."""
        weights = []
        for name, size in zip(self.names, self._sizes, strict=True):
            weight = given[name]
            is_number = isinstance(weight, int | float | Fraction | np.integer | np.floating)
            if not is_number or isinstance(weight, bool) or not math.isfinite(weight):
                raise UsageError(f"the weight of source {name!r} is {weight!r}, expected a number.")
            if weight < 0:
                raise UsageError(f"the weight of source {name!r} is {weight}, and below zero.")
            exact = weight if isinstance(weight, int | Fraction) else Fraction(float(weight))
            weights.append(Fraction(exact) / (size if self._in_tokens else 1))
        if not any(weights):
            raise UsageError(
                f"all weights of the mixture are zero{f' from draw {at} on' if at else ''}; "
                "at least one must be positive."
            )
        return weights

    def _lay_out(
        self, changes: Mapping[int, Sequence[Fraction]], phases: Numbers
    ) -> tuple[list[Stretch], int | None]:
        """All stretches, and the number of draws, None if there is no end."""
        drops = self._exhausted == "drop"
        caps = self.lengths if drops else np.full(len(self.lengths), ENDLESS)
        nothing = np.zeros(len(self.lengths), dtype=np.int64)
        stretch: Stretch | None = None
        stretches: list[Stretch] = []
        for at, until in zip(changes, [*list(changes)[1:], None], strict=True):
            draws = at
            while until is None or draws < until:
                counts = stretch.counts_at(draws) if stretch else nothing
                wanted = [
                    weight if count < cap else Fraction(0)
                    for weight, count, cap in zip(changes[at], counts, caps, strict=True)
                ]
                if not any(wanted):
                    return stretches, draws
                weights = integer_weights(wanted)
                stretch = (
                    stretch.follow(draws, weights)
                    if stretch
                    else Stretch(draws, weights, phases, nothing, caps)
                )
                stretches.append(stretch)
                end = self._end(stretch)
                if end is None or (until is not None and end >= until):
                    break
                if not drops:
                    return stretches, end
                draws = end
        return stretches, None

    def _end(self, stretch: Stretch) -> int | None:
        """Where a stretch must end: `stop` ends the mixture there, `drop` deals weights anew."""
        if self._exhausted == "repeat":
            return None
        drops = self._exhausted == "drop"
        # The last draw of each source, or the first that would repeat.
        numbers = self.lengths - 1 if drops else self.lengths
        active = np.flatnonzero((stretch.weights > 0) & (stretch.counts <= numbers)).tolist()
        ends = sorted((stretch.tick(source, int(numbers[source])), source) for source in active)
        left = int(stretch.weights.sum())
        for _, source in ends:
            left -= int(stretch.weights[source])
            if not drops:
                return stretch.position(source, int(numbers[source]))
            if left < _RENEWAL:
                return stretch.position(source, int(numbers[source])) + 1
        return None

    def _counts(self, draws: int) -> Numbers:
        draws = operator.index(draws)
        self._check_range(0, draws)
        return self._stretches[bisect_right(self._firsts, draws) - 1].counts_at(draws)

    def _position(self, source: int, number: int) -> int:
        """The draw that is a source's `number`-th."""
        # The last stretch before which the source has not given it yet.
        given = [int(stretch.counts[source]) for stretch in self._stretches]
        return self._stretches[bisect_right(given, number) - 1].position(source, number)

    def _check_range(self, start: int, stop: int) -> None:
        end = MAX_DRAWS if self.length is None else self.length
        if not 0 <= start <= stop <= end:
            raise IndexError(f"draws {start} to {stop} of a mixture of {end}")
