"""The machine and the versions of a measurement, without names of hosts, users or paths."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

_VERSIONS = (
    "import json, platform, sys; from importlib.metadata import version; "
    "print(json.dumps({'python': platform.python_version()} "
    "| {name: version(name) for name in sys.argv[1:]}))"
)


def describe_machine(work: Path) -> dict[str, Any]:
    """The machine; work: the folder that the contestants write to."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.system(),
        "kernel": platform.release(),
        "file_system": _file_system(work),
    }


def describe_versions(python: str, packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of Python and of packages in an interpreter's environment."""
    listed = subprocess.run(
        [python, "-c", _VERSIONS, *packages], capture_output=True, text=True, check=True
    )
    versions: dict[str, str] = json.loads(listed.stdout)
    return versions


def describe_commit(root: Path) -> str:
    """The commit of a source tree, with `-dirty` if it has changes; `unknown` without git."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the file system that a folder is on, such as ext4."""
    inside = folder.resolve()
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    # The deepest mount wins, and the last of several at one place.
    above = [mount for mount in mounts if inside.is_relative_to(mount[1])]
    return max(enumerate(above), key=lambda item: (len(item[1][1]), item[0]))[1][2]
