"""Saved states of a BatchLoader: which are one, where they are, and how they differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from fineshards.errors import UsageError, contrasted, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.loader.steps import MOST_SAMPLES, Position, Ramp, Steps

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


def check_position(state: Mapping[str, Any]) -> None:
    """Raises UsageError unless the batches in a state lead to its position.

    A mixture may have ended, with a partial batch, where it does not end any more.
    """
    sizes, length = Ramp.from_saved("batch_size in the state", state["batch_size"]), None
    if state["epochs"] is not None:
        epochs = checked_integer("epochs in the state", state["epochs"], 1)
        length = state["samples"] and epochs * state["samples"]
    here, since = _saved(state), _since(state)
    steps = Steps(sizes, length, length is not None, state["drop_last"], since)
    last = steps.at(here.step - 1) if here.step > since.step else None
    full = since if last is None else steps.advance(last, 1)
    reached = [full] if steps.size(full) else [full, steps.next_pass(full)]
    if last and state["samples"] is None and last.consumed < here.consumed < full.consumed:
        reached.append(replace(full, consumed=here.consumed))
    possible = since.step <= since.consumed <= since.step * MOST_SAMPLES
    if here not in reached or since.begin > since.consumed or not possible:
        words = ", ".join(f"{name} {number:,}" for name, number in asdict(here).items())
        raise UsageError(
            f"the state says {words}, but its batches of {state['batch_size']} samples do not lead "
            "there. It was changed after it was saved: pass what state_dict() returned."
        )


def position_in(state: Mapping[str, Any], steps: Steps, epochs: int | None) -> Position:
    """The position in a state, in a pass of a loader with these steps and epochs."""
    here = _saved(state)
    if steps.length is None or not steps.repeats:
        return replace(here, begin=0)
    taken = here.consumed - here.begin
    if taken > steps.length or state["epochs"] != epochs:
        # Saved with other epochs: the pass of this loader that the position is in.
        return replace(here, begin=here.consumed - taken % steps.length)
    return here


def first_known(state: Mapping[str, Any], settings: Mapping[str, Any], here: Position) -> Position:
    """From where the steps of a loader with these settings are those of the run.

    That is where the loader that saved the state knew them from, if it had the same settings.
    """
    same = all(state[name] == value for name, value in settings.items())
    return _since(state) if same else here


def _saved(state: Mapping[str, Any]) -> Position:
    """The position in a state; raises UsageError for what is no number of samples or steps."""
    names = (field.name for field in fields(Position))
    numbers = (checked_integer(f"{each} in the state", state[each], 0, _MOST) for each in names)
    return Position(*numbers)


def _since(state: Mapping[str, Any]) -> Position:
    since = state["since"]
    if not isinstance(since, list | tuple) or len(since) != 3:
        raise UsageError(f"since in the state is {quoted(since)}; give three numbers.")
    return Position(*(checked_integer("since in the state", each, 0, _MOST) for each in since))


def differences(state: Mapping[str, Any], order: Mapping[str, Any]) -> list[str]:
    """What the state says of the order that a loader's order contradicts."""
    known = {"version": STATE_VERSION, **order}
    words = "is {} in the state but {} here"
    return [
        f"{name} {contrasted(state[name], here, words)}"
        for name, here in known.items()
        if state[name] != here
    ]
