"""From whatever a runner raises to the one sentence that the step meant to say."""

from __future__ import annotations

import re

from fineshards import errors
from fineshards.errors import FineshardsError

# Beam appends the step's label to the message of an exception that leaves a DoFn.
_STEP_LABEL = re.compile(r" \[while running '[^']*'\]")
# Runners with workers of their own raise a RuntimeError whose text is the worker's traceback.
_IN_TRACEBACK = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.+)$", re.MULTILINE)
# What Beam's Dataflow runner raises when a job has ended otherwise than well: the state, and the
# error among the job's messages that it thinks the best, or None.
_DATAFLOW_ENDED = re.compile(r"Dataflow pipeline failed\. State: (\w+), Error:\n(.+)", re.DOTALL)
_DATAFLOW_ACTIVE = re.compile(r"There is already active job named (\S+) with id: ([^\s.]+)")


def explain(error: BaseException) -> FineshardsError | None:
    """The error a step raised, from what a runner made of it; None if it was no FineshardsError."""
    if isinstance(error, FineshardsError):
        return type(error)(_STEP_LABEL.sub("", str(error)))
    for name, message in reversed(_IN_TRACEBACK.findall(str(error))):
        kind = getattr(errors, name, FineshardsError)
        explained: FineshardsError = kind(_STEP_LABEL.sub("", message))
        return explained
    ended = _DATAFLOW_ENDED.match(str(error))
    if ended and "Traceback (most recent call last)" not in ended[2]:
        reason = "" if ended[2] == "None" else f": {' '.join(ended[2].split()).rstrip('.')}"
        return FineshardsError(
            f"the Dataflow job ended as {ended[1]}{reason}. What is finished is safe; the same "
            "command continues the job."
        )
    if active := _DATAFLOW_ACTIVE.match(str(error)):
        return FineshardsError(
            f"Dataflow has an active job of that name already: {active[1]}, id {active[2]}. Wait "
            "for it or cancel it, or choose another --job_name."
        )
    return None


def is_interrupt(error: BaseException) -> bool:
    """Whether a person stopped the job: Beam makes a RuntimeError of a KeyboardInterrupt."""
    return isinstance(error, KeyboardInterrupt) or str(error).startswith("KeyboardInterrupt [")
