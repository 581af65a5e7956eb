"""Turns what a runner raises into the one sentence that the failed step meant to say."""

from __future__ import annotations

import re

from fineshards import errors
from fineshards.errors import FineshardsError
from fineshards.extras import missing_extra

# Beam appends the step's label to the message of an exception that leaves a DoFn.
_STEP_LABEL = re.compile(r" \[while running '[^']*'\]")
# Runners with separate workers raise a RuntimeError whose text is the worker's traceback.
_IN_TRACEBACK = re.compile(r"^fineshards\.errors\.(\w+): (.+)$", re.MULTILINE)
# What Beam's Dataflow runner raises when a job has not ended in DONE: the state, and the error
# message of the job that Beam considers best, or None.
_DATAFLOW_ENDED = re.compile(r"Dataflow pipeline failed\. State: (\w+), Error:\n(.+)", re.DOTALL)
_DATAFLOW_ACTIVE = re.compile(r"There is already active job named (\S+) with id: ([^\s.]+)")


def explain(error: BaseException) -> FineshardsError | None:
    """The error for the user, from what a runner made of it; None for an unexpected one."""
    if isinstance(error, FineshardsError):
        return type(error)(_STEP_LABEL.sub("", str(error)))
    if isinstance(error, ModuleNotFoundError):
        return missing_extra(error)
    for name, message in reversed(_IN_TRACEBACK.findall(str(error))):
        kind = getattr(errors, name, FineshardsError)
        explained: FineshardsError = kind(_STEP_LABEL.sub("", message))
        return explained
    ended = _DATAFLOW_ENDED.match(str(error))
    if ended and "Traceback (most recent call last)" not in ended[2]:
        reason = "" if ended[2] == "None" else f": {' '.join(ended[2].split()).rstrip('.')}"
        return FineshardsError(
            f"the Dataflow job ended as {ended[1]}{reason}. Finished work is safe; run the same "
            "command again to resume."
        )
    if active := _DATAFLOW_ACTIVE.match(str(error)):
        return FineshardsError(
            f"Dataflow already has an active job named {active[1]}, id {active[2]}. Wait for it or "
            "cancel it, or choose another --job_name."
        )
    return None
