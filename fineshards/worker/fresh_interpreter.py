"""A function called in a fresh interpreter, which has this process's import path and nothing else.

A build must fork workers from a process that holds little and has no threads, and Beam changes
global state. So a build in a user's program runs in an interpreter of its own.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, TypeVar, TypeVarTuple

from fineshards.errors import FineshardsError
from fineshards.parent import end_with, how_it_ended
from fineshards.storage.temporary import remove_abandoned
from fineshards.worker import own_process

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

# Nothing of a user's program is imported, not even its __main__, unlike in multiprocessing.
_PROGRAM = """
import sys
from multiprocessing.connection import Connection
launcher = Connection({descriptor})
try:
    sys.path[:] = launcher.recv()
except (EOFError, OSError):
    sys.exit()
from fineshards.worker.fresh_interpreter import answer
answer(launcher, {process})
"""


def call_in_fresh_interpreter(
    function: Callable[[*_Arguments], _Result],
    /,
    *arguments: *_Arguments,
    hear: Callable[[Any], None] | None = None,
) -> _Result:
    """Returns what a function of a module returns for these arguments, or raises what it raises.

    An error that is not a FineshardsError is raised as RuntimeError with its traceback as text. The
    interpreter ends with this process, and at once if the caller is interrupted. The function's
    warnings in the log of fineshards reach this process's log.

    hear: called here with each value that the function passes to one more argument, a callback;
    values that arrive while it runs are dropped, except the latest.
    """
    ours, theirs = Pipe()
    program = _PROGRAM.format(descriptor=theirs.fileno(), process=os.getpid())
    with ours:
        with theirs:
            # Ctrl-C goes to all processes of a terminal; `answer` says what it means there.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                # -P: a file in the current folder must not shadow a library.
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", program],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
                own_process.started.add(process.pid)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            with _naming_the_end(process):
                ours.send(sys.path)
                ours.send((function, arguments, hear is not None))
            is_interim, latest = True, None
            while is_interim:
                with _naming_the_end(process):
                    is_interim, result, error = ours.recv()
                if isinstance(result, logging.LogRecord):
                    if (log := logging.getLogger(result.name)).isEnabledFor(result.levelno):
                        log.handle(result)
                    continue
                latest = result if is_interim else latest
                if hear is not None and latest is not None and not (is_interim and ours.poll()):
                    hear(latest)
                    latest = None
        finally:
            process.kill()
            process.wait()
            own_process.started.discard(process.pid)
            remove_abandoned()
    if error is not None:
        raise error
    returned: _Result = result
    return returned


def call_apart(function: Callable[[*_Arguments], _Result], /, *arguments: *_Arguments) -> _Result:
    """Calls a function whose libraries are large or start threads.

    In a process that will fork workers it is called in a fresh interpreter.
    """
    if own_process.alone:
        return call_in_fresh_interpreter(function, *arguments)
    return function(*arguments)


@contextmanager
def _naming_the_end(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Raises FineshardsError if a process has ended before it answered."""
    try:
        yield
    except (EOFError, OSError):
        code, why = process.wait(), ""
        if code == -signal.SIGKILL:
            why = "; most likely the machine ran out of memory: use fewer workers"
        raise FineshardsError(
            f"the process that did the work {how_it_ended(code)}{why}. Finished work is safe; do "
            "the same again, which resumes a build."
        ) from None


def answer(launcher: Connection, process: int) -> None:
    """What the fresh interpreter does: one call, or none if the launching process ends before."""
    # The launching process decides what Ctrl-C means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # What other libraries log repeats our errors with tracebacks, or helps no one.
    logging.basicConfig(handlers=[logging.NullHandler()])
    own_process.alone = True
    own_process.prepare()
    end_with(process)
    try:
        function, arguments, is_heard = launcher.recv()
    except (EOFError, OSError):  # the launching process was interrupted
        return
    sending = threading.Lock()

    def send(*message: object) -> None:
        with sending:
            launcher.send(message)

    queue: Any = SimpleNamespace(put_nowait=lambda record: send(True, record, None))
    handler, owner = QueueHandler(queue), os.getpid()
    handler.setLevel(logging.WARNING)
    # Forked workers would write into the messages of this process.
    handler.addFilter(lambda _: os.getpid() == owner)
    logging.getLogger("fineshards").addHandler(handler)
    if is_heard:
        arguments = (*arguments, lambda value: send(True, value, None))
    result: Any = None
    error: Exception | None = None
    try:
        result = function(*arguments)
    except FineshardsError as expected:
        error = expected
    except BaseException:
        error = RuntimeError(f"failed unexpectedly:\n{traceback.format_exc()}")
    send(False, result, error)
