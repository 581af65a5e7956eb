"""Input files: finding them, describing them, opening them, noticing that they changed."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import BinaryIO

import fsspec

from fineshards.errors import InputError, UsageError
from fineshards.shards.records import SourceFile
from fineshards.sources.gcs import check_generation, find_objects, open_object
from fineshards.storage.gcs_objects import SCHEME

# File name endings and what they say of the content. C4 and Dolma name JSON lines `.json.gz`.
FORMATS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
# Bytes per request when a file elsewhere is read from front to back: asking takes as long as
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


def find_files(patterns: Sequence[str]) -> list[SourceFile]:
    """The files that match, in the order of the patterns, each pattern's sorted; numbered.

    Raises UsageError for a pattern without a match, a file matched twice and a name that tells no
    format; InputError for what cannot be looked at.
    """
    seen: dict[str, str] = {}
    files: list[SourceFile] = []
    for pattern in patterns:
        matches = _find_stored(pattern) if pattern.startswith(SCHEME) else _find_local(pattern)
        if not matches:
            raise UsageError(
                f"--input {pattern}: no file matches. Check the path; "
                "quote the pattern so that the shell leaves it alone."
            )
        for match in matches:
            # Links are followed to tell files apart only: the name they lead to may have no ending.
            remote = match.path.startswith(SCHEME)
            target = match.path if remote else os.path.realpath(match.path)
            if target in seen:
                raise UsageError(
                    f"{match.path} is matched twice, by --input {seen[target]} and --input "
                    f"{pattern}; its documents would be in the dataset twice. Name it once."
                )
            seen[target] = pattern
            files.append(replace(match, index=len(files)))
    return files


def _find_local(pattern: str) -> list[SourceFile]:
    if "://" in pattern:
        raise UsageError(
            f"--input {pattern}: only local paths and gs:// can be read by pattern; "
            "for a dataset on the Hugging Face hub use --dataset."
        )
    # A name may hold brackets, which mean something else in a pattern. A pattern with ** more than
    # once finds some files more than once.
    named = set(glob.glob(pattern, recursive=True)) or {pattern}
    return describe_files(os.path.abspath(path) for path in sorted(named) if os.path.isfile(path))


def _find_stored(pattern: str) -> list[SourceFile]:
    files = []
    for found in find_objects(pattern):
        format_name, compression = format_of(found.path)
        if found.encoding not in ("", "identity"):
            # So does `gcloud storage cp --gzip-local`: the name tells what is inside, the encoding
            # how it is stored, which is how it is read.
            if (format_name, found.encoding) != ("jsonl", "gzip") or compression == "zstd":
                raise InputError(
                    f"{found.path} is stored with Content-Encoding {found.encoding}, which can be "
                    "read of JSON lines only, and only gzip. Upload it again without."
                )
            compression = "gzip"
        files.append(
            SourceFile(0, found.path, found.size, found.identity, format_name, compression)
        )
    return files


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
    if file.path.startswith(SCHEME):
        check_generation(file)
        return
    if "://" in file.path:
        return
    size, identity = _local_state(file.path)
    if (size, identity) != (file.size, file.identity):
        raise InputError(
            f"{file.path} changed since the job was launched: it had {file.size} bytes and "
            f"{file.identity}, now {size} bytes and {identity}. Put the old file back, or start "
            "anew with --overwrite."
        )


def open_file(file: SourceFile, read_ahead: int = READ_AHEAD) -> BinaryIO:
    """Opens the file's raw bytes for random access; raises InputError if that fails.

    read_ahead: bytes a request at least, where the file is elsewhere and read from front to back.
    That is JSON lines, a little at a time; of parquet pyarrow asks for as much as it wants of a
    column chunk, and reading ahead would fetch columns that nobody wants.
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
    """A file on the hub, read by range requests as far as it is asked for."""
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]

    # Otherwise a worker, which logs what is INFO, logs every range.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    cache = "readahead" if read_ahead else "none"
    try:
        opened: BinaryIO = fsspec.filesystem("hf").open(
            file.path, "rb", size=file.size, cache_type=cache, block_size=read_ahead or READ_AHEAD
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
