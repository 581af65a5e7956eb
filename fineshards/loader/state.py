"""Saved states of a BatchLoader: which are one, where they are, and how they differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fineshards.errors import UsageError, contrasted, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.loader.steps import Position, Steps

STATE_VERSION = 2
# Places of the order are computed in 64 bits.
_MOST = 1 << 61
# What states have beside the order.
_POSITION = ("consumed", "step", "begin", "batch_size", "epochs", "drop_last", "since")
_FLAGS = ("shuffle", "drop_last")


def checked_state(state: object, order: Collection[str]) -> Mapping[str, Any]:
    """A state with all keys of an order and no others; raises UsageError for anything else."""
    if not isinstance(state, Mapping):
        raise UsageError(
            f"this is not the state of a BatchLoader but {type(state).__name__}. Pass what "
            "state_dict() returned."
        )
    names = ("version", *order, *_POSITION)
    missing = [name for name in names if name not in state]
    if missing:
        raise UsageError(
            f"this is not the state of a BatchLoader: it lacks {', '.join(missing)}. "
            "Pass what state_dict() returned."
        )
    for name, value in state.items():
        if name not in names or isinstance(value, bool) != (name in _FLAGS):
            raise UsageError(
                f"this is not the state of a BatchLoader of this version: it says that {name} is "
                f"{quoted(value)}. Pass what state_dict() returned."
            )
    return state


def position_in(state: Mapping[str, Any], steps: Steps, epochs: int | None) -> Position:
    """The position in a state, in a pass of a loader with these steps and epochs.

    Raises UsageError for numbers that no loader saves.
    """
    consumed, step, begin = (_number(state, name) for name in ("consumed", "step", "begin"))
    for what, number in (("step", step), ("begin", begin)):
        if number > consumed:
            raise UsageError(
                f"the state says {what} {number:,}, but only {consumed:,} samples were drawn until "
                f"then, so {what} can be at most {consumed:,}. It was changed after it was saved: "
                "pass what state_dict() returned."
            )
    if steps.length is None or not steps.repeats:
        return Position(step, consumed, 0)
    if consumed - begin > steps.length or state["epochs"] != epochs:
        # Saved with other epochs: the pass of this loader that the position is in.
        begin = consumed - (consumed - begin) % steps.length
    return Position(step, consumed, begin)


def first_known(state: Mapping[str, Any], settings: Mapping[str, Any], here: Position) -> Position:
    """From where the steps of a loader with these settings are those of the run.

    That is where the loader that saved the state knew them from, if it had the same settings.
    """
    if any(state[name] != value for name, value in settings.items()):
        return here
    since = state["since"]
    if not isinstance(since, list | tuple) or len(since) != 3:
        return here
    return Position(*(checked_integer("since in the state", each, 0) for each in since))


def _number(state: Mapping[str, Any], name: str) -> int:
    return checked_integer(f"{name} in the state", state[name], 0, _MOST)


def differences(state: Mapping[str, Any], order: Mapping[str, Any]) -> list[str]:
    """What the state says of the order that a loader's order contradicts."""
    known = {"version": STATE_VERSION, **order}
    words = "is {} in the state but {} here"
    return [
        f"{name} {contrasted(state[name], here, words)}"
        for name, here in known.items()
        if state[name] != here
    ]
