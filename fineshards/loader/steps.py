"""Steps: which part of the global order each global batch holds, and each rank of it.

The global order is cut into passes, such as epochs, and each pass into batches. A batch never
reaches from one pass into the next, so the last batch of a pass may be partial. Within a pass, any
step is found as fast as the first one. Sizes of batches may change with the step: a Ramp.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fineshards.errors import UsageError, quoted
from fineshards.loader.arguments import checked_integer

Ramped: TypeAlias = int | Mapping[int, int]

# More samples per batch, or tokens per sample, than any machine trains on at once.
MOST_SAMPLES = 1 << 24


class Ramp:
    """A number of at least 1 for every step from 0; constant from each change to the next.

    Sums over steps and their inverse take the same time at any step.
    """

    def __init__(self, name: str, given: Ramped) -> None:
        """Raises UsageError unless `given` is a number, or maps 0 and later steps to numbers."""
        changes = dict(given) if isinstance(given, Mapping) else {0: given}
        checked = {
            checked_integer(f"a step of {name}", step, 0): checked_integer(
                name, changes[step], 1, MOST_SAMPLES
            )
            for step in changes
        }
        if 0 not in checked:
            raise UsageError(f"{name} has no value for step 0; give {{0: …, step: …}}.")
        self._steps = sorted(checked)
        self.values = [checked[step] for step in self._steps]
        # The sum of all values before each change.
        self._sums = [0]
        for value, step, following in zip(self.values, self._steps, self._steps[1:], strict=False):
            self._sums.append(self._sums[-1] + value * (following - step))

    def __call__(self, step: int) -> int:
        """The value at a step."""
        return self.values[self._change(step)]

    def before(self, step: int) -> int:
        """The sum of the values of all steps before this one."""
        at = self._change(step)
        return self._sums[at] + (step - self._steps[at]) * self.values[at]

    def between(self, step: int, later: int) -> int:
        """The sum of the values from one step to another."""
        if len(self.values) == 1:
            return self.values[0] * (later - step)
        return self.before(later) - self.before(step)

    def steps_within(self, step: int, room: int) -> int:
        """How many steps, from this one on, have values whose sum is at most `room`."""
        wanted = self.before(step) + room
        at = bisect_right(self._sums, wanted) - 1
        return self._steps[at] + (wanted - self._sums[at]) // self.values[at] - step

    def last_change(self) -> int:
        """The step from which the value is constant."""
        return self._steps[-1]

    def saved(self) -> int | str:
        """For a saved state: a number, or pairs of step and number as JSON text.

        A distributed checkpoint saves the leaves of a state, so a list could only be loaded into a
        list of the same length.
        """
        if len(self._steps) == 1:
            return self.values[0]
        return json.dumps([list(pair) for pair in zip(self._steps, self.values, strict=True)])

    @classmethod
    def from_saved(cls, name: str, saved: object) -> Ramp:
        """What `saved` returned; raises UsageError for anything else."""
        try:
            given: Any = dict(json.loads(saved)) if isinstance(saved, str) else saved
        except (TypeError, ValueError):
            given = saved
        return cls(name, given)

    def _change(self, step: int) -> int:
        return bisect_right(self._steps, step) - 1


def checked_lengths(given: Mapping[int, int] | None, longest: int) -> Ramp:
    """The sequence length of each step; raises UsageError if one does not divide the source's."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(
            f"sequence_length is {quoted(given)}; give a ramp {{step: length}}, and the length "
            "itself to TokenDataset."
        )
    lengths = Ramp("sequence_length", longest if given is None else given)
    for length in lengths.values:
        if longest % length:
            raise UsageError(
                f"sequence_length {length} does not divide the dataset's, {longest}, so its "
                "samples cannot be cut into whole rows."
            )
    return lengths


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's share of every global batch; ranks take consecutive parts.

    They are equal, or differ by one sample in a partial last batch.
    """

    rank: int
    world_size: int

    @classmethod
    def checked(cls, rank: int, world_size: int, sizes: Ramp) -> Share:
        """A share; raises UsageError if a number is out of range or a batch cannot be divided."""
        share = cls(checked_integer("rank", rank, 0), checked_integer("world_size", world_size, 1))
        if share.rank >= share.world_size:
            raise UsageError(
                f"rank is {rank}, but with world_size {world_size} ranks go from 0 to "
                f"{world_size - 1}."
            )
        for size in sizes.values:
            if size % share.world_size:
                raise UsageError(
                    f"batch_size {size} cannot be divided by world_size {world_size}; give a "
                    "multiple of it."
                )
        return share

    def part(self, samples: int) -> tuple[int, int]:
        """This rank's part `[start, stop)` of a batch."""
        return (
            samples * self.rank // self.world_size,
            samples * (self.rank + 1) // self.world_size,
        )

    def place(self, sample: int, samples: int) -> tuple[int, int]:
        """The rank that gets a sample of a batch of `samples`, and the row in its part."""
        rank = ((sample + 1) * self.world_size - 1) // samples
        return rank, sample - samples * rank // self.world_size


@dataclass(frozen=True, slots=True)
class Position:
    """Between two batches.

    step: the number of the next batch. consumed: samples of the global order before it. begin:
    where its pass began.
    """

    step: int = 0
    consumed: int = 0
    begin: int = 0


@dataclass(frozen=True, slots=True)
class Steps:
    """The batches of all passes.

    sizes: samples per batch. length: samples per pass; None for one endless pass. repeats: whether
    there is more than one pass. drop_last: whether a partial last batch is left out. first: no
    earlier step can be computed, because other batch sizes led there.
    """

    sizes: Ramp
    length: int | None
    repeats: bool
    drop_last: bool
    first: Position = Position()

    def size(self, position: Position) -> int:
        """Samples in the batch at a position; 0 at the end of a pass."""
        size = self.sizes(position.step)
        if self.length is None:
            return size
        left = position.begin + self.length - position.consumed
        return size if size <= left else 0 if self.drop_last else max(0, left)

    def refuse_empty(self, begin: Position) -> None:
        """Raises UsageError if a pass that begins at a position would have no batch."""
        if begin.consumed == begin.begin and not self.size(begin):
            raise UsageError(
                f"an iteration has {self.length:,} samples, fewer than the batch_size "
                f"{self.sizes(begin.step):,}, so drop_last leaves out all of them. Give a smaller "
                "batch_size, or drop_last=False."
            )

    def advance(self, position: Position, steps: int) -> Position:
        """The position some batches later, or at the end of the pass."""
        step = position.step + steps
        later = position.consumed + self.sizes.between(position.step, step)
        if self.length is None or later <= position.begin + self.length:
            return Position(step, later, position.begin)
        left = max(0, position.begin + self.length - position.consumed)
        step = position.step + self.sizes.steps_within(position.step, left)
        taken = self.sizes.between(position.step, step)
        last = Position(step, position.consumed + taken, position.begin)
        rest = self.size(last)
        return Position(step + (rest > 0), last.consumed + rest, position.begin)

    def next_pass(self, position: Position) -> Position | None:
        """Where the pass after that of a position begins; None if there is none."""
        if self.length is None or not self.repeats:
            return None
        begin = position.begin + self.length
        return Position(position.step, begin, begin)

    def at(self, step: int) -> Position | None:
        """Where a step's batch begins; None if no batch has this number."""
        position: Position | None = self.first
        while position is not None and position.step <= step:
            reached = self.advance(position, step - position.step)
            if self.size(reached):
                return reached
            following = self.next_pass(reached)
            # A pass without a batch: the last one is always left out.
            if following is None or following.step == position.step:
                return None
            per_pass = self._per_pass(following)
            passes = (step - following.step) // per_pass if per_pass else 0
            position = self._skip(following, passes, per_pass)
        return None

    def find(self, sample: int) -> Position | None:
        """Where the batch begins that holds a place of the global order; None if none does."""
        position: Position | None = self.first
        while position is not None and position.consumed <= sample:
            if self.length is None or sample < position.begin + self.length:
                steps = self.sizes.steps_within(position.step, sample - position.consumed)
                batch = self.advance(position, steps)
                return batch if sample < batch.consumed + self.size(batch) else None
            following = self.next_pass(self.advance(position, sample + 1))
            if following is None:
                return None
            # Without the steps of a pass, passes are walked one by one.
            per_pass = self._per_pass(following)
            passes = 0 if per_pass is None else (sample - following.begin) // self.length
            position = self._skip(following, passes, per_pass)
        return None

    def _per_pass(self, begin: Position) -> int | None:
        """Batches in each pass from this one on; None as long as the batch size changes."""
        assert self.length is not None
        if begin.step < self.sizes.last_change():
            return None
        return self.advance(begin, self.length).step - begin.step

    def _skip(self, begin: Position, passes: int, per_pass: int | None) -> Position:
        """The beginning of a pass some passes later; of none that have not begun yet."""
        assert self.length is not None
        at = begin.begin + max(0, passes) * self.length
        return Position(begin.step + max(0, passes) * (per_pass or 0), at, at)
