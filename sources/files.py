"""Input files: finding them, describing them, opening them, noticing that they changed."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterable, Sequence
from typing import BinaryIO

import fsspec

from shards.errors import InputError, UsageError
from shards.records import SourceFile

# File name endings and what they say of the content. C4 and Dolma name JSON lines `.json.gz`.
FORMATS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
# Bytes per request when a file on the hub is read from front to back: asking takes as long as
# receiving some megabytes.
READ_AHEAD = 16 << 20
READABLE = ".parquet, or .jsonl/.ndjson/.json plain or with .gz or .zst"


def format_of(path: str) -> tuple[str, str]:
    """Returns (format, compression) as the file's name tells them; raises UsageError."""
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
            "Convert the file, or narrow the pattern so that it is left out."
        )
    return found, compression


def match_patterns(patterns: Sequence[str]) -> list[str]:
    """Absolute paths of the files that match, in the order of the patterns, each pattern's sorted.

    Raises UsageError for a pattern without a match and for a file matched twice.
    """
    seen: dict[str, str] = {}
    paths = []
    for pattern in patterns:
        if "://" in pattern:
            raise UsageError(
                f"--input {pattern}: only local paths can be read by pattern; "
                "for a dataset on the Hugging Face hub use --dataset."
            )
        # A name may hold brackets, which mean something else in a pattern.
        named = glob.glob(pattern, recursive=True) or [pattern]
        matches = sorted(path for path in named if os.path.isfile(path))
        if not matches:
            raise UsageError(
                f"--input {pattern}: no file matches. Check the path; "
                "quote the pattern so that the shell leaves it alone."
            )
        for match in matches:
            # Links are followed to tell files apart only: the name they lead to may have no ending.
            target = os.path.realpath(match)
            if target in seen:
                raise UsageError(
                    f"{match} is matched twice, by --input {seen[target]} and --input {pattern}; "
                    "its documents would be in the dataset twice. Name it once."
                )
            seen[target] = pattern
            paths.append(os.path.abspath(match))
    return paths


def describe_files(paths: Iterable[str]) -> list[SourceFile]:
    """Size and identity of local files, numbered in the order given."""
    files = []
    for index, path in enumerate(paths):
        format_name, compression = format_of(path)
        size, identity = _local_state(path)
        files.append(SourceFile(index, path, size, identity, format_name, compression))
    return files


def check_unchanged(file: SourceFile) -> None:
    """Raises InputError if the file is not what it was at launch.

    Files on the hub are addressed by their commit and cannot change.
    """
    if "://" in file.path:
        return
    size, identity = _local_state(file.path)
    if (size, identity) != (file.size, file.identity):
        raise InputError(
            f"{file.path} changed since the job was launched: it had {file.size} bytes and "
            f"{file.identity}, now {size} bytes and {identity}. Put the old file back, or start "
            "anew with --overwrite."
        )


def open_file(file: SourceFile) -> BinaryIO:
    """Opens the file's raw bytes for random access; raises InputError if that fails."""
    try:
        if "://" not in file.path:
            return open(file.path, "rb")
        return _open_on_hub(file)
    except OSError as error:
        raise InputError(f"{file.path} cannot be opened: {error}.") from error


def _open_on_hub(file: SourceFile) -> BinaryIO:
    """A file on the hub, read by range requests as far as it is asked for.

    pyarrow asks for whole column chunks of parquet, where reading ahead would fetch columns that
    nobody wants; JSON lines are read from front to back, a little at a time.
    """
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]

    # Otherwise a worker, which logs what is INFO, logs every range.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    cache = "none" if file.format == "parquet" else "readahead"
    try:
        opened: BinaryIO = fsspec.filesystem("hf").open(
            file.path, "rb", size=file.size, cache_type=cache, block_size=READ_AHEAD
        )
    except httpx.HTTPError as error:
        raise InputError(f"{file.path} cannot be opened: {error}.") from error
    return opened


def _local_state(path: str) -> tuple[int, str]:
    try:
        state = os.stat(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    return state.st_size, f"mtime:{state.st_mtime_ns}"
