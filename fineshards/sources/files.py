"""Describes and opens input files, and checks that they have not changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import BinaryIO

from fineshards.errors import InputError, UsageError, with_escaped_bytes
from fineshards.shards.records import SourceFile
from fineshards.sources.gcs import check_generation, open_object
from fineshards.sources.hub_errors import http_error, quiet_http_client
from fineshards.storage.gcs_objects import SCHEME

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
        name = os.path.basename(path)
        raise UsageError(
            f"{path}: cannot read a file named {name!r}; expected {READABLE}. "
            "Convert the file, or narrow the pattern to exclude it."
        )
    return found


def _format(path: str) -> tuple[str, str] | None:
    stem, compression = path, "none"
    for ending, name in COMPRESSIONS.items():
        if path.endswith(ending):
            stem, compression = path.removesuffix(ending), name
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
        if (shown := with_escaped_bytes(path)) != path:
            raise InputError(f"{shown}: the name is not valid UTF-8. Rename the file or folder.")
        format_name, compression = format_of(path)
        size, identity = _local_state(path)
        files.append(SourceFile(index, path, size, identity, format_name, compression))
    return files


def check_unchanged(file: SourceFile) -> None:
    """Raises InputError if the file has changed since launch.

    Files on the hub are addressed by commit and cannot change.
    """
    if file.path.startswith(SCHEME):
        check_generation(file)
        return
    if "://" in file.path:
        return
    size, identity = _local_state(file.path)
    if (size, identity) != (file.size, file.identity):
        raise InputError(
            f"{file.path} changed since the job was launched: it had {file.size} bytes and "
            f"{file.identity}, now {size} bytes and {identity}. Restore the old file, or start "
            "over with --overwrite."
        )


def open_file(file: SourceFile, read_ahead: int = READ_AHEAD) -> BinaryIO:
    """Opens the file's raw bytes for random access; raises InputError if that fails.

    read_ahead: minimum bytes per request for a remote file that is read sequentially, which is
    any but Parquet. Parquet is never read ahead: pyarrow asks for the part of a column chunk
    that it needs, and reading ahead would fetch unused columns.
    """
    ahead = 0 if file.format == "parquet" else read_ahead
    try:
        if "://" not in file.path:
            return open(file.path, "rb")
        if file.path.startswith(SCHEME):
            return open_object(file, ahead)
        return _open_on_hub(file, ahead)
    except OSError as error:
        raise InputError(f"{file.path} cannot be opened: {error}.") from error


def _open_on_hub(file: SourceFile, read_ahead: int) -> BinaryIO:
    """Opens a file on the hub, which is read by range requests."""
    quiet_http_client()
    cache = "readahead" if read_ahead else "none"
    try:
        import fsspec  # slow, and only for files on the hub

        opened: BinaryIO = fsspec.filesystem("hf").open(
            file.path, "rb", size=file.size, cache_type=cache, block_size=read_ahead or READ_AHEAD
        )
    except http_error() as error:
        raise InputError(f"{file.path} cannot be opened: {error}.") from error
    return opened


def _local_state(path: str) -> tuple[int, str]:
    try:
        state = os.stat(path)
    except OSError as error:
        target = f" (it is a link to {os.readlink(path)})" if os.path.islink(path) else ""
        raise InputError(f"{path} cannot be read: {error.strerror}{target}.") from error
    if not stat.S_ISREG(state.st_mode):
        raise InputError(f"{path} is not a file. Exclude it.")
    return state.st_size, f"mtime:{state.st_mtime_ns}"
