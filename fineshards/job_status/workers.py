"""What workers are writing, by the files in an output folder that are not complete."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fineshards.job_status.recent_rate import LONG_IDLE
from fineshards.shards.checkpoint_file import block_of
from fineshards.shards.job.records import Block, SourceFile
from fineshards.storage.base import Entry

_SHARD = re.compile(r"(test|train)_(\d+)\..+")


@dataclass(frozen=True, slots=True)
class Writing:
    """What a worker is writing. A worker writes one block or one shard at a time.

    Args:
        name: Which block of which source file, or which shard.
        bytes: What is written so far.
        seconds: Time since the last byte was written, or since it was begun.

    Example:
        >>> import fineshards
        >>> status = fineshards.status(dataset_folder)
        >>> [writing.name for writing in status.writing]
        []
    """

    name: str
    bytes: int
    seconds: float


def being_written(
    entries: Iterable[Entry],
    blocks: Mapping[int, Sequence[Block]],
    files: Sequence[SourceFile],
    now: float,
    stage: str,
    began: float | None,
) -> tuple[Writing, ...]:
    """What is being written in a stage of a job, in the order of its names.

    entries: the unfinished files, named after the file that they become, and a number. Those that a
    killed worker has left are out after a while, and those of other stages at once: files that are
    older than the stage, and names that it does not write. blocks: of the source files that are
    known. began: when the stage began, if that is known.
    """
    newest: dict[str, tuple[str, Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.modified):
        if now - entry.modified >= LONG_IDLE or entry.modified < (began or 0.0):
            continue
        file = entry.name.rpartition("/")[2]
        if name := _name(file, blocks, files, stage):
            newest[file.rpartition(".")[0]] = name, entry
    groups: dict[str, list[Entry]] = {}
    for file in sorted(newest):
        name, entry = newest[file]
        groups.setdefault(name, []).append(entry)
    return tuple(
        Writing(
            name,
            sum(entry.size for entry in group),
            max(0.0, now - max(entry.modified for entry in group)),
        )
        for name, group in groups.items()
    )


def _name(
    file: str, blocks: Mapping[int, Sequence[Block]], files: Sequence[SourceFile], stage: str
) -> str | None:
    """What a person calls that to which a file belongs; None if the stage writes no such thing."""
    if stage == "writing":
        shard = _SHARD.fullmatch(file)
        return shard and f"shard {shard[1]}/{int(shard[2])}"
    found = block_of(file)
    if found is None:
        return None
    number, index = found
    if stage == "shuffling":
        # A bucket's file is its only one; that of merged runs has size and range in its name.
        return f"merged runs {number}" if index else f"bucket {number}"
    of_file = blocks.get(number, ())
    if index >= len(of_file):
        return None
    path = files[number].path.rpartition("/")[2]
    return f"{path}, block {index + 1} of {len(of_file)}"
