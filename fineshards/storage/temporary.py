"""Temporary files: a folder for them, and what to say if there is no room for them."""

import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fineshards.errors import OutputError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# Locks of this process on its scratch folders, by descriptor: see own_process.py.
locks: set[int] = set()


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
    the next command on this host removes: a folder is locked as long as its process lives. Where
    folders cannot be locked, as on NFS, it stays.
    """
    with temporary_room(place), scratch_folder_in(_place() if place is None else place) as folder:
        yield folder


@contextmanager
def scratch_folder_in(place: str) -> Iterator[str]:
    """As `scratch_folder`, but the lack of space is the OSError that it was."""
    os.makedirs(place, exist_ok=True)
    remove_abandoned(place)
    folder, lock = _locked_folder(place)
    try:
        yield folder
    except Exception as error:
        if os.path.exists(folder):
            raise
        raise OutputError(
            f"{folder} was removed by another command while it was in use. Run this again after it."
        ) from error
    finally:
        _remove(folder)
        locks.discard(lock)
        os.close(lock)


def remove_abandoned(place: str | None = None) -> None:
    """Removes the scratch folders of ended processes of this host, as far as that is possible."""
    with suppress(OSError, OutputError):
        place = _place() if place is None else place
        for name in os.listdir(place):
            if re.fullmatch(rf"{_prefix()}[0-9a-f]{{32}}", name):
                with suppress(OSError):
                    _remove_if_abandoned(os.path.join(place, name))


def _place() -> str:
    """The system's folder for temporary files; raises OutputError if there is none."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise OutputError(
            "there is no folder with space for temporary files. Free some, or set another TMPDIR."
        ) from error


def _prefix() -> str:
    """How the names of this host's scratch folders begin.

    On a file system of several hosts, one need not see the locks of another.
    """
    host = zlib.crc32(os.fsencode(os.uname().nodename))
    return f".fineshards-{host:08x}-"  # a dot, because input may be read from the same folder


def _locked_folder(place: str) -> tuple[str, int]:
    """Creates a folder; returns its path, and a descriptor that keeps it locked."""
    while True:
        folder = os.path.join(place, _prefix() + uuid.uuid4().hex)
        os.mkdir(folder, 0o700)
        with suppress(FileNotFoundError):  # another process may remove it before it is locked
            lock = os.open(folder, os.O_RDONLY)
            locks.add(lock)  # before it is locked, because a signal may end this process any time
            with suppress(OSError):  # a file system without locks; then no one removes the folder
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.exists(folder):
                return folder, lock
            locks.discard(lock)
            os.close(lock)


def _remove_if_abandoned(folder: str) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: str) -> None:
    for _ in range(100):  # a worker that is about to be killed may still write
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(0.01)
