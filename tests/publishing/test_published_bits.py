"""Every bit of what is published counts."""

import random
from pathlib import Path

import pytest

from fineshards.cli.cli import main
from fineshards.publishing.sums import CARD_NAME, CROISSANT_NAME, SUMS_NAME
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage
from fineshards.verification.check_files import check_published


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
    for changed in damages(content, 400):
        (published / name).write_bytes(changed)
        assert list(check_published(storage, manifest, False)) != [], changed
    assert main(["verify", str(published)]) == 1
