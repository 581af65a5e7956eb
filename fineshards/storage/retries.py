"""Requests that are retried until a failure has passed, and what is said of one that stays."""

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from fineshards.errors import FineshardsError, OutputError

# How long a request is retried. Outages of a minute or two happen, and a worker that gives up costs
# more than one that waits.
RETRY_SECONDS = 300.0
# The wait before the second attempt is at most that long; each further one may be twice as long.
FIRST_WAIT = 1.0
_LONGEST_WAIT = 60.0
# Retries that last longer than this are logged.
SILENT_SECONDS = 10.0
# Status codes of failures that may pass: RFC 9110 and 6585.
TRANSIENT_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504))

_log = logging.getLogger("fineshards")
_Result = TypeVar("_Result")


def retried(
    action: Callable[[], _Result],
    pause: Callable[[Exception], float | None],
    failure: Callable[[Exception], str],
    seconds: float | None = None,
) -> _Result:
    """Runs an action that can be repeated, again after each error that may pass.

    pause: the delay in seconds that a server requests after an error, which does not count towards
    the limit, or 0; None for an error that stays. failure: what the log says of an error; once,
    and for each long wait. seconds: for how long; None for the default.
    """
    limit = RETRY_SECONDS if seconds is None else seconds
    began, wait, warned = time.monotonic(), FIRST_WAIT, False
    while True:
        try:
            return action()
        except Exception as error:
            least = pause(error)
            passed = time.monotonic() - began
            if least is None or max(passed, least) > limit:
                raise
            if least > SILENT_SECONDS:
                _log.warning("%s; trying again after %.0f s", failure(error), least)
            elif not warned and passed > SILENT_SECONDS:
                warned = True
                _log.warning("%s; retrying", failure(error))
        began += least
        # Not of the generator that a user may have seeded.
        time.sleep(least + random.SystemRandom().uniform(0, wait))
        wait = min(2 * wait, _LONGEST_WAIT)


@contextmanager
def translating(
    reason: Callable[[Exception, str, str], str | None],
    what: str,
    url: str,
    kind: type[FineshardsError] = OutputError,
) -> Iterator[None]:
    """Raises a library's errors in the body as `kind`: `url` cannot be `what`, why, what to do.

    reason: the last two of an error, what and url; None for an error that is not the library's.
    """
    try:
        yield
    except FineshardsError:
        raise
    except Exception as error:
        why = reason(error, what, url)
        if why is None:
            raise
        raise kind(f"{url} cannot be {what}: {why}") from error
