"""Which file is the manifest of a generation, and what to say where it is missing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from fineshards.errors import OutputError
from fineshards.shards.job.generations import kept_name
from fineshards.storage.base import Storage

MANIFEST_NAME = "metadata/manifest.json"
# What the folder of a finished export has instead.
EXPORT_NAME = "export.json"


class _Numbered(Protocol):
    @property
    def generation(self) -> int: ...


_Parsed = TypeVar("_Parsed", bound=_Numbered)


def load_generation(
    storage: Storage, generation: int | None, parse: Callable[[bytes, str], _Parsed]
) -> _Parsed | None:
    """As `Manifest.load`. parse: reads a manifest from its content and its path."""
    stored = storage.read_if_there(MANIFEST_NAME)
    if stored is None:
        return None
    latest = parse(stored, storage.path(MANIFEST_NAME))
    name, kept = kept_name(latest.generation), None
    # A copy that is damaged is for verify to name, and one may not be allowed to look for it.
    with suppress(OutputError):
        if storage.size(name) not in (None, len(stored)):
            kept = parse(storage.read(name), storage.path(name))
    if kept is not None:
        _refuse_mixed_up(storage, name, kept, latest.generation)
    if generation is None or generation == latest.generation:
        return latest
    if not 1 <= generation <= latest.generation:
        raise OutputError(no_generation(storage, generation, latest.generation))
    name = kept_name(generation)
    found = parse(storage.read(name), storage.path(name))
    _refuse_mixed_up(storage, name, found, generation)
    return found


def no_generation(storage: Storage, generation: int, latest: int) -> str:
    """The message for a generation that the dataset, whose last is `latest`, does not have."""
    there = "one" if latest == 1 else f"1 to {latest}"
    return f"{storage.root} has no generation {generation}: it has {there}."


def _refuse_mixed_up(storage: Storage, name: str, found: _Numbered, generation: int) -> None:
    """Raises OutputError for a kept manifest of another generation than its name says."""
    if found.generation != generation:
        raise OutputError(
            f"{storage.path(name)} is the manifest of generation {found.generation}, expected that "
            f"of generation {generation}, so no one can tell which {MANIFEST_NAME} is. Copy the "
            "manifests of the dataset again."
        )


def unfinished(storage: Storage) -> str:
    """The message for an output folder without a manifest."""
    if storage.size(EXPORT_NAME) is not None:
        return (
            f"{storage.root} is an export, not a dataset: {EXPORT_NAME} says of what. Give the "
            "folder of the dataset that it was made of. fineshards verify checks an export."
        )
    return (
        f"{storage.root} holds no finished dataset: {MANIFEST_NAME} is missing. Check the path: a "
        "dataset's folder holds metadata/ and train/. If a build was interrupted, run it again to "
        "finish it; fineshards status shows its progress."
    )
