"""Saved states of a BatchLoader: which are one, where they are, and how they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fineshards.errors import UsageError
from fineshards.loader.arguments import checked_integer
from fineshards.loader.ramp import Ramp
from fineshards.loader.steps import Position

STATE_VERSION = 1
# Saved states have older names for two of the arguments.
_ARGUMENTS = {"tokens_a_sample": "sequence_length", "window": "shuffle_shards"}


def checked_state(state: object, order: Iterable[str]) -> Mapping[str, Any]:
    """A state with all keys of an order; raises UsageError for anything else."""
    if not isinstance(state, Mapping):
        raise UsageError(
            f"this is not the state of a BatchLoader but {type(state).__name__}. Pass what "
            "state_dict() returned."
        )
    # Version 0.1.0 could not pack, and saved no packing.
    state = {"packing": None, **state}
    missing = [name for name in ("version", *order, "consumed") if name not in state]
    if missing:
        raise UsageError(
            f"this is not the state of a BatchLoader: it lacks {', '.join(missing)}. "
            "Pass what state_dict() returned."
        )
    return state


def position_in(state: Mapping[str, Any], sizes: Ramp) -> Position:
    """The position in a state. sizes: the loader's, for a state of 0.1.0, which has no steps."""
    consumed = checked_integer("consumed in the state", state["consumed"], 0)
    if "step" not in state or "begin" not in state:
        size = state.get("batch_size")
        steps = consumed // size if isinstance(size, int) else sizes.steps_within(0, consumed)
        return Position(steps, consumed)
    return Position(
        checked_integer("step in the state", state["step"], 0),
        consumed,
        checked_integer("begin in the state", state["begin"], 0),
    )


def differences(state: Mapping[str, Any], order: Mapping[str, Any]) -> list[str]:
    """What the state says of the order that a loader's order contradicts."""
    known = {"version": STATE_VERSION, **order}
    return [
        f"{_ARGUMENTS.get(name, name)} is {state[name]!r} in the state but {here!r} here"
        for name, here in known.items()
        if state[name] != here
    ]
