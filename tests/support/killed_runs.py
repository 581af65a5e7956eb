"""Runs on object storage that are killed at a request, repeatedly, until one ends by itself."""

import signal
import subprocess
from collections.abc import Callable, Sequence

from support.faulty_proxy import Proxy
from support.process_tree import start


def run_until_done(
    server: Proxy,
    request: str,
    number: int,
    command: Sequence[object],
    look: Callable[[], object],
    later: int = 0,
) -> int:
    """Kills each run of a command at its request `number` that matches; returns the number of runs.

    The server still carries the request out. look: called after each run. later: how many requests
    later each run is killed than the one before.
    """
    runs = 0
    while True:
        runs += 1
        running: list[subprocess.Popen[str]] = []

        def kill(running: list[subprocess.Popen[str]] = running) -> None:
            running[0].kill()
            running[0].wait()

        server.rules.clear()
        server.fail(request, kill, (number + later * (runs - 1),))
        running.append(start(*command))
        _, errors = running[0].communicate()
        server.rules.clear()
        look()
        if running[0].returncode == 0:
            return runs
        assert running[0].returncode == -signal.SIGKILL, errors
