"""Every bit of what is published counts, and a card that was damaged or cut is restored."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.described import SAID, described, problems

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.publishing.card_parts import MARKS
from fineshards.publishing.file_names import CARD_NAME, CROISSANT_NAME, PROVENANCE_NAME, SUMS_NAME
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage
from fineshards.verification.check_published import check_published

LINES = [mark for marks in MARKS for mark in marks]


def found_in(folder: Path) -> list[str]:
    """What is said of the published files, as `verify` finds it."""
    storage = open_storage(str(folder))
    return list(check_published(storage, Manifest.load_finished(storage), False))


def damages(content: bytes, seed: int, count: int) -> list[bytes]:
    """The content with one bit flipped, or cut: at random places, and at the first and last."""
    rng = random.Random(seed)
    bits = [*range(64), *(rng.randrange(8 * len(content)) for _ in range(count))]
    ends = [0, 1, len(content) - 1, *(rng.randrange(len(content)) for _ in range(count // 2))]
    found = [content[:end] for end in ends]
    for bit in bits:
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        found.append(bytes(changed))
    return found


@pytest.mark.long
@pytest.mark.parametrize("own_card", [False, True], ids=["card", "own card"])
@pytest.mark.parametrize("name", [CROISSANT_NAME, PROVENANCE_NAME, SUMS_NAME])
def test_every_bit_of_the_other_files_counts(published: Path, name: str, own_card: bool) -> None:
    if own_card:
        (published / CARD_NAME).write_text("# Mine\n")
        fineshards.publish(published)
    assert found_in(published) == []
    content = (published / name).read_bytes()
    for number, changed in enumerate(damages(content, 1, 400)):
        (published / name).write_bytes(changed)
        found = found_in(published)
        assert found, (number, changed)
    assert main(["verify", str(published)]) == 1


@pytest.mark.long
def test_every_bit_of_the_generated_parts_counts_and_is_restored(published: Path) -> None:
    card, before = published / CARD_NAME, described(published)
    text = before[CARD_NAME].decode()
    between = text.split(LINES[1])[1].split(LINES[2])[0]
    owned = {*range(text.encode().index(LINES[0].encode()))}  # ---
    first = text.encode().index(LINES[1].encode()) + len(LINES[1])
    owned |= {*range(first, first + len(between))} | {len(before[CARD_NAME]) - 1}
    changes = damages(before[CARD_NAME], 2, 600)
    cuts = [before[CARD_NAME][:end] for end in range(0, len(before[CARD_NAME]) - 1, 37)]
    for number, changed in enumerate([*cuts, *changes]):
        card.write_bytes(changed)
        places = [
            n for n, (a, b) in enumerate(zip(changed, before[CARD_NAME], strict=False)) if a != b
        ]
        if len(changed) == len(before[CARD_NAME]) - 1 or (owned.issuperset(places) and places):
            assert problems(published, sha256=True) != []  # text of its owner
            continue
        (problem,) = found_in(published)
        assert problem.startswith((f"{CARD_NAME} is damaged", f"the generated part of {CARD_NAME}"))
        if number % 25 == 0:
            assert main(["verify", str(published)]) == 1
            fineshards.publish(published)
            assert described(published) == before


@pytest.mark.parametrize("lost", range(1, 15))
def test_lines_that_are_missing_are_put_back(published: Path, lost: int) -> None:
    """One mark of a pair, a whole pair, and all but one; the owner's lines stay."""
    card = published / CARD_NAME
    text = card.read_text()
    text = text.replace("---\n", "---\nmine: [a]\n", 1) + "\nMine, too: Ä.\n"
    card.write_text(text)
    fineshards.publish(published)
    before = described(published)
    for number, line in enumerate(LINES):
        if lost >> number & 1:
            text = text.replace(f"{line}\n", "", 1)
    card.write_text(text)
    (problem,) = problems(published)
    assert problem.startswith(f"{CARD_NAME} is damaged: it lacks the line '")
    fineshards.publish(published)
    now = card.read_text()
    assert problems(published, sha256=True) == []
    assert "mine: [a]\n" in now
    assert now.count("\nMine, too: Ä.\n") == 1
    if lost in (1, 2, 4, 8, 5, 6, 9, 10):  # one of a pair, or of each
        assert described(published) == before


def test_what_cannot_be_told_from_an_owners_lines_is_not_thrown_away(published: Path) -> None:
    card = published / CARD_NAME
    text = card.read_text().replace(f"{LINES[3]}\n", "").replace("| train |", "| mine |")
    card.write_text(text)
    with pytest.raises(OutputError, match=r"README\.md is damaged: it lacks the line '<!-- End"):
        fineshards.publish(published)
    assert card.read_text() == text
    card.unlink()
    fineshards.publish(published, **SAID)
    assert problems(published, sha256=True) == []


def test_a_card_of_an_earlier_publish_is_not_listed_and_still_right(published: Path) -> None:
    card, before = published / CARD_NAME, described(published)
    own = b"# Mine\n"
    card.write_bytes(own)
    assert "lacks the line" in problems(published)[0]  # it was generated
    assert fineshards.publish(published).own_card
    assert CARD_NAME not in (published / SUMS_NAME).read_text()
    assert problems(published, sha256=True) == []
    card.write_bytes(before[CARD_NAME])
    assert problems(published, sha256=True) == []
    fineshards.publish(published)
    assert described(published) == before
