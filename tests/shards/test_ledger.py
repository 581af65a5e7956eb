"""The ledger: work is finished if its entry, and all that it made, are there and undamaged."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fineshards.errors import OutputError
from fineshards.shards.ledger import Kind, Ledger, Range
from fineshards.storage.base import Storage
from fineshards.storage.checksums import crc32c
from fineshards.storage.open import open_storage


class Note(msgspec.Struct, frozen=True):
    """A record."""

    tokens: int
    table: bytes | None = None


NOTES = Kind("notes", Note)
NOTE = Note(7, b"\x00\xff")
CONTENT = bytes(range(100))


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(tmp_path)


@pytest.fixture
def ledger(storage: Storage) -> Ledger:
    """With one entry, of two parts of one file and all of another."""
    ledger = Ledger(storage, "checkpoints/f1")
    storage.write("parts", CONTENT)
    ranges = [Range("parts", a, b, crc32c(CONTENT[a:b])) for a, b in ((0, 30), (30, 30), (30, 100))]
    whole = Range("whole", 0, len(CONTENT), storage.write("whole", CONTENT))
    ledger.put(NOTES, "a", [*ranges, whole], NOTE)
    return ledger


def test_finished_work_is_found_listed_and_dropped(ledger: Ledger, storage: Storage) -> None:
    assert ledger.get(NOTES, "a") == NOTE
    assert ledger.get(NOTES, "b") is None
    assert list(ledger.list(NOTES)) == ["a"]
    ledger.drop(NOTES, "a")
    assert ledger.get(NOTES, "a") is None
    assert list(ledger.list(NOTES)) == []
    with pytest.raises(OutputError, match=r"notes/a\.json is missing or damaged.* Run the same"):
        ledger.finished(NOTES, "a")


@pytest.mark.parametrize("name", ["parts", "whole"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda content: b"",
        lambda content: b"\x01" + content[1:],
        lambda content: content[:-1] + b"\x00",
    ],
)
def test_work_with_a_damaged_range_is_not_finished(
    ledger: Ledger,
    storage: Storage,
    name: str,
    damage: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage.write(name, damage(CONTENT))
    assert ledger.get(NOTES, "a") is None
    assert caplog.messages == [f"{storage.path(name)} is damaged; its work is done again"]
    storage.delete(name)
    assert ledger.get(NOTES, "a") is None
    assert ledger.finished(NOTES, "a").record == NOTE
    storage.write(name, CONTENT)
    assert ledger.get(NOTES, "a") == NOTE


def test_a_damaged_entry_is_none_and_so_is_one_of_other_work(
    ledger: Ledger, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    name = ledger.name(NOTES, "a")
    content = storage.read(name)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        for wrong in (bytes(changed), content[:place]):
            storage.write(name, wrong)
            assert ledger.get(NOTES, "a") is None, wrong
    assert caplog.messages == [f"{storage.path(name)} is damaged; its work is done again"]
    for kind, key in ((NOTES, "b"), (Kind("others", Note), "a"), (Kind("notes", int), "b")):
        storage.write(ledger.name(kind, key), content)
        assert ledger.get(kind, key) is None
    ledger.put(NOTES, "a", (), NOTE)
    assert ledger.get(Kind("notes", int), "a") is None
    assert ledger.get(NOTES, "a") == NOTE
