"""Turns what a runner raises into the one sentence that the failed step meant to say."""

import errno
import re
import traceback

from fineshards import errors
from fineshards.errors import FineshardsError
from fineshards.extras import missing_extra
from fineshards.worker import own_process

# The environment variable that shows the traceback of an unexpected error.
SHOW_TRACEBACK = "FINESHARDS_TRACEBACK"
# How libraries say that there is no memory, beside MemoryError.
_NO_MEMORY = re.compile(
    "failed to map segment|cannot allocate memory|can't start new thread|bad_alloc", re.IGNORECASE
)
_MOST_CHARACTERS = 400
_TRACEBACK = "Traceback (most recent call last)"
_SEE_MORE = f"{SHOW_TRACEBACK}=1 in the environment shows the traceback."
# Beam appends the step's label to the message of an exception that leaves a DoFn.
_STEP_LABEL = re.compile(r" \[while running '[^']*'\]")
# Runners with separate workers raise a RuntimeError whose text is the worker's traceback.
_IN_TRACEBACK = re.compile(r"^fineshards\.errors\.(\w+): (.+)$", re.MULTILINE)
# What Beam raises when a job has not ended in DONE: the state, and the error message of the job
# that Beam considers best, or None.
_ENDED = re.compile(r"(Dataflow )?[Pp]ipeline .*?failed.*?tate:? (\w+)(?:, Error)?:\s((?s:.+))")
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
    ended = _ENDED.match(str(error))
    if ended and _TRACEBACK not in ended[3]:
        reason = "" if ended[3] == "None" else f": {' '.join(ended[3].split()).rstrip('.')}"
        return FineshardsError(
            f"the {ended[1] or ''}job ended as {ended[2]}{reason}. Finished work is safe; run the "
            "same command again to resume."
        )
    if active := _DATAFLOW_ACTIVE.match(str(error)):
        return FineshardsError(
            f"Dataflow already has an active job named {active[1]}, id {active[2]}. Wait for it or "
            "cancel it, or choose another --job_name."
        )
    return None


def describe_unexpected(error: BaseException) -> str:
    """One sentence for an error that no one expected, and what to do."""
    again = own_process.resume and f" Finished work is safe.{own_process.resume}"
    lines = str(error).split("\n")
    # The text of an error of another process is a traceback, and ends with what it was.
    text = lines[-1] or lines[-2] if _TRACEBACK in str(error) else " ".join(lines)
    reason = _STEP_LABEL.sub("", text)[:_MOST_CHARACTERS].strip().rstrip(".")
    about = f" ({reason})" if reason else ""
    no_memory = isinstance(error, MemoryError) or _NO_MEMORY.search(reason)
    if no_memory or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return (
            f"there is not enough memory{about}. Give the process more (ulimit -v, the limit of "
            f"its container), or use fewer --workers.{again}"
        )
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ImportError) or "<module>" in {x.name for x in frames}:  # of an import
        return f"a library cannot be loaded: {reason}. Install fineshards and its extras again."
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f" ({error.filename})"
        return f"the system reports: {error.strerror}{place}.{again} {_SEE_MORE}"
    where = f", at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    about = f": {reason}" if reason else ""
    return (
        f"unexpected {type(error).__name__}{where}{about}.{again} This is a bug in fineshards or "
        f"a library. Please report it. {_SEE_MORE}"
    )
