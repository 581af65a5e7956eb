"""Every bit of what is published counts, and an owner's lines are never thrown away."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.described import described, problems

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.publishing.dataset_card import _MARKS as MARKS
from fineshards.publishing.sums import CARD_NAME, CROISSANT_NAME, SUMS_NAME
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage
from fineshards.verification.check_published import check_published


def damages(content: bytes, count: int) -> list[bytes]:
    """The content with one bit flipped, or cut: at random places, and at the first and last."""
    rng = random.Random(1)
    bits = [*range(64), *(rng.randrange(8 * len(content)) for _ in range(count))]
    ends = [0, 1, len(content) - 1, *(rng.randrange(len(content)) for _ in range(count // 2))]
    found = [content[:end] for end in ends]
    for bit in bits:
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        found.append(bytes(changed))
    return found


@pytest.mark.parametrize("name", [CROISSANT_NAME, SUMS_NAME, CARD_NAME])
def test_every_bit_counts(published: Path, name: str) -> None:
    content = (published / name).read_bytes()
    storage = open_storage(str(published))
    manifest = Manifest.load_finished(storage)
    # Between and around the generated parts of the card are its owner's lines.
    owned = set(range(3)) | {len(content) - 1} if name == CARD_NAME else set()
    if name == CARD_NAME:
        owned |= {*range(content.index(MARKS[1].encode()) + len(MARKS[1]), content.index(b"<!--"))}
    for changed in damages(content, 400):
        pairs = enumerate(zip(changed, content, strict=False))
        places = {place for place, (new, old) in pairs if new != old}
        (published / name).write_bytes(changed)
        if (places and places <= owned) or (content[:-1] == changed and name == CARD_NAME):
            assert list(check_published(storage, manifest, True)) != []
        else:
            assert list(check_published(storage, manifest, False)) != [], changed
    assert main(["verify", str(published)]) == 1


@pytest.mark.parametrize("lost", MARKS)
def test_a_card_without_one_of_its_marks_is_refused_and_left_as_it_is(
    published: Path, lost: str
) -> None:
    card, before = published / CARD_NAME, described(published)
    text = before[CARD_NAME].decode().replace(f"{lost}\n", "")
    card.write_text(text)
    sentence = "the generated part of README.md is not what was published."
    assert problems(published) == [f"{sentence} Run fineshards publish again."]
    with pytest.raises(OutputError, match="Put the line back, or delete the file"):
        fineshards.publish(published)
    assert card.read_text() == text
    card.unlink()
    fineshards.publish(published)
    assert described(published) == before
