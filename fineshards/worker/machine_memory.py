"""How much memory the machine of this process has."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# The limits of a container's control group, of version 2 and of version 1.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def machine_memory() -> int:
    """Bytes of memory of the machine, or of the container that this process is in."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in _LIMITS:
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            found.append(int(limit.read_text()))
    return min(found)
