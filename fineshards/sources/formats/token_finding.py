"""Finds token files, and what they cannot be read without: `NAME.bin` with `NAME.idx`."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fineshards.errors import InputError, UsageError
from fineshards.shards.job.records import SourceFile
from fineshards.sources.finding import find_file, is_beside_data, walk
from fineshards.sources.places.schemes import is_url, place_of

# How names end, by layout, of the files that hold tokens, and of those that each goes with.
_ENDINGS = {
    "megatron": (".bin",),
    "datatrove": (".ds",),
    "olmo": (".npy",),
    "raw": (".bin",),
    "llmc": (".bin",),
    "nanogpt": (".bin",),
    "parquet": (".parquet",),
    "hf-arrow": (".arrow",),
    "mds": (".mds", ".mds.zstd"),
    "litdata": (".bin",),
}
_BESIDE = {"megatron": (".idx",), "datatrove": (".ds.index", ".ds.metadata")}


def find_token_files(kind: str, patterns: Sequence[str], flag: str = "--input") -> list[SourceFile]:
    """Returns the token files with their companions, in the order of the patterns and sorted by
    name within each; those of litdata by the numbers in their names.

    A pattern names files, folders, or the part of a name that its files share (`train` for
    `train.bin` and `train.idx`). flag: what gives the patterns. Raises UsageError for a pattern
    without a match or a file matched twice, and InputError for a file that lacks one it goes with.
    """
    endings = (*_ENDINGS[kind], *_BESIDE.get(kind, ()))
    files: list[SourceFile] = []
    seen: dict[str, str] = {}
    for pattern in patterns:
        find = _stored if is_url(pattern) else _local
        paths = {_main(kind, path) for path in find(pattern, endings)}
        if not paths:
            raise UsageError(
                f"{flag} {pattern}: no file matches that ends with {endings[0]}, as those of "
                f"--from {kind} do. Check the path, and quote the pattern so that the shell does "
                "not expand it."
            )
        for path in sorted(paths, key=_number if kind == "litdata" else None):
            file = _with_companions(kind, path)
            place = file.path if is_url(file.path) else os.path.realpath(file.path)
            place = place.removesuffix(".zstd")  # MDS keeps both
            if place in seen:
                raise UsageError(
                    f"{file.path} is matched twice, by {flag} {seen[place]} and {flag} {pattern}; "
                    "its documents would be in the dataset twice. Match it only once."
                )
            seen[place] = pattern
            files.append(replace(file, index=len(files)))
    return files


def _with_companions(kind: str, path: str) -> SourceFile:
    """A token file with those that it goes with; raises InputError if one of them is missing."""
    main, stem = _described(path, kind), path.removesuffix(_ENDINGS[kind][0])
    companions = (_described(stem + other, kind, path) for other in _BESIDE.get(kind, ()))
    compression = "zstd" if path.endswith(".mds.zstd") else "none"
    return replace(main, companions=tuple(companions), compression=compression)


def _described(path: str, kind: str, needed_by: str = "") -> SourceFile:
    """A file with its size and identity."""
    found = find_file(path, "arrow" if kind == "hf-arrow" else kind)
    if found is None:
        reason = f", without which {needed_by} cannot be read" if needed_by else ""
        raise InputError(f"{path} is not there{reason}. Put it back, or leave its dataset out.")
    return found


def _local(pattern: str, endings: tuple[str, ...]) -> Iterator[str]:
    """The absolute paths of local files of a layout that a pattern, folder or prefix names."""
    found = glob.glob(pattern, recursive=True) or [pattern]
    for path in found:
        if os.path.isdir(path):
            yield from (os.path.abspath(each) for each in walk(path) if each.endswith(endings))
        elif os.path.lexists(path) and path.endswith(endings):
            yield os.path.abspath(path)
    if not any(os.path.lexists(path) for path in found):
        yield from (os.path.abspath(path) for path in glob.glob(pattern + endings[0]))


def _stored(pattern: str, endings: tuple[str, ...]) -> Iterator[str]:
    """The URLs of files of a layout that a pattern, folder or prefix names."""
    place = place_of(pattern)
    for each in place.find(pattern).files or place.find(pattern + endings[0]).files:
        if each.path.endswith(endings) and not is_beside_data(each.name):
            yield each.path


def _main(kind: str, path: str) -> str:
    """The file with tokens, of it or of one that it goes with."""
    for ending in _BESIDE.get(kind, ()):
        if path.endswith(ending):
            return path.removesuffix(ending) + _ENDINGS[kind][0]
    return path


def _number(path: str) -> list[str | int]:
    """Sorts chunk-0-10 after chunk-0-9, as the documents in them go on."""
    parts: list[str | int] = [*re.split(r"(\d+)", path)]
    return [int(part) if at % 2 else part for at, part in enumerate(parts)]
