"""What workers are writing, by the files in an output folder that are not complete."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fineshards.commands.recent_rate import LONG_IDLE
from fineshards.shards.records import Block, SourceFile
from fineshards.storage.base import Entry

_BLOCK = re.compile(r"(\d+)-(\d+)")
_SHARD = re.compile(r"(test|train)_(\d+)")


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
    sorting: bool,
) -> tuple[Writing, ...]:
    """What is being written, in the order of its names.

    entries: the unfinished files, named after the file that they become, and a number. Those that a
    killed worker has left are out after a while. sorting: whether documents are being shuffled, so
    that these are no blocks of source files.
    """
    newest: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.modified):
        if now - entry.modified < LONG_IDLE:
            newest[entry.name.rpartition("/")[2].rpartition(".")[0]] = entry
    groups: dict[str, list[Entry]] = {}
    for file in sorted(newest):
        groups.setdefault(_name(file, blocks, files, sorting), []).append(newest[file])
    return tuple(
        Writing(
            name,
            sum(entry.size for entry in group),
            max(0.0, now - max(entry.modified for entry in group)),
        )
        for name, group in groups.items()
    )


def _name(
    file: str, blocks: Mapping[int, Sequence[Block]], files: Sequence[SourceFile], sorting: bool
) -> str:
    """What a person calls that to which a file belongs."""
    stem = file.partition(".")[0]
    if shard := _SHARD.fullmatch(stem):
        return f"shard {shard[1]}/{int(shard[2])}"
    found = _BLOCK.fullmatch(stem)
    if found is None:
        return file
    number, index = int(found[1]), int(found[2])
    if sorting:
        return f"bucket {number}"
    path = files[number].path.rpartition("/")[2]
    return f"{path}, block {index + 1} of {len(blocks.get(number, ()))}"
