"""Ramps: whole numbers that change at given steps, such as a batch size that grows."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, TypeAlias

from fineshards.errors import UsageError, quoted
from fineshards.loader.arguments import checked_integer

Ramped: TypeAlias = int | Mapping[int, int]

# More samples per batch, or tokens per sample, than any machine trains on at once.
MOST_SAMPLES = 1 << 24


class Ramp:
    """A number of at least 1 for every step from 0; constant from each change to the next.

    Sums over steps and their inverse take the same time at any step.

    Example:
        >>> ramp = Ramp("batch_size", {0: 2, 10: 4})
        >>> ramp(9), ramp(10), ramp.before(12), ramp.steps_within(8, 11)
        (2, 4, 28, 3)
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
