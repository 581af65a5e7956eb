"""verify checks what publish has written beside a dataset."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.described import SAID, check_sums, described, problems

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import UsageError
from fineshards.publishing.sums import CARD_NAME, CROISSANT_NAME, SUMS_NAME
from fineshards.storage.checksums import crc32c


@pytest.mark.parametrize("name", [CROISSANT_NAME, SUMS_NAME])
def test_verify_finds_published_files_that_are_missing_or_changed(
    published: Path, name: str
) -> None:
    path = published / name
    content = path.read_bytes()
    other = content.replace(b"https://example", b"nowhere"), content.replace(b"a", b"b", 1)
    for changed in (content + b"\n", *other, b"", b"\xff[", b"[]"):
        path.write_bytes(changed)
        found = problems(published)
        assert (found != []) == (changed != content)
        assert all(CROISSANT_NAME in each or name in each for each in found)
    path.unlink()
    (problem,) = problems(published)
    assert problem.startswith(f"{name} is missing")
    fineshards.publish(published, **SAID)
    assert path.read_bytes() == content


def test_tools_files_are_accepted(published: Path) -> None:
    (published / ".gitattributes").write_text("*.npy filter=lfs\n")
    (published / ".cache/huggingface").mkdir(parents=True)
    assert problems(published) == []
    (published / "SHA256SUM").write_text("")
    (problem,) = problems(published)
    assert problem.startswith("SHA256SUM does not belong")


def forged(content: bytes, header: int, limit: int) -> bytes:
    """Other tokens with the same CRC-32C: flips the lowest bit of some, as linear algebra says."""
    tokens = np.frombuffer(content, "<u4", offset=header).copy()
    # An EOT must stay one, and no other token may become one.
    places = np.flatnonzero(tokens < limit)[:33]
    chosen: dict[int, tuple[int, int]] = {}
    plain = crc32c(content)
    for number, place in enumerate(places.tolist()):
        flipped = tokens.copy()
        flipped[place] ^= 1
        difference, used = crc32c(content[:header] + flipped.tobytes()) ^ plain, 1 << number
        while difference and difference.bit_length() in chosen:
            other, with_others = chosen[difference.bit_length()]
            difference, used = difference ^ other, used ^ with_others
        if not difference:
            tokens[[p for n, p in enumerate(places) if used >> n & 1]] ^= 1
            return content[:header] + tokens.tobytes()
        chosen[difference.bit_length()] = difference, used
    raise AssertionError("33 differences of 32 bits are dependent")


def test_sha256_finds_what_no_crc_can(published: Path) -> None:
    shard = published / "train/train_0000.npy"
    content = shard.read_bytes()
    shard.write_bytes(forged(content, 128, 100_000))
    assert shard.read_bytes() != content
    assert problems(published) == []
    (problem,) = problems(published, sha256=True)
    assert problem.startswith("train/train_0000.npy has SHA-256 ")
    assert check_sums(published) == 1


def test_sha256_needs_sums(unpublished: Path) -> None:
    with pytest.raises(UsageError, match="Write it with fineshards publish"):
        fineshards.verify(unpublished, sha256=True)
    with pytest.raises(UsageError, match="latest generation"):
        fineshards.verify(unpublished, sha256=True, generation=1)


@pytest.mark.growing
def test_a_dataset_that_has_changed_is_published_again(
    published: Path, tmp_path: Path, sample: Path
) -> None:
    more = tmp_path / "more.parquet"
    pq.write_table(pq.read_table(sample).slice(150, 30), more)
    versions, before = ["1.0.0"], described(published)
    fineshards.append(published, input=more)
    for change in (None, ["redact", str(published), "--documents", "3"]):
        if change is not None:
            assert main(change) == 0
        (problem,) = problems(published)
        assert problem.startswith(f"{SUMS_NAME} is of another state of the dataset")
        assert problem.endswith("Run fineshards publish again.")
        assert problems(published, generation=1) == []
        assert fineshards.publish(published).missing == []
        assert problems(published, sha256=True) == []
        assert check_sums(published) == 0
        content = json.loads((published / CROISSANT_NAME).read_text())
        assert content["name"] == SAID["name"]
        versions.append(content["version"])
    assert versions == ["1.0.0", "1.1.0", "2.0.0"]
    # As an interrupted call leaves them, which writes them in this order.
    now, order = described(published), (CARD_NAME, SUMS_NAME, CROISSANT_NAME)
    for done in range(len(order)):
        for name in order[done:]:
            (published / name).write_bytes(before[name])
        assert problems(published) != []
        fineshards.publish(published)
        assert described(published) == now
        for name in order[done:]:
            (published / name).unlink()
        assert problems(published) == [] if done == 0 else problems(published) != []
        fineshards.publish(published, **SAID)
        assert described(published) == now
    lost = published / "train/train_0001.npy"
    lost.unlink()
    assert main(["repair", str(published)]) == 0
    assert problems(published, sha256=True) == []
