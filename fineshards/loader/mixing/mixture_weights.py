"""The weights of a mixture and its schedule, checked."""

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from fineshards.errors import UsageError, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.loader.mixing.apportionment import MAX_DRAWS, Row, Weight


def checked_weights(
    names: Sequence[str], initial: Iterable[Any], schedule: object
) -> dict[int, Row]:
    """The weights of all sources from each draw on at which they change, in the order of `names`.

    Raises UsageError if a schedule or a weight is not valid.
    """
    rows = {0: tuple(initial), **_rows(names, schedule)}
    return {at: _checked_row(names, at, rows[at]) for at in sorted(rows)}


def linear_schedule(
    start: int,
    stop: int,
    first: Mapping[str, Weight],
    last: Mapping[str, Weight],
    changes: int = 100,
) -> dict[int, dict[str, Fraction]]:
    """A schedule whose weights go from `first` to `last` along a line, in equal parts.

    The weights of a part are those of the line at its middle, so a source has as many draws in a
    part as on the line, to within the mixture's bounds.

    Args:
        start: The draw where the line leaves `first`, at least 1.
        stop: The draw from which on the weights are `last`.
        first: The weights of all sources before, of any sum.
        last: The weights of all sources after, of any sum.
        changes: Parts between `start` and `stop`.

    Returns:
        A mapping for the argument `schedule` of Mixture.

    Raises:
        UsageError: There are fewer draws than parts, or invalid weights.

    Example:
        >>> before, after = {"web": 1, "code": 0}, {"web": 1, "code": 1}
        >>> linear_schedule(1000, 3000, before, after, changes=2)[2000]
        {'web': Fraction(5, 8), 'code': Fraction(3, 8)}
    """
    start, parts = checked_integer("start", start, 1), checked_integer("changes", changes, 1)
    stop = checked_integer("stop", stop, start + parts)
    names = list(first)
    before, after = (
        [Fraction(weight) / sum(Fraction(other) for other in row) for weight in row]
        for row in checked_weights(names, first.values(), {1: last}).values()
    )
    schedule = {}
    for part in range(parts + 1):
        done = min(Fraction(2 * part + 1, 2 * parts), Fraction(1))
        weights = [a + (b - a) * done for a, b in zip(before, after, strict=True)]
        schedule[start + (stop - start) * part // parts] = dict(zip(names, weights, strict=True))
    return schedule


def exact_text(weight: Weight) -> str:
    """A weight as a fraction, exactly."""
    above, below = weight.as_integer_ratio()
    return str(above) if below == 1 else f"{above}/{below}"


def _rows(names: Sequence[str], schedule: object) -> dict[int, tuple[Any, ...]]:
    """The schedule, with the weights in the order of `names`."""
    if not isinstance(schedule, Mapping):
        raise UsageError(
            f"schedule is {quoted(schedule)}; give a mapping from draws to the weights of all "
            "sources."
        )
    every = set(names)
    rows: dict[int, tuple[Any, ...]] = {}
    for at, weights in schedule.items():
        is_draw = isinstance(at, int | np.integer) and not isinstance(at, bool)
        if not is_draw or not 0 < at < MAX_DRAWS:
            raise UsageError(
                f"the schedule changes weights at {quoted(at)}; give a draw of at least 1, "
                "the sum of the batch sizes of all steps before."
            )
        if not isinstance(weights, Mapping):
            raise UsageError(
                f"the schedule has {quoted(weights)} at draw {at}; give a mapping from each "
                "source's name to its weight."
            )
        if weights.keys() != every:
            odd = sorted(map(str, weights.keys() ^ every))[0]
            problem = "no weight for" if odd in every else "an unknown source,"
            raise UsageError(
                f"the schedule has {problem} {quoted(odd)} at draw {at}; give a weight for each "
                f"of {', '.join(names)}."
            )
        rows[int(at)] = tuple([weights[name] for name in names])
    return rows


def _checked_row(names: Sequence[str], at: int, row: Sequence[Any]) -> Row:
    checked: list[Weight] = []
    for name, weight in zip(names, row, strict=True):
        is_number = isinstance(weight, int | float | Fraction | np.integer | np.floating)
        # Python's integers and fractions may be too large for a float.
        is_exact = isinstance(weight, int | Fraction)
        if not is_number or isinstance(weight, bool) or not (is_exact or math.isfinite(weight)):
            raise UsageError(f"the weight of source {name!r} is {quoted(weight)}; give a number.")
        if weight < 0:
            raise UsageError(f"the weight of source {name!r} is {weight}; give 0 or more.")
        if isinstance(weight, np.integer):
            weight = int(weight)
        checked.append(weight if isinstance(weight, int | Fraction) else float(weight))
    if not any(checked):
        raise UsageError(
            f"all weights of the mixture are zero{f' from draw {at} on' if at else ''}; "
            "at least one must be positive."
        )
    return tuple(checked)
