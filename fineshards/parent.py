"""Processes and those that start them: how they end together, and how one has ended."""

import os
import signal
import sys


def end_with(parent: int) -> None:
    """Makes the kernel kill this process when `parent`, which started it, ends in any way.

    Only Linux can. Elsewhere a process ends when it next finds its connection closed.
    """
    if sys.platform == "linux":
        import ctypes  # only workers pay for it

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)


def how_it_ended(code: int) -> str:
    """How a process ended, in words, by its exit code as Python has it.

    Example:
        >>> how_it_ended(3), how_it_ended(-9)
        ('ended with exit code 3', 'was killed by SIGKILL')
    """
    if code >= 0:
        return f"ended with exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"
