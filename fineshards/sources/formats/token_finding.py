"""Finds token files, and what they cannot be read without: `NAME.bin` with `NAME.idx`."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fineshards.errors import InputError, UsageError
from fineshards.shards.job.records import SourceFile
from fineshards.sources.finding import find_file, is_beside_data, walk
from fineshards.sources.places.schemes import is_url, place_of

# How names end, by layout: of the files that hold tokens, and of those that each goes with.
_ENDINGS = {
    "megatron": (".bin", ".idx"),
    "datatrove": (".ds", ".ds.index", ".ds.metadata"),
    "olmo": (".npy",),
    "raw": (".bin",),
    "llmc": (".bin",),
    "nanogpt": (".bin",),
    "parquet": (".parquet",),
    "hf-arrow": (".arrow",),
}


def find_token_files(kind: str, patterns: Sequence[str], flag: str = "--input") -> list[SourceFile]:
    """Returns the token files with their companions, in the order of the patterns and sorted by
    name within each.

    A pattern names files, folders, or the part of a name that its files share (`train` for
    `train.bin` and `train.idx`). flag: what gives the patterns. Raises UsageError for a pattern
    without a match or a file matched twice, and InputError for a file that lacks one it goes with.
    """
    endings = _ENDINGS[kind]
    files: list[SourceFile] = []
    seen: dict[str, str] = {}
    for pattern in patterns:
        find = _stored if is_url(pattern) else _local
        stems = {_stem(path, endings) for path in find(pattern, endings)}
        if not stems:
            raise UsageError(
                f"{flag} {pattern}: no file matches that ends with {endings[0]}, as those of "
                f"--from {kind} do. Check the path, and quote the pattern so that the shell does "
                "not expand it."
            )
        for stem in sorted(stems):
            file = _with_companions(kind, stem + endings[0])
            place = file.path if is_url(file.path) else os.path.realpath(file.path)
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
    ending, *others = _ENDINGS[kind]
    main = _described(path, kind)
    companions = (_described(path.removesuffix(ending) + other, kind, path) for other in others)
    return replace(main, companions=tuple(companions))


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


def _stem(path: str, endings: tuple[str, ...]) -> str:
    """A path without the ending of its layout, the longest that it has."""
    return path.removesuffix(max((each for each in endings if path.endswith(each)), key=len))
