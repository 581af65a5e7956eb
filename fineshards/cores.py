"""How many cores this process may use."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """The number of cores that this process may keep busy, at least 1.

    The affinity mask says which cores it may run on, and the quota of its control group for how
    much of the time. A container with two of a machine's 64 cores has two.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has masks
        cores = os.cpu_count() or 1
    return max(1, math.ceil(min([cores, *_quotas(Path("/proc/self/cgroup"), _MOUNT)])))


def _quotas(membership: Path, mount: Path) -> Iterator[float]:
    """The quotas, in cores, of the process's control group and of those that contain it.

    Of version 2, which has one hierarchy: `0::/name`.
    """
    try:
        group = mount / membership.read_text().partition("0::/")[2].split("\n")[0]
    except OSError:
        return
    for folder in (group, *group.parents):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                yield int(quota) / int(period)
        except (OSError, ValueError):
            pass
        if folder == mount:
            return
