"""Describes and opens input files, and checks that they have not changed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO
from urllib.parse import urlsplit

from fineshards.errors import FineshardsError, InputError, UsageError, with_escaped_bytes
from fineshards.shards.job.records import SourceFile
from fineshards.shards.record import replace
from fineshards.sources.patterns import check_same
from fineshards.sources.places.schemes import is_url, place_of

# Format and compression by file name extension. C4 and Dolma name JSON lines `.json.gz`.
FORMATS = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".warc": "warc",
    ".wet": "wet",
    ".txt": "text",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bzip2"}
# Those that compress inside, or are always compressed in one way.
_COMPRESSIONS_OF = {
    "parquet": ("none",),
    "arrow": ("none",),
    "warc": ("none", "gzip"),
    "wet": ("none", "gzip"),
}
# Bytes per request when a remote file is read sequentially. A request takes as long as receiving
# a few megabytes.
READ_AHEAD = 16 << 20
_WEB = ("http://", "https://")
READABLE = (
    ".parquet, .arrow, .feather; .warc, .wet, plain or with .gz; or .jsonl, .ndjson, .json, .csv, "
    ".tsv, .txt, plain or with .gz, .zst, .xz or .bz2"
)


def has_known_format(path: str) -> bool:
    """Whether a file's extension is one that can be read."""
    return _format(path) is not None


def format_of(path: str) -> tuple[str, str]:
    """Returns (format, compression) for a file name; raises UsageError for an unknown extension."""
    found = _format(path)
    if found is None:
        name = file_name(path)
        raise UsageError(
            f"{path}: cannot read a file named {name!r}; expected {READABLE}. "
            "Convert the file, or narrow the pattern to exclude it."
        )
    return found


def file_name(path: str) -> str:
    """The name of a file, without the query that a URL of a web server may end with."""
    return os.path.basename(urlsplit(path).path if path.startswith(_WEB) else path)


def _format(path: str) -> tuple[str, str] | None:
    name = file_name(path)
    stem, compression = name, "none"
    for ending, its_name in COMPRESSIONS.items():
        if name.endswith(ending):
            stem, compression = name.removesuffix(ending), its_name
    found = FORMATS.get(os.path.splitext(stem)[1])
    if found is None or compression not in _COMPRESSIONS_OF.get(found, (compression,)):
        return None
    return found, compression


def describe_files(paths: Iterable[str]) -> list[SourceFile]:
    """Returns local files with size and identity, numbered in the order given.

    Raises UsageError for a name of unknown format, and InputError for anything that is not a file
    with a name in UTF-8.
    """
    files = []
    for index, path in enumerate(paths):
        _check_name(path)
        files.append(replace(describe_local_file(path, *format_of(path)), index=index))
    return files


def describe_local_file(path: str, format_name: str, compression: str = "none") -> SourceFile:
    """A local file with its size and identity; raises InputError as `describe_files` does."""
    _check_name(path)
    size, identity = _local_state(path)
    return SourceFile(0, path, size, identity, format_name, compression)


def _check_name(path: str) -> None:
    if (shown := with_escaped_bytes(path)) != path:
        raise InputError(f"{shown}: the name is not valid UTF-8. Rename the file or folder.")


def check_unchanged(file: SourceFile) -> None:
    """Raises InputError if the file has changed since launch."""
    if is_url(file.path):
        place_of(file.path).check(file)
    else:
        check_same(file, *_local_state(file.path))


def open_file(file: SourceFile, read_ahead: int = READ_AHEAD) -> BinaryIO:
    """Opens the file's raw bytes for random access; raises InputError if that fails.

    read_ahead: minimum bytes per request for a remote file that is read sequentially, which is
    any but Parquet. Parquet is never read ahead: pyarrow asks for the part of a column chunk
    that it needs, and reading ahead would fetch unused columns.
    """
    ahead = 0 if file.format == "parquet" else read_ahead
    try:
        if is_url(file.path):
            return place_of(file.path).open_raw(file, ahead)
        return open(file.path, "rb")
    except OSError as error:
        raise InputError(f"{file.path} cannot be opened: {error}.") from error


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
