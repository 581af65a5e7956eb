"""Finds, describes and opens input files, and checks that they have not changed."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import BinaryIO

import fsspec

from fineshards.errors import InputError, UsageError
from fineshards.shards.records import SourceFile
from fineshards.sources.gcs import check_generation, find_objects, open_object
from fineshards.sources.hub_errors import http_error, quiet_http_client
from fineshards.storage.gcs_objects import SCHEME

# Format and compression by file name extension. C4 and Dolma name JSON lines `.json.gz`.
FORMATS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
# Bytes per request when a remote file is read sequentially. A request takes as long as receiving
# a few megabytes.
READ_AHEAD = 16 << 20
READABLE = ".parquet, or .jsonl/.ndjson/.json plain or with .gz or .zst"


def format_of(path: str) -> tuple[str, str]:
    """Returns (format, compression) for a file name; raises UsageError for an unknown extension."""
    stem, compression = path, "none"
    for ending, name in COMPRESSIONS.items():
        if path.endswith(ending):
            stem, compression = path.removesuffix(ending), name
    ending = os.path.splitext(stem)[1]
    found = FORMATS.get(ending)
    if found is None or (found == "parquet" and compression != "none"):
        name = os.path.basename(path)
        raise UsageError(
            f"{path}: cannot read a file named {name!r}; expected {READABLE}. "
            "Convert the file, or narrow the pattern to exclude it."
        )
    return found, compression


def find_files(patterns: Sequence[str]) -> list[SourceFile]:
    """Returns the matching files, numbered, in the order of the patterns and sorted within each.

    Raises UsageError for a pattern without a match, a file matched twice or a name of unknown
    format, and InputError for a file or bucket that cannot be inspected.
    """
    seen: dict[str, str] = {}
    files: list[SourceFile] = []
    for pattern in patterns:
        matches = _find_stored(pattern) if pattern.startswith(SCHEME) else _find_local(pattern)
        if not matches:
            raise UsageError(
                f"--input {pattern}: no file matches. Check the path, "
                "and quote the pattern so that the shell does not expand it."
            )
        for match in matches:
            # Links are resolved only to find duplicates: a link's target may have no extension.
            remote = match.path.startswith(SCHEME)
            target = match.path if remote else os.path.realpath(match.path)
            if target in seen:
                raise UsageError(
                    f"{match.path} is matched twice, by --input {seen[target]} and --input "
                    f"{pattern}; its documents would be in the dataset twice. Match it only once."
                )
            seen[target] = pattern
            files.append(replace(match, index=len(files)))
    return files


def _find_local(pattern: str) -> list[SourceFile]:
    if "://" in pattern:
        raise UsageError(
            f"--input {pattern}: only local paths and gs:// can be read by pattern. "
            "For a dataset on the Hugging Face Hub, use --dataset."
        )
    # A name may contain brackets, which are special in a pattern. A pattern with several ** yields
    # some files more than once.
    named = set(glob.glob(pattern, recursive=True)) or {pattern}
    return describe_files(os.path.abspath(path) for path in sorted(named) if os.path.isfile(path))


def _find_stored(pattern: str) -> list[SourceFile]:
    files = []
    for found in find_objects(pattern):
        format_name, compression = format_of(found.path)
        if found.encoding not in ("", "identity"):
            # As `gcloud storage cp --gzip-local` uploads: the name describes the content, and the
            # encoding how it is stored. The object is read as stored.
            if (format_name, found.encoding) != ("jsonl", "gzip") or compression == "zstd":
                raise InputError(
                    f"{found.path} is stored with Content-Encoding {found.encoding}; only JSON "
                    "lines with gzip are supported. Upload it again without Content-Encoding."
                )
            compression = "gzip"
        files.append(
            SourceFile(0, found.path, found.size, found.identity, format_name, compression)
        )
    return files


def describe_files(paths: Iterable[str]) -> list[SourceFile]:
    """Returns local files with size and identity, numbered in the order given."""
    files = []
    for index, path in enumerate(paths):
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
    JSON lines. Parquet is never read ahead: pyarrow asks for the part of a column chunk that it
    needs, and reading ahead would fetch unused columns.
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
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    return state.st_size, f"mtime:{state.st_mtime_ns}"
