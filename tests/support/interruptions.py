"""Exceptions as a signal's handler raises them: at a chosen line of what a call executes."""

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

import fineshards

_PACKAGE = fineshards.__path__[0]


class Interrupted(BaseException):
    """What the handler raises."""


@cache
def ends_a_with(code: CodeType) -> set[int]:
    """The lines of `with` statements.

    A tracer also sees these lines when a block ends, before its lock is released. The interpreter
    runs no handler there.
    """
    return {
        each.positions.lineno
        for each in dis.get_instructions(code)
        if each.opname in ("BEFORE_WITH", "LOAD_SPECIAL")
        and each.positions is not None
        and each.positions.lineno is not None
    }


class Interruption:
    """Raises `Interrupted` in this thread, at one of the lines of the package that a call executes.

    line: counted from 0, in the order in which they are first executed; the ends of `with` blocks
    do not count. raised: whether there were that many.
    """

    def __init__(self, line: int) -> None:
        self._left = line
        self._seen: set[tuple[CodeType, int]] = set()
        self.raised = False

    def call(self, action: Callable[[], Any]) -> Any:
        """What an action returns; None if it was interrupted."""
        # Held until the end. CPython 3.11 makes a frame for the tracer with a borrowed reference to
        # it. If the collector runs meanwhile, and we interrupt what that calls, the tracer is gone.
        before, tracer = sys.gettrace(), self._trace
        sys.settrace(tracer)
        try:
            return action()
        except Interrupted:
            return None
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if self.raised or not code.co_filename.startswith(_PACKAGE):
            return None
        place = code, frame.f_lineno
        if event != "line" or place in self._seen:
            return self._trace
        self._seen.add(place)
        if frame.f_lineno not in ends_a_with(code):
            if self._left == 0:
                self.raised = True
                raise Interrupted
            self._left -= 1
        return self._trace
