"""A process that ends with the one that started it."""

from __future__ import annotations

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
