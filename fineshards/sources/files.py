"""Source files, wherever they are: described, opened, and noticed if they have changed."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO

import fineshards.sources.places.hub_files  # noqa: F401 - before workers fork, which share its turns
from fineshards.errors import FineshardsError, InputError, with_escaped_bytes
from fineshards.plugin_registry import Plugins
from fineshards.shards.job.records import SourceFile
from fineshards.sources.formats.format import FORMATS, format_of
from fineshards.sources.places.fsspec_files import FsspecFiles
from fineshards.sources.places.place import Place, check_same
from fineshards.storage.ranges import RangeReader

_PLACES: Plugins[Place] = Plugins("places", makes=True)
_OTHERS = FsspecFiles()


def place_of(url: str) -> Place:
    """Returns the place of a URL: that of its scheme, or fsspec's."""
    return _PLACES.get(url.partition("://")[0], _OTHERS)


def is_url(path: str) -> bool:
    """Whether a path or pattern is not that of a local file."""
    return "://" in path


def without_scheme(path: str) -> str:
    """The local path that a URL of fsspec's names, such as local:///data; any other as it is."""
    scheme, separator, local = path.partition("://")
    return os.path.expanduser(local) if separator and scheme in ("file", "local") else path


def imports_libraries(pattern: str) -> bool:
    """Whether finding files by a pattern imports libraries that are large or start threads."""
    return is_url(pattern) and not place_of(pattern).is_light


def describe_files(paths: Iterable[str]) -> list[SourceFile]:
    """Returns local files with size and identity, numbered in the order given.

    Raises UsageError for a name of unknown format, and InputError for anything that is not a file
    with a name in UTF-8.
    """
    return [
        SourceFile(index, path, *local_state(path), *format_of(path))
        for index, path in enumerate(paths)
    ]


def check_unchanged(file: SourceFile) -> None:
    """Raises InputError if the file has changed since launch."""
    check_same(file, state_of(file))


def state_of(file: SourceFile) -> tuple[int, str] | None:
    """The size and the identity of a file now; None if it is not there any more."""
    if is_url(file.path):
        return place_of(file.path).state(file)
    return local_state(file.path) if os.path.lexists(file.path) else None


def open_file(file: SourceFile, read_ahead: int | None = None) -> BinaryIO:
    """Opens the file's raw bytes for random access; `explain_failures` is about it.

    read_ahead: least bytes per request of a remote file, 0 for exactly the bytes read; None for
    those of its format.
    """
    if not is_url(file.path):
        return open(file.path, "rb")
    read = partial(place_of(file.path).read, file)
    ahead = FORMATS[file.format].read_ahead if read_ahead is None else read_ahead
    return RangeReader(file.size, read).buffered(ahead)


def local_state(path: str) -> tuple[int, str]:
    """The size and the identity of a local file; raises InputError as `describe_files` does."""
    if (shown := with_escaped_bytes(path)) != path:
        raise InputError(f"{shown}: the name is not valid UTF-8. Rename the file or folder.")
    try:
        state = os.stat(path)
    except OSError as error:
        target = f" (it is a link to {os.readlink(path)})" if os.path.islink(path) else ""
        raise InputError(f"{path} cannot be read: {error.strerror}{target}.") from error
    if not stat.S_ISREG(state.st_mode):
        raise InputError(f"{path} is not a file. Exclude it.")
    return state.st_size, f"mtime:{state.st_mtime_ns}"


@contextmanager
def explain_failures(file: SourceFile) -> Iterator[None]:
    """Turns errors of a disk, a connection or a library while reading `file` into InputError."""
    try:
        yield
    except FineshardsError:
        raise
    except Exception as error:
        if not is_url(file.path) and not isinstance(error, OSError):
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise  # from what is written meanwhile
        raise InputError(
            f"{file.path} cannot be read: {type(error).__name__}: {error}. "
            "Check the disk or the network; run the same command again to resume the job."
        ) from error
