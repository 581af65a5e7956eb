"""Temporary files: a folder for them, and what to say if there is no room for them."""

import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fineshards.errors import OutputError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# A dot, because input may be read from the same folder.
_PREFIX, _LOCK = ".fineshards-", ".lock"
_NAME = re.compile(r"\.fineshards-[0-9a-f]{32}(\.lock)?")
# Locked files of this process, by descriptor: see own_process.py.
held: set[int] = set()


@contextmanager
def temporary_room(place: str | None = None) -> Iterator[None]:
    """Turns the lack of a folder for temporary files, or of space in it, into OutputError."""
    advice = "Free some space there."
    if place is None:
        place, advice = _place(), "Free some space there, or set TMPDIR to another folder."
    try:
        yield
    except OSError as error:
        # Files with a name are the caller's own.
        name = error.filename
        if error.errno not in _NO_ROOM or (
            name and (isinstance(name, int) or not os.fsdecode(name).startswith(place))
        ):
            raise
        raise OutputError(
            f"a temporary file cannot be written in {place}: {error.strerror}. {advice}"
        ) from error


@contextmanager
def scratch_folder(place: str | None = None) -> Iterator[str]:
    """A folder for scratch files, which is removed at the end, by Ctrl-C and by SIGTERM too.

    place: where to make it; the system's folder for temporary files by default. What SIGKILL leaves
    the next command removes: beside it is a file that is locked as long as its process lives.
    """
    with temporary_room(place), scratch_folder_in(_place() if place is None else place) as folder:
        yield folder


@contextmanager
def scratch_folder_in(place: str) -> Iterator[str]:
    """As `scratch_folder`, but the lack of space is the OSError that it was."""
    os.makedirs(place, exist_ok=True)
    remove_abandoned(place)
    folder, lock = _claim(place)
    held.add(lock)
    try:
        os.mkdir(folder, 0o700)
        yield folder
    except Exception as error:
        if os.path.exists(folder + _LOCK):
            raise
        raise OutputError(
            f"{folder} was removed by another command while it was in use. Run this again after it."
        ) from error
    finally:
        _remove(folder)
        held.discard(lock)
        os.close(lock)


def remove_abandoned(place: str | None = None) -> None:
    """Removes the scratch folders of processes that have ended, as far as that is possible."""
    with suppress(OSError, OutputError):
        place = _place() if place is None else place
        for name in filter(_NAME.fullmatch, os.listdir(place)):
            with suppress(OSError):
                _remove_if_abandoned(os.path.join(place, name.removesuffix(_LOCK)))


def _place() -> str:
    """The system's folder for temporary files; raises OutputError if there is none."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise OutputError(
            "there is no folder with space for temporary files. Free some, or set another TMPDIR."
        ) from error


def _claim(place: str) -> tuple[str, int]:
    """The name of a new folder, and a descriptor of its locked file."""
    while True:
        folder = os.path.join(place, f"{_PREFIX}{uuid.uuid4().hex}")
        lock = os.open(folder + _LOCK, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        with suppress(OSError):  # a file system without locks; then no one removes the folder
            fcntl.flock(lock, fcntl.LOCK_EX)
        # Another process may have removed the file before it was locked, and a third one made it.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(folder + _LOCK)):
                return folder, lock
        os.close(lock)


def _remove_if_abandoned(folder: str) -> None:
    """Removes a scratch folder and its file, if they are this user's and no one holds the lock."""
    # One without the file is of a command that was killed while it deleted both.
    found = os.lstat(folder + _LOCK if os.path.lexists(folder + _LOCK) else folder)
    is_ours = found.st_uid == os.getuid()
    if not is_ours or stat.S_IFMT(found.st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
        return
    lock = os.open(folder + _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: str) -> None:
    """Removes a scratch folder, and then the file beside it."""
    for _ in range(100):  # a worker that is about to be killed may still write
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            with suppress(OSError):
                os.unlink(folder + _LOCK)
            return
        time.sleep(0.01)
