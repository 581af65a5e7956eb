"""Describes and opens input files, and checks that they have not changed."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from fineshards.errors import FineshardsError, InputError, UsageError, with_escaped_bytes
from fineshards.shards.job.records import SourceFile
from fineshards.shards.record import replace
from fineshards.sources.compression import ENDINGS
from fineshards.sources.formats.format import FORMATS, file_name
from fineshards.sources.places.place import check_same
from fineshards.sources.places.schemes import is_url, open_raw, place_of


def readable() -> str:
    """The endings of names that can be read, as words."""
    endings: dict[str, list[str]] = {}
    for kind in FORMATS.values():
        outside = [ending for ending, name in ENDINGS.items() if name in kind.compressions]
        also = f", plain or with {', '.join(outside)}" if outside else ""
        endings.setdefault(also, []).extend(kind.endings)
    return "; or ".join(", ".join(names) + also for also, names in endings.items())


def has_known_format(path: str) -> bool:
    """Whether a file's extension is one that can be read."""
    return _format(path) is not None


def format_of(path: str) -> tuple[str, str]:
    """Returns (format, compression) for a file name; raises UsageError for an unknown extension."""
    found = _format(path)
    if found is None:
        name = file_name(path)
        raise UsageError(
            f"{path}: cannot read a file named {name!r}; expected {readable()}. "
            "Convert the file, or narrow the pattern to exclude it."
        )
    return found


def _format(path: str) -> tuple[str, str] | None:
    stem, compression = file_name(path), "none"
    for ending, its_name in ENDINGS.items():
        if stem.endswith(ending):
            stem, compression = stem.removesuffix(ending), its_name
            break
    ending = os.path.splitext(stem)[1]
    for name, kind in FORMATS.items():
        if ending in kind.endings and compression in kind.compressions:
            return name, compression
    return None


def describe_files(paths: Iterable[str]) -> list[SourceFile]:
    """Returns local files with size and identity, numbered in the order given.

    Raises UsageError for a name of unknown format, and InputError for anything that is not a file
    with a name in UTF-8.
    """
    files = []
    for index, path in enumerate(paths):
        files.append(replace(describe_local_file(path, *format_of(path)), index=index))
    return files


def describe_local_file(path: str, format_name: str, compression: str = "none") -> SourceFile:
    """A local file with its size and identity; raises InputError as `describe_files` does."""
    if (shown := with_escaped_bytes(path)) != path:
        raise InputError(f"{shown}: the name is not valid UTF-8. Rename the file or folder.")
    size, identity = _local_state(path)
    return SourceFile(0, path, size, identity, format_name, compression)


def check_unchanged(file: SourceFile) -> None:
    """Raises InputError if the file has changed since launch."""
    check_same(file, state_of(file))


def state_of(file: SourceFile) -> tuple[int, str] | None:
    """The size and the identity of a file now; None if it is not there any more."""
    if is_url(file.path):
        return place_of(file.path).state(file)
    return _local_state(file.path) if os.path.lexists(file.path) else None


def open_file(file: SourceFile, read_ahead: int | None = None) -> BinaryIO:
    """Opens the file's raw bytes for random access; `explain_failures` is about it.

    read_ahead: least bytes per request of a remote file; None for those of its format.
    """
    if is_url(file.path):
        ahead = FORMATS[file.format].read_ahead if read_ahead is None else read_ahead
        return open_raw(file, ahead)
    return open(file.path, "rb")


def _local_state(path: str) -> tuple[int, str]:
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
