"""The processes of a running command, as Linux lists them."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    """Starts the command line in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fineshards", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def children(parent: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _parent(entry) == parent:
            found.append(int(entry.name))
    return sorted(found)


def alive(process: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return _fields(Path(f"/proc/{process}"))[0] != "Z"
    except (OSError, IndexError):
        return False


def wait_until(true: Callable[[], object], job: subprocess.Popen[str] | None = None) -> None:
    """Waits until something is true, or until a job has ended."""
    end = time.monotonic() + 120
    while not true() and (job is None or job.poll() is None):
        assert time.monotonic() < end, "it did not become true within two minutes"
        time.sleep(0.005)


def _fields(entry: Path) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold spaces."""
    return (entry / "stat").read_text().rpartition(")")[2].split()


def _parent(entry: Path) -> int | None:
    try:
        return int(_fields(entry)[1])
    except (OSError, IndexError):
        return None
