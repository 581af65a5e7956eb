"""Temporary files, and what to say if there is no room for them."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from fineshards.errors import OutputError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@contextmanager
def temporary_room() -> Iterator[None]:
    """Turns the lack of a folder for temporary files, or of space in it, into OutputError."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise OutputError(
            "there is no folder with space for temporary files. Free some space, or set TMPDIR to "
            "a folder that has some."
        ) from error
    try:
        yield
    except OSError as error:
        # Files with a name are the caller's own.
        named = error.filename and not _is_temporary(os.fspath(error.filename))
        if error.errno not in _NO_ROOM or named:
            raise
        raise OutputError(
            f"a temporary file cannot be written in {tempfile.gettempdir()}: {error.strerror}. "
            "Free some space there, or set TMPDIR to another folder."
        ) from error


def _is_temporary(path: str | bytes | int) -> bool:
    return not isinstance(path, int) and os.fsdecode(path).startswith(tempfile.gettempdir())
