"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


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


_MOUNT = Path("/sys/fs/cgroup")


def _quotas(membership: Path, mount: Path) -> Iterator[float]:
    """The quotas, in cores, of the process's control group and of those that contain it."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        # Version 2 has one hierarchy without controllers, version 1 one for each set of them. In a
        # container a version 1 name is the host's, so the mount itself counts too.
        root = mount if not controllers else mount / "cpu"
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = root / name.lstrip("/")
        for folder in (group, *group.parents):
            if folder != root and root not in folder.parents:
                break
            yield from _quota(folder)


def _quota(folder: Path) -> Iterator[float]:
    """The quota that a control group sets, if it sets one."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        if quota != "max" and int(quota) > 0:
            yield int(quota) / int(period)
    except (OSError, ValueError):
        return
