"""Mixtures: which source each training sample comes from, and which sample of it.

Weights are checked in `mixture_weights`. The draws are computed from stretches of constant weights,
in `apportionment`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from fineshards.errors import UsageError, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.loader.mixing.apportionment import MAX_DRAWS, WEIGHT_SUM, Stretches, Weight
from fineshards.loader.mixing.mixture_weights import checked_weights, exact_text
from fineshards.loader.sample_sources import Numbers, Source


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What a training run draws from one source.

    Attributes:
        name: The source's name in the mixture.
        weight: Its share of the samples at the start, from 0 to 1.
        samples: Samples drawn from it.
        tokens: Tokens in these samples.
        epochs: Passes over its samples.
        first_repeated_step: The first step with a sample that was drawn before; None if no sample
            is repeated.
    """

    name: str
    weight: float
    samples: int
    tokens: int
    epochs: float
    first_repeated_step: int | None


@dataclass(frozen=True, slots=True)
class MixturePlan:
    """What a run of `samples` samples draws from each source, in order. As text it is a table."""

    sources: tuple[SourcePlan, ...]
    samples: int
    batch_size: int

    def __str__(self) -> str:
        rows = [("source", "weight", "samples", "tokens", "epochs", "first repeated step")]
        rows += [
            (
                plan.name,
                f"{plan.weight:.6g}",
                f"{plan.samples:,}",
                f"{plan.tokens:,}",
                f"{plan.epochs:.3f}",
                "-" if plan.first_repeated_step is None else f"{plan.first_repeated_step:,}",
            )
            for plan in self.sources
        ]
        steps = f"{self.samples / self.batch_size:,.15g} steps"
        tokens = sum(plan.tokens for plan in self.sources)
        rows.append((steps, "", f"{self.samples:,}", f"{tokens:,}", "", ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if column else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )


Exhausted = Literal["repeat", "stop", "drop"]

# Part of every fingerprint: changes when the order of any mixture changes.
ALGORITHM_VERSION = 2


class Mixture:
    """A sequence of draws from several sources, by exact weights.

    Each draw is a source and a number within that source. Numbers count the source's draws from 0:
    the first n draws take a prefix of every source, for every n, so no sample is repeated or
    skipped. From `len(source)` on, the numbers repeat the source; number // len(source) is its
    epoch. No index is stored: each draw is computed from its position.

    Pass a Mixture to `BatchLoader` in place of a dataset.

    After n draws, a source of weight w among K sources has w * n draws to within
    1 + w * (K / 2 - 1) + 2^-9, up to the first change of weights and while no source is dropped.
    Between two changes, its draws deviate by less than (1 + w * (K - 2)) * (1 + 2^-10). K counts
    the sources that have a weight at that time.

    The first n draws do not depend on weights from draw n on, nor on sources that had no weight
    before. So weights may be changed, and sources added, where a run is resumed.

    Args:
        sources: Maps each name to (source, weight). A source is a TokenDataset or any other
            `fineshards.loader.sample_sources.Source`. Weights are ints, floats or Fractions with
            any sum. They are exact to 2^-50 of their sum, and a positive weight counts as at least
            that. A source of weight 0 joins when the schedule gives it a weight.
        seed: Any integer. Another seed may interleave the sources differently.
        exhausted: What happens when all samples of a source are drawn. `repeat` starts the source
            again; a BatchLoader shuffles each of its epochs differently. `stop` ends the mixture
            before the first draw that would repeat a sample. `drop` goes on with the other sources
            in their proportions, until no source with a weight at that time is left.
        schedule: Maps draws (the samples of all steps before) to the weights of all sources then.
            Every source keeps its position and its progress towards its next draw.

    Attributes:
        sequence_length: T, tokens per sample, of all sources.
        names: The sources' names, in order.
        sources: The sources, in the same order.
        lengths: The sources' numbers of samples: int64, shape (sources,).
        length: The number of draws; None if the mixture is endless.
        fingerprint: Identifies the sources that are ever drawn, and all that the order depends on.

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
        schedule: Mapping[int, Mapping[str, Weight]] | None = None,
    ) -> None:
        seed = checked_integer("seed", seed)
        if exhausted not in get_args(Exhausted):
            raise UsageError(f"exhausted is {exhausted!r}; choose 'repeat', 'stop' or 'drop'.")
        _check_sources(sources)
        self.names = tuple(sources)
        self.sources: tuple[Source, ...] = tuple(source for source, _ in sources.values())
        _check_alike(self.names, self.sources)
        self.lengths = np.array([len(source) for source in self.sources], dtype=np.int64)
        self.sequence_length = self.sources[0].sequence_length
        self._seed, self._exhausted = seed, exhausted
        initial = [weight for _, weight in sources.values()]
        self._changes = checked_weights(self.names, initial, schedule or {})
        self._stretches = Stretches(self._changes, self.names, self.lengths, seed, exhausted)
        self.length = self._stretches.length

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the sources, their weights and all other arguments that draws depend on."""
        return self.fingerprint_of(MAX_DRAWS)

    def __repr__(self) -> str:
        first = list(map(float, self._changes[0]))
        shares = zip(self.names, first, strict=True)
        parts = [f"{name!r}: {weight / sum(first):.3g}" for name, weight in shares]
        length = "endless" if self.length is None else f"{self.length:,} draws"
        return f"Mixture({', '.join(parts)}): {length}"

    def __len__(self) -> int:
        """The number of draws; raises TypeError if the mixture is endless."""
        if self.length is None:
            raise TypeError("the mixture is endless")
        return self.length

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, draw: int) -> tuple[str, int]:
        """One draw: the source's name, and the number within the source."""
        draw = checked_integer("the draw's number", draw)
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
        start, stop = checked_integer("start", start), checked_integer("stop", stop)
        self._check_range(start, stop)
        parts = []
        while start < stop:
            stretch, end = self._stretches.at(start)
            end = stop if end is None else min(stop, end)
            try:
                parts.append(stretch.draws(start, end))
            except MemoryError:
                raise UsageError(
                    f"{stop - start} draws do not fit into memory; ask for fewer at a time."
                ) from None
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

        Weights that start later are not included, and neither are sources that have had no weight
        by then. So weights can be changed, and sources added, where a run is resumed.
        """
        joins = self._stretches.joins
        drawn = np.flatnonzero((joins == 0) | ((joins > 0) & (joins < draws))).tolist()
        rows = {at: row for at, row in self._changes.items() if at < max(1, draws)}
        content = {
            "version": ALGORITHM_VERSION,
            "seed": self._seed,
            "sources": [
                [
                    self.names[source],
                    self.sources[source].fingerprint,
                    len(self.sources[source]),
                    self.sequence_length,
                ]
                for source in drawn
            ],
            "exhausted": self._exhausted,
            "weights": {
                at: [exact_text(row[source]) for source in drawn] for at, row in rows.items()
            },
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

    def plan(self, steps: int, batch_size: int = 1) -> MixturePlan:
        """What a run of `steps` batches will draw from each source.

        Args:
            steps: Batches in the run. If the mixture ends earlier, the plan ends there.
            batch_size: Samples per global batch.

        Returns:
            A MixturePlan: `sources` has one SourcePlan per source, and `print` shows a table.

        Raises:
            UsageError: An argument is not an integer of at least 1.
        """
        steps = checked_integer("steps", steps, 1)
        batch_size = checked_integer("batch_size", batch_size, 1)
        end = MAX_DRAWS if self.length is None else self.length
        draws = min(steps * batch_size, end)
        counts = self._counts(draws)
        shares = self._stretches.at(0)[0].weights / WEIGHT_SUM
        plan = tuple(
            SourcePlan(
                name=name,
                weight=float(shares[source]),
                samples=(drawn := int(counts[source])),
                tokens=drawn * self.sequence_length,
                epochs=drawn / int(self.lengths[source]),
                first_repeated_step=(
                    self._stretches.of(source, length).position(source, length) // batch_size
                    if drawn > (length := int(self.lengths[source]))
                    else None
                ),
            )
            for source, name in enumerate(self.names)
        )
        return MixturePlan(plan, draws, batch_size)

    def _counts(self, draws: int) -> Numbers:
        draws = checked_integer("draws", draws)
        self._check_range(0, draws)
        return self._stretches.at(draws)[0].counts_at(draws)

    def position(self, source: int, number: int) -> int | None:
        """The draw that takes number `number` of a source; None if the mixture ends before.

        Args:
            source: An index into `sources`.
            number: Which of the source's draws, from 0.

        Returns:
            The draw's number, from 0.
        """
        end = MAX_DRAWS if self.length is None else self.length
        if not 0 <= number < int(self._counts(end)[source]):
            return None
        return self._stretches.of(source, number).position(source, number)

    def _check_range(self, start: int, stop: int) -> None:
        end = MAX_DRAWS if self.length is None else self.length
        if not 0 <= start <= stop <= end:
            raise IndexError(
                f"there are no draws [{start:,}, {stop:,}): the mixture has {end:,}, "
                "numbered from 0"
            )


def _check_sources(sources: object) -> None:
    """Raises UsageError unless these are sources and weights, in what Mixture takes."""
    if not isinstance(sources, Mapping):
        raise UsageError(
            f"the sources of the mixture are {quoted(sources)}; give a mapping from each name to "
            "(source, weight)."
        )
    if not sources:
        raise UsageError("a mixture needs at least one source.")
    samples = 0
    for name, pair in sources.items():
        if not isinstance(name, str):
            raise UsageError(f"a source of the mixture is named {name!r}; give it a string.")
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UsageError(f"source {name!r} of the mixture is not a pair (source, weight).")
        source = pair[0]
        members = ("__len__", "__getitem__", "sequence_length", "fingerprint")
        if isinstance(source, Mixture) or not all(hasattr(source, member) for member in members):
            raise UsageError(
                f"source {name!r} of the mixture is {quoted(source)}; give a TokenDataset "
                "or another source of samples."
            )
        if len(source) < 1:
            raise UsageError(f"source {name!r} of the mixture has no samples; leave it out.")
        samples += len(source)
    if samples > MAX_DRAWS:
        raise UsageError(f"the sources have {samples} samples; a mixture can hold {MAX_DRAWS}.")


def _check_alike(names: Sequence[str], sources: Sequence[Source]) -> None:
    """Raises UsageError if samples are of unequal lengths, or a token is another text elsewhere."""
    first: tuple[str, object] | None = None
    for name, source in zip(names, sources, strict=True):
        if source.sequence_length != sources[0].sequence_length:
            raise UsageError(
                f"the sequence_length of {names[0]!r} is {sources[0].sequence_length}, but that of "
                f"{name!r} is {source.sequence_length}: open both with the same one."
            )
        vocabulary = getattr(source, "vocabulary", None)
        if first is None and vocabulary is not None:
            first = name, vocabulary
        if first is not None and vocabulary not in (None, first[1]):
            raise UsageError(
                f"the sources {first[0]!r} and {name!r} have different vocabularies, {first[1]} "
                f"and {vocabulary}, so a token stands for another text in each. Build both "
                "datasets with one tokenizer."
            )
