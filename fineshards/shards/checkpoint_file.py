"""A file of checkpoints: what its name says, and its content if it is whole."""

from __future__ import annotations

import json
import re
from typing import Any

from fineshards.storage.base import Storage
from fineshards.storage.checksums import file_checksum

# Source files, or shards, whose checkpoints are deleted together at the end of a large job.
NUMBERS_IN_A_PART = 100
_BLOCK_NAME = re.compile(r"(\d{5,})-(\d{5,})\..+", re.ASCII)


def read_json(storage: Storage, name: str) -> Any:
    """The content of a file; None if it is missing, or damaged by a power cut."""
    content = storage.read_if_there(name)
    try:
        return None if content is None else json.loads(content)
    except (RecursionError, ValueError):
        return None


def is_whole(storage: Storage, name: str, size: int, checksum: int) -> bool:
    """Whether a file has its size and, on a disk, its checksum."""
    if storage.size(name) != size:
        return False
    if storage.verifies_content:
        return True
    with storage.open(name) as file:
        return file_checksum(file) == checksum


def block_of(name: str) -> tuple[int, int] | None:
    """The (file, block) whose checkpoint has a name; None for a name that no block has."""
    found = _BLOCK_NAME.fullmatch(name.rpartition("/")[2])
    return found and (int(found[1]), int(found[2]))


def beginnings(files: int) -> list[str]:
    """How the names of checkpoints of many source files begin: with all but two digits."""
    if not NUMBERS_IN_A_PART < files <= 100_000:  # with more, 1000 begins 10000
        return [""]
    return leading_digits(files, 5)


def leading_digits(count: int, width: int) -> list[str]:
    """All but the last two digits of the numbers below `count`, each once."""
    numbers = range(0, count, NUMBERS_IN_A_PART)
    return list(dict.fromkeys(f"{number:0{width}d}"[:-2] for number in numbers))
