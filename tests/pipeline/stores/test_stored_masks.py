"""Conversations on gs:// and s3://: the bytes of a local dataset, grown, redacted and killed."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.conversations import TEMPLATE, made_up, write
from support.faulty_proxy import Proxy
from support.growing import append, build
from support.killed_runs import run_until_done
from support.oracle import files_in

import fineshards
from fineshards import TokenDataset

pytestmark = pytest.mark.cloud


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Path, Path, list[str]]:
    """Two files, and flags."""
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    files = write(tmp_path / "a.parquet", made_up(9, 1)), write(tmp_path / "b.jsonl", made_up(9, 2))
    flags = [f"--chat_template={tmp_path}/chat.jinja", "--shard_tokens=901", "--block_bytes=3000"]
    return *files, [*flags, "--test_fraction=0.3"]


def files_on(store: Proxy) -> dict[str, bytes]:
    """All files of the dataset, by name."""
    names = [name for name in store.names("data") if not name.endswith("/")]
    return {name.removeprefix("out/"): store.content("data", name) for name in names}


def test_masks_on_stores_are_those_of_a_local_dataset(
    either: Proxy, inputs: tuple[Path, Path, list[str]], tmp_path: Path
) -> None:
    first, second, flags = inputs
    for output in (tmp_path / "out", f"{either.scheme}://data/out"):
        build(output, first, *flags)
        append(output, second)
        fineshards.redact(str(output), documents=[4, 12])
        assert fineshards.verify(output, sample="100%").problems == []
    expected = files_in(tmp_path / "out")
    assert any(name.startswith("metadata/masks/") for name in expected)
    assert files_on(either) == expected


def test_what_is_killed_repeatedly_finishes_its_masks(
    either: Proxy, inputs: tuple[Path, Path, list[str]], tmp_path: Path
) -> None:
    """Each run is killed at a later write than the one before; the store still carries it out."""
    first, second, flags = inputs
    output, grown, redacted = f"{either.scheme}://data/out", tmp_path / "grown", tmp_path / "out"
    build(grown, first, *flags)
    append(grown, second)
    shutil.copytree(grown, redacted)
    fineshards.redact(redacted, documents=[4, 12])

    def look() -> None:
        """Every token, and whether it is learned, is as before the redaction or as after it."""
        latest = TokenDataset(output, sequence_length=1).latest()
        for generation in range(1, min(latest, 2) + 1):
            for split in ("test", "train"):
                found, before, after = (
                    TokenDataset(folder, split, sequence_length=1, generation=generation)
                    for folder in (output, grown, redacted)
                )
                every = np.arange(len(before))
                assert len(found) == len(every)
                for read in ("gather", "loss_mask"):
                    tokens, old, new = (
                        getattr(each, read)(every) for each in (found, before, after)
                    )
                    assert np.all((tokens == old) | (tokens == new))

    build(output, first, *flags)
    writes = "^(POST|PUT|DELETE) (?!.*/unfinished/probe)"
    assert run_until_done(either, writes, 2, ["append", output, "--input", second], look, 5) > 3
    assert files_on(either) == files_in(grown)
    command = ["redact", output, "--documents", "4", "12"]
    assert run_until_done(either, writes, 1, command, look, 1) > 5
    assert files_on(either) == files_in(redacted)
    assert fineshards.verify(output, sample="100%").problems == []
