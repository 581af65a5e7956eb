"""A file of checkpoints: what its name says, and its content if it is whole.

A record ends with a line feed and its CRC-32C in eight hexadecimal digits: its seal. A damaged one
is no record: it is named in the log, and its work is done again.
"""

from __future__ import annotations

import json
import logging
import re
from functools import cache
from typing import Any

from fineshards.errors import OutputError
from fineshards.storage.base import Storage

_log = logging.getLogger("fineshards")

# Source files, or shards, whose checkpoints are deleted together at the end of a large job.
NUMBERS_IN_A_PART = 100
_SEAL_BYTES = 9
_BLOCK_NAME = re.compile(r"(\d{5,})-(\d{5,})\..+", re.ASCII)


def write_record(
    storage: Storage, name: str, content: bytes, durable: bool = False, over: str | None = None
) -> None:
    """Writes a record. durable: whether a power cut must leave it. over: as in Storage.create."""
    sealed = content + _seal(content)
    try:
        storage.write(name, sealed, durable, over)
    except OutputError:
        # A store replaces nothing by itself: a damaged one in this version, read after it.
        damaged, stored = storage.version(name), storage.read_if_there(name)
        if over or stored is None or (_is_sealed(stored) and stored != sealed):
            raise
        storage.write(name, sealed, durable, damaged)


def read_record(storage: Storage, name: str) -> bytes | None:
    """The content of a record; None if it is missing or damaged."""
    stored = storage.read_if_there(name)
    if stored is None:
        return None
    return stored[:-_SEAL_BYTES] if _is_sealed(stored) else _damaged(storage.path(name))


def whole_record(storage: Storage, name: str) -> bytes:
    """As `read_record`; raises OutputError if it is missing or damaged."""
    content = read_record(storage, name)
    if content is None:
        raise OutputError(
            f"{storage.path(name)} is missing or damaged: someone changed the folder while the job "
            "ran. Run the same command again to resume."
        )
    return content


def write_json(
    storage: Storage, name: str, content: Any, durable: bool = False, over: str | None = None
) -> None:
    """Writes a record of plain values: see `write_record`."""
    write_record(storage, name, json.dumps(content).encode(), durable, over)


def read_json(storage: Storage, name: str) -> Any:
    """The content of such a record; None if it is missing or damaged."""
    content = read_record(storage, name)
    return None if content is None else json.loads(content)


def is_whole(storage: Storage, name: str, size: int, checksum: int) -> bool:
    """Whether a file has its size and, on a disk, its checksum."""
    from fineshards.storage.checksums import file_checksum

    stored = storage.size(name)
    if stored is None or (stored == size and storage.verifies_content):
        return stored is not None
    try:
        if stored == size:
            with storage.open(name) as file:
                if file_checksum(file) == checksum:
                    return True
    except OutputError:
        if storage.size(name) is None:
            return False  # another launch has deleted it meanwhile
        raise
    _damaged(storage.path(name))
    return False


def _is_sealed(stored: bytes) -> bool:
    return _seal(stored[:-_SEAL_BYTES]) == stored[-_SEAL_BYTES:]


def _seal(content: bytes) -> bytes:
    from fineshards.storage.checksums import crc32c  # programs that only load data lack it

    return b"\n%08x" % crc32c(content)


@cache
def _damaged(path: str) -> None:
    """Says once that a file is damaged."""
    _log.warning("%s is damaged; its work is done again", path)


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
