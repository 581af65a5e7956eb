"""Mixtures: which source each training sample comes from, and which sample of it.

The only precomputed data are the stretches of constant weights: one per entry of a schedule, and a
few more with `drop`. The arithmetic within a stretch is in `fineshards.loader.apportionment`.
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
from fineshards.loader.arguments import checked_integer
from fineshards.loader.mixture_plan import SourcePlan, table
from fineshards.loader.permutation import key
from fineshards.loader.sample_sources import Numbers, Source

Weight: TypeAlias = int | float | Fraction
Exhausted = Literal["repeat", "stop", "drop"]

# Part of every fingerprint: changes when the order of any mixture changes.
ALGORITHM_VERSION = 1
# With `drop`, a new stretch begins when less than this weight is left: weights are rescaled there.
_REBALANCE_BELOW = WEIGHT_SUM // 16


class Mixture:
    """A sequence of draws from several sources, by exact weights.

    Each draw is a source and a number within that source. Numbers count the source's draws from 0:
    the first n draws take a prefix of every source, for every n, so no sample is repeated or
    skipped. From `len(source)` on, the numbers repeat the source; number // len(source) is its
    epoch. No index is stored: each draw is computed from its position.

    Pass a Mixture to `BatchLoader` in place of a dataset.

    After n draws, a source of weight w among K sources has w * n draws to within
    1 + w * (K / 2 - 1) + 2^-9, up to the first change of weights and while no source is dropped.
    Between two changes, its draws deviate by less than (1 + w * (K - 2)) * (1 + 2^-10).

    Args:
        sources: Maps each name to (source, weight). A source is a TokenDataset or any other
            `fineshards.loader.sample_sources.Source`. Weights are ints, floats or Fractions with
            any sum. They are exact to 2^-50 of their sum, and a positive weight counts as at least
            that. A source of weight 0 is drawn only if the schedule changes its weight.
        seed: Any integer. Another seed may interleave the sources differently.
        exhausted: What happens when all samples of a source are drawn. `repeat` starts the source
            again; a BatchLoader shuffles each of its epochs differently. `stop` ends the mixture
            before the first draw that would repeat a sample. `drop` goes on with the other sources
            in their proportions, until no source with a weight at that time is left.
        weights_in: `samples`, or `tokens` for sources with different sequence lengths.
        schedule: Maps draws (step * batch size) to the weights of all sources from that draw on.
            Every source keeps its position and its progress towards its next draw.

    Attributes:
        names: The sources' names, in order.
        sources: The sources, in the same order.
        lengths: The sources' numbers of samples: int64, shape (sources,).
        length: The number of draws; None if the mixture is endless.
        fingerprint: Identifies the sources, the weights and all other arguments.

    Raises:
        UsageError: The sources, weights or schedule do not form a mixture.

    Example:
        >>> from fineshards import BatchLoader, Mixture, TokenDataset
        >>> train = TokenDataset(dataset_folder, sequence_length=1024)
        >>> test = TokenDataset(dataset_folder, "test", sequence_length=1024)
        >>> mix = Mixture({"train": (train, 0.9), "test": (test, 0.1)}, seed=1)
        >>> mix.counts(1000)
        {'train': 900, 'test': 100}
        >>> mix[10**9]
        ('train', 900000000)
        >>> with BatchLoader(mix, batch_size=8, seed=1) as loader:
        ...     next(loader).shape
        (8, 1025)
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[Source, Weight]],
        seed: int = 0,
        exhausted: Exhausted = "repeat",
        weights_in: Literal["samples", "tokens"] = "samples",
        schedule: Mapping[int, Mapping[str, Weight]] | None = None,
    ) -> None:
        seed = checked_integer("seed", seed)
        if not sources:
            raise UsageError("a mixture needs at least one source.")
        if exhausted not in get_args(Exhausted):
            raise UsageError(f"exhausted is {exhausted!r}; choose 'repeat', 'stop' or 'drop'.")
        if weights_in not in ("samples", "tokens"):
            raise UsageError(f"weights_in is {weights_in!r}; choose 'samples' or 'tokens'.")
        for name, pair in sources.items():
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise UsageError(f"source {name!r} of the mixture is not a pair (source, weight).")
        self.names = tuple(sources)
        self.sources: tuple[Source, ...] = tuple(source for source, _ in sources.values())
        self.lengths = np.array([len(source) for source in self.sources], dtype=np.int64)
        for name, length in zip(self.names, self.lengths, strict=True):
            if length < 1:
                raise UsageError(f"source {name!r} of the mixture has no samples; leave it out.")
        if (samples := sum(map(len, self.sources))) > MAX_DRAWS:
            raise UsageError(f"the sources have {samples} samples; a mixture can hold {MAX_DRAWS}.")
        self._sizes = [source.sequence_length for source in self.sources]
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
    def sequence_length(self) -> int:
        """T, tokens per sample; raises UsageError if the sources' sequence lengths differ."""
        for name, size in zip(self.names, self._sizes, strict=True):
            if size != self._sizes[0]:
                raise UsageError(
                    f"the sequence_length of {self.names[0]!r} is {self._sizes[0]}, but that of "
                    f"{name!r} is {size}: open both with the same one to read them in batches."
                )
        return self._sizes[0]

    def __len__(self) -> int:
        """The number of draws; raises TypeError if the mixture is endless."""
        if self.length is None:
            raise TypeError("the mixture is endless")
        return self.length

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, draw: int) -> tuple[str, int]:
        """One draw: the source's name, and the number within the source."""
        draw = operator.index(draw)
        sources, numbers = self.draws(draw, draw + 1)
        return self.names[int(sources[0])], int(numbers[0])

    def draws(self, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """The draws [start, stop).

        Args:
            start: The first draw, from 0.
            stop: The draw after the last.

        Returns:
            Two int64 arrays, shape (stop - start,): indices into `sources`, and numbers within
            the source.

        Raises:
            IndexError: The range reaches beyond the mixture's end, or beyond draw 2^45.
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
        """Identifies everything that the first `draws` draws, and their samples, depend on.

        Weights that start later are not included, so a schedule can be changed or added where a
        run is resumed.
        """
        weights = {at: list(map(str, given)) for at, given in self._changes.items() if at < draws}
        content = {
            "version": ALGORITHM_VERSION,
            "seed": self._seed,
            "sources": [
                [name, source.fingerprint, len(source), source.sequence_length]
                for name, source in zip(self.names, self.sources, strict=True)
            ],
            "exhausted": self._exhausted,
            "weights": weights or {0: list(map(str, self._changes[0]))},
        }
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def counts(self, draws: int) -> dict[str, int]:
        """Draws from each source among the first `draws` draws.

        Args:
            draws: A number of draws, from 0.

        Returns:
            A dict from each source's name to its number of draws.

        Raises:
            IndexError: The mixture has fewer draws.
        """
        return dict(zip(self.names, self._counts(draws).tolist(), strict=True))

    def plan(self, steps: int, batch_size: int = 1) -> tuple[SourcePlan, ...]:
        """What a run of `steps` batches will draw from each source; also printed as a table.

        Args:
            steps: Batches in the run. If the mixture ends earlier, the plan ends there.
            batch_size: Samples per global batch.

        Returns:
            One SourcePlan per source, in order.

        Raises:
            UsageError: An argument is not an integer of at least 1.
        """
        steps, batch_size = (
            checked_integer("steps", steps, 1),
            checked_integer("batch_size", batch_size, 1),
        )
        end = MAX_DRAWS if self.length is None else self.length
        draws = min(steps * batch_size, end)
        counts = self._counts(draws)
        shares = self._stretches[0].weights / WEIGHT_SUM
        plan = tuple(
            SourcePlan(
                name=name,
                weight=float(shares[source]),
                samples=(drawn := int(counts[source])),
                tokens=drawn * self._sizes[source],
                epochs=drawn / int(self.lengths[source]),
                first_repeated_step=(
                    self._position(source, int(self.lengths[source])) // batch_size
                    if drawn > self.lengths[source]
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
                    f"the schedule changes weights at {at!r}; give a draw of at least 1, "
                    "which is step * batch size."
                )
            if odd := sorted(set(weights) ^ set(self.names)):
                problem = "no weight for" if odd[0] in self.names else "an unknown source,"
                raise UsageError(
                    f"the schedule has {problem} {odd[0]!r} at draw {at}; give a weight for each "
                    f"of {', '.join(self.names)}."
                )
            checked[int(at)] = weights
        return checked

    def _weights(self, at: int, given: Mapping[str, Weight]) -> list[Fraction]:
        """Checked weights, converted to samples, in the order of the sources."""
        weights = []
        for name, size in zip(self.names, self._sizes, strict=True):
            weight = given[name]
            is_number = isinstance(weight, int | float | Fraction | np.integer | np.floating)
            if not is_number or isinstance(weight, bool) or not math.isfinite(weight):
                raise UsageError(f"the weight of source {name!r} is {weight!r}; give a number.")
            if weight < 0:
                raise UsageError(f"the weight of source {name!r} is {weight}; give 0 or more.")
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
        """All stretches, and the number of draws: None if the mixture is endless."""
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
        """Where a stretch must end: the end of the mixture with `stop`, new weights with `drop`."""
        if self._exhausted == "repeat":
            return None
        drops = self._exhausted == "drop"
        # The last draw of each source, or the first draw that would repeat a sample.
        numbers = self.lengths - 1 if drops else self.lengths
        active = np.flatnonzero((stretch.weights > 0) & (stretch.counts <= numbers)).tolist()
        ends = sorted((stretch.tick(source, int(numbers[source])), source) for source in active)
        left = int(stretch.weights.sum())
        for _, source in ends:
            left -= int(stretch.weights[source])
            if not drops:
                return stretch.position(source, int(numbers[source]))
            if left < _REBALANCE_BELOW:
                return stretch.position(source, int(numbers[source])) + 1
        return None

    def _counts(self, draws: int) -> Numbers:
        draws = operator.index(draws)
        self._check_range(0, draws)
        return self._stretches[bisect_right(self._firsts, draws) - 1].counts_at(draws)

    def position(self, source: int, number: int) -> int | None:
        """The draw that takes number `number` of a source; None if the mixture ends before.

        Args:
            source: An index into `sources`.
            number: Which of the source's draws, from 0.

        Returns:
            The draw's number, from 0.

        Example:
            >>> from fineshards import Mixture, TokenDataset
            >>> train = TokenDataset(dataset_folder, sequence_length=1024)
            >>> test = TokenDataset(dataset_folder, "test", sequence_length=1024)
            >>> mix = Mixture({"train": (train, 0.9), "test": (test, 0.1)}, seed=1)
            >>> mix[mix.position(1, 5)]
            ('test', 5)
        """
        end = MAX_DRAWS if self.length is None else self.length
        if not 0 <= number < int(self._counts(end)[source]):
            return None
        return self._position(source, number)

    def _position(self, source: int, number: int) -> int:
        # The last stretch that begins before the source reaches that number.
        counts = [int(stretch.counts[source]) for stretch in self._stretches]
        return self._stretches[bisect_right(counts, number) - 1].position(source, number)

    def _check_range(self, start: int, stop: int) -> None:
        end = MAX_DRAWS if self.length is None else self.length
        if not 0 <= start <= stop <= end:
            raise IndexError(f"draws {start} to {stop} are out of the mixture's range({end})")
