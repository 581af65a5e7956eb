"""A process that does nothing else: that of a command, or one that was started for a build.

Only such a process may fork workers and end at once. Ctrl-C and SIGTERM end a command where it
stands, with one sentence: a finished file is whole and an unfinished one is never taken for
finished, so only temporary files are removed. An exception, Python's own way, can be swallowed by
any `except` in a library, and shows a traceback where none is expected.

Imports little, because it comes first.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, SimpleNamespace
from typing import Any

from fineshards.storage import temporary

_SENTENCES = {signal.SIGINT: "interrupted.", signal.SIGTERM: "terminated."}
# Interpreters that this process has started.
started: set[int] = set()
# How to go on after an interruption: RESUME, or empty for what is not resumed.
resume = ""
RESUME = " Run the same command again to resume."
# Whether this process is dedicated to one command, and does nothing else.
alone = False


def prepare() -> None:
    """Settles this process for a build, before it imports libraries.

    No cyclic garbage collection: what imports and the graph make stays. No threads for linear
    algebra, which numpy would start: this process is forked. No pandas, for which pyarrow asks once
    (a function of the user's has it: `user_function.py`).
    """
    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with without("pandas"), suppress(ImportError):
        import pyarrow as pa

        pa.array([])


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Has libraries do without modules that are not loaded, in a process of its own."""

    def find_spec(name: str, *_: object) -> None:
        if alone and name in modules:
            raise ModuleNotFoundError(f"{name} is not used here", name=name)

    finder: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def collect_garbage_again() -> None:
    """Turns garbage collection on, but not for the objects that are there by now."""
    if alone:
        gc.freeze()
        gc.enable()


def end_at_once() -> None:
    """Ends this process on the first Ctrl-C or SIGTERM, with exit code 130 or 143."""
    for number in _SENTENCES:
        # A shell's background jobs ignore Ctrl-C.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def raise_instead(*numbers: signal.Signals) -> None:
    """Raises KeyboardInterrupt for these signals from now on; for both if none is given.

    For runners that have started something in this process, which ends with an exception only.
    """
    for number in numbers or _SENTENCES:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.default_int_handler)


def end(code: int) -> None:
    """Ends this process with an exit code, unless something must be unwound before.

    Python would first take apart all that was imported, which is 0.4 s with Beam.
    """
    # What Beam starts for another runner ends with the interpreter only.
    if any(signal.getsignal(number) is _end for number in _SENTENCES):
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _end(number: int, frame: FrameType | None) -> None:
    # A progress bar hides the cursor.
    cursor = "\x1b[?25h\r\x1b[K" if sys.stderr is not None and sys.stderr.isatty() else ""
    sentence = f"{cursor}fineshards: {_SENTENCES[signal.Signals(number)]}{resume}\n"
    try:
        os.write(2, sentence.encode())
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(2)  # ends this process if another one cannot be ended
        if "multiprocessing" in sys.modules:
            started.update(each.pid for each in sys.modules["multiprocessing"].active_children())
        for process in started:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)  # until it writes no more
        for lock in temporary.locks:
            os.close(lock)
        temporary.remove_abandoned()
    finally:
        os._exit(128 + number)
