"""Generations: what a dataset that grows was at each step, and the names of their files.

    metadata/job.json                     the job record of the first generation
    metadata/manifest.json                the manifest of the latest
    metadata/generations/0001.json        the manifest of the first, once there is a second
    metadata/generations/0002.job.json    the job record of the second
    metadata/generations/0002.json        its manifest, the same as manifest.json while it is latest

A generation is numbered from 1. Files of one are never changed by the next, but for the manifest;
a redaction overwrites documents in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from fineshards.shards.job.records import SourceFile, from_fields

GENERATIONS_FOLDER = "metadata/generations"


@dataclass(frozen=True, slots=True)
class Generation:
    """What one generation did to a dataset.

    Args:
        files: Number of source files that it added, at the end of the list.
        redacted: Number of documents whose tokens it overwrote.
        redaction_sha256: SHA-256, as hex, of the list of those documents; None if there are none.
        root: Where the files are: what their paths begin with, before their names. A folder with
            its last slash; empty if they have none in common.
    """

    files: int
    redacted: int = 0
    redaction_sha256: str | None = None
    root: str = ""


def kept_name(generation: int) -> str:
    """The file that keeps the manifest of a generation when there is a later one."""
    return f"{GENERATIONS_FOLDER}/{generation:04d}.json"


def borders(generations: Sequence[Generation]) -> tuple[int, ...]:
    """How many source files each generation has, with those of the ones before."""
    return tuple(accumulate(generation.files for generation in generations))


def generations_from_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """The generations and files of a record; raises one of JSON_ERRORS for other content."""
    found = tuple(from_fields(Generation, generation) for generation in content["generations"])
    files = content["files"]
    if not found or borders(found)[-1] != len(files):
        raise ValueError("its generations do not add up to its files")
    roots = (each.root for each in found for _ in range(each.files))
    return {
        "generations": found,
        "files": tuple(map(SourceFile.from_json, files, roots)),
    }
