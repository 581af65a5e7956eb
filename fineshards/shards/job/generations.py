"""Generations: what a dataset that grows was at each step, and the names of their files.

    metadata/job.json                          the job record of the first generation
    metadata/blocks.parquet                    its blocks (`tables/block_counts.py`)
    metadata/manifest.json                     the manifest of the latest
    metadata/generations/0001.json             the manifest of the first
    metadata/generations/0002.job.json         the job record of the second
    metadata/generations/0002.blocks.parquet   its blocks, if it added files
    metadata/generations/0002.json             its manifest, that of the latest while it is that

A generation is numbered from 1. Files of one are never changed by the next, but for the manifest;
a redaction overwrites documents in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from fineshards.shards.job.records import SourceFile
from fineshards.shards.record import Count, Record, Sha256, replace

GENERATIONS_FOLDER = "metadata/generations"


class Generation(Record, frozen=True):
    """What one generation did to a dataset.

    Args:
        files: Number of source files that it added, at the end of the list.
        redacted: Number of documents whose tokens it overwrote.
        redaction_sha256: SHA-256, as hex, of the list of those documents; None if there are none.
        root: Where the files are: what their paths begin with, before their names. A folder with
            its last slash; empty if they have none in common.
    """

    files: Count
    redacted: Count = 0
    redaction_sha256: Sha256 | None = None
    root: str = ""


def kept_name(generation: int) -> str:
    """The file that keeps the manifest of a generation when there is a later one."""
    return f"{GENERATIONS_FOLDER}/{generation:04d}.json"


def blocks_name(generation: int) -> str:
    """The file of the counts of the blocks that a generation read, if it added files."""
    name = "blocks.parquet"
    return (
        f"metadata/{name}" if generation == 1 else f"{GENERATIONS_FOLDER}/{generation:04d}.{name}"
    )


def block_tables(generations: Sequence[Generation]) -> dict[int, str]:
    """The files of the counts of blocks that a dataset has, by the numbers of generations."""
    return {number: blocks_name(number) for number, each in enumerate(generations, 1) if each.files}


def borders(generations: Sequence[Generation]) -> tuple[int, ...]:
    """How many source files each generation has, with those of the ones before."""
    return tuple(accumulate(generation.files for generation in generations))


def checked(generations: Sequence[Generation], files: Sequence[SourceFile]) -> None:
    """Raises ValueError unless generations add up to the files of a record, which are in order."""
    if not generations or borders(generations)[-1] != len(files):
        raise ValueError("its generations do not add up to its files")
    if any(file.index != position for position, file in enumerate(files)):
        raise ValueError("its files are not in their order")


def below_roots(
    generations: Sequence[Generation], files: Sequence[SourceFile]
) -> tuple[SourceFile, ...]:
    """The files of a record, each below the root of its generation."""
    roots = (each.root for each in generations for _ in range(each.files))
    return tuple(replace(file, root=root) for file, root in zip(files, roots, strict=True))
