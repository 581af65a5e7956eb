"""Identity by content: datasets with equal shards are the same, wherever they were built."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.damage import edit_manifest
from support.growing import append, build, content_of, made_up_rows, write_parts, write_rows
from support.oracle import shards_in

import fineshards
from fineshards import BatchLoader, Mixture, Packing, TokenDataset
from fineshards.cli.cli import main
from fineshards.errors import UsageError
from fineshards.maintenance.redact import redact
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

ROWS = made_up_rows(8, 120)
FLAGS = ("--shard_tokens=700", "--test_fraction=0.4")
LENGTH = 32


def parts_in(folder: Path, seconds: int) -> list[Path]:
    """The same two files in any folder, as old as asked."""
    parts = write_parts(folder, ROWS, 60)
    for part in parts:
        os.utime(part, (seconds, seconds))
    return parts


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two generations. Read-only."""
    folder = tmp_path_factory.mktemp("ours")
    first, second = parts_in(folder / "input", 1_000_000_000)
    build(folder / "out", first, *FLAGS)
    append(folder / "out", second)
    return folder / "out"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, ours: Path) -> Path:
    """The same one from another folder, from younger files, in other blocks. Read-only."""
    folder = tmp_path_factory.mktemp("theirs")
    first, second = parts_in(folder / "elsewhere", 1_700_000_000)
    build(folder / "out", first, *FLAGS, "--block_bytes=1")
    append(folder / "out", second)
    assert shards_in(folder / "out") == shards_in(ours)
    return folder / "out"


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory, ours: Path) -> Path:
    """The same documents in one build, which cuts shards elsewhere. Read-only."""
    folder = tmp_path_factory.mktemp("at_once")
    build(folder / "out", *parts_in(folder / "input", 1_800_000_000), *FLAGS)
    assert content_of(folder / "out") == content_of(ours)
    return folder / "out"


def opened(folder: Path, split: str = "train", **more: Any) -> TokenDataset:
    return TokenDataset(folder, split, sequence_length=LENGTH, **more)


def mixed(folder: Path) -> Mixture:
    return Mixture({"": (opened(folder), 3), "test": (opened(folder, "test"), 1)}, seed=2)


LOADERS: dict[str, Callable[[Path], BatchLoader]] = {
    "shuffled": lambda folder: BatchLoader(opened(folder), 4, 7),
    "in order": lambda folder: BatchLoader(opened(folder), 4, shuffle=False),
    "by shards": lambda folder: BatchLoader(opened(folder), 4, 7, shuffle_shards=2),
    "epochs": lambda folder: BatchLoader(opened(folder), 4, 7, epochs=1),
    "test": lambda folder: BatchLoader(opened(folder, "test"), 4, 7),
    "packed": lambda folder: BatchLoader(opened(folder), 4, 7, packing=Packing(rows=8)),
    "mixture": lambda folder: BatchLoader(mixed(folder), 4, 7),
    "added": lambda folder: BatchLoader(opened(folder, after_generation=1), 4, 7),
    "first": lambda folder: BatchLoader(opened(folder, generation=1), 4, 7),
    "cached": lambda folder: BatchLoader(
        opened(folder, cache_folder=folder.parent.parent / "cache"), 4, 7
    ),
}


def saved_and_following(loader: BatchLoader) -> tuple[dict[str, Any], list[bytes]]:
    """A state, and the batches after it."""
    with loader:
        for _ in range(3):
            next(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        return state, following(loader)


def following(loader: BatchLoader) -> list[bytes]:
    batches = (next(loader) for _ in range(6))
    rows = (batch if isinstance(batch, np.ndarray) else batch["inputs"] for batch in batches)
    return [each.tobytes() for each in rows]


@pytest.mark.long
@pytest.mark.parametrize("kind", LOADERS)
def test_a_state_goes_on_where_the_same_shards_were_built_from_elsewhere(
    ours: Path, theirs: Path, tmp_path: Path, kind: str
) -> None:
    state, expected = saved_and_following(LOADERS[kind](ours))
    copy = shutil.copytree(ours, tmp_path / "copy")
    for path in copy.rglob("*"):
        os.utime(path)
    for other in (copy, theirs):
        with LOADERS[kind](other) as loader:
            loader.load_state_dict(state)
            assert following(loader) == expected


def test_the_content_is_equal_where_the_jobs_are_not(
    ours: Path, theirs: Path, at_once: Path
) -> None:
    manifests = [
        Manifest.load_finished(open_storage(str(each))) for each in (ours, theirs, at_once)
    ]
    assert len({manifest.fingerprint for manifest in manifests}) == 3
    contents = [manifest.content_fingerprint for manifest in manifests]
    assert contents[0] == contents[1] != contents[2]
    assert opened(ours).fingerprint == opened(theirs).fingerprint != opened(at_once).fingerprint
    assert opened(ours).fingerprint != opened(ours, "test").fingerprint
    assert opened(ours).fingerprint != opened(ours, generation=1).fingerprint
    assert opened(ours).generation_of(opened(theirs, generation=1).fingerprint) == 1


def test_the_content_fingerprint_is_computed_as_the_page_says(ours: Path) -> None:
    manifest = json.loads((ours / "metadata/manifest.json").read_text())
    lines = f"eot {manifest['settings']['tokenizer']['eot']}\n"
    for shard in manifest["shards"]:
        lines += f"{shard['name']} {(ours / shard['name']).stat().st_size} {shard['crc32c']}\n"
    assert manifest["content_fingerprint"] == hashlib.sha256(lines.encode()).hexdigest()


def test_a_state_of_other_shards_is_refused(ours: Path, tmp_path: Path) -> None:
    """They are equally many and equally long: the documents come in another order."""
    first = write_rows(tmp_path / "0.parquet", ROWS[59::-1])
    second = write_rows(tmp_path / "1.parquet", ROWS[60:])
    build(tmp_path / "out", first, second, *FLAGS)
    assert len(opened(tmp_path / "out")) == len(opened(ours))
    for kind in ("shuffled", "packed", "mixture"):
        state, _ = saved_and_following(LOADERS[kind](ours))
        with (
            LOADERS[kind](tmp_path / "out") as loader,
            pytest.raises(UsageError, match=r"another order of samples: fingerprint is .* here"),
        ):
            loader.load_state_dict(state)


def test_a_redaction_does_not_change_what_loaders_compare(ours: Path, tmp_path: Path) -> None:
    """Nor does it matter whether it came before or after an append, or more than once."""
    before = tmp_path / "before"
    source = tmp_path / "input"
    first, second = parts_in(source, 1_600_000_000)
    build(before, first, *FLAGS)
    # The last documents of both splits, after which the append begins new shards.
    count = Manifest.load_finished(open_storage(str(before))).splits
    last = (
        count["test"]["documents"] - 1,
        count["test"]["documents"] + count["train"]["documents"] - 1,
    )
    assert redact(str(before), documents=[last[0]]).documents == 1
    assert redact(str(before), documents=[last[1], 0]).documents == 2
    append(before, second)
    ids = [row["id"] for row in ROWS[60:] if row["id"] and row["text"]]
    assert redact(str(before), ids=ids[:1]).documents == 1
    assert fineshards.verify(before).problems == []
    found = Manifest.load_finished(open_storage(str(before)))
    assert (
        found.content_fingerprint
        != Manifest.load_finished(open_storage(str(ours))).content_fingerprint
    )
    for split in ("test", "train"):
        assert opened(before, split).fingerprint == opened(ours, split).fingerprint
        generations = [opened(before, split, generation=n).fingerprint for n in range(1, 6)]
        assert [len(set(generations[:3])), len(set(generations[3:])), len(set(generations))] == [
            *(1, 1, 2)
        ]
    for kind in LOADERS.keys() - {"added", "first", "packed"}:
        state, _ = saved_and_following(LOADERS[kind](ours))
        with LOADERS[kind](before) as loader:
            loader.load_state_dict(state)
            redacted_state = loader.state_dict()
            expected = following(loader)
        with LOADERS[kind](ours) as loader:
            loader.load_state_dict(redacted_state)
        with LOADERS[kind](before) as loader:
            loader.load_state_dict(redacted_state)
            assert following(loader) == expected


def test_everything_that_describes_a_dataset_names_its_content(
    ours: Path, theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = Manifest.load_finished(open_storage(str(ours))).content_fingerprint
    copy = shutil.copytree(theirs, tmp_path / "copy")
    capsys.readouterr()
    assert main(["inspect", str(copy)]) == 0
    assert f"  content    {content}\n" in capsys.readouterr().out
    assert main(["inspect", str(copy), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["content_fingerprint"] == content
    assert main(["report", str(copy), f"--output={tmp_path / 'report.html'}"]) == 0
    assert content in (tmp_path / "report.html").read_text()
    assert main(["publish", str(copy), "--license=CC0-1.0"]) == 0
    assert f"`{content}`" in (copy / "README.md").read_text()
    croissant = json.loads((copy / "metadata/croissant.json").read_text())
    assert croissant["identifier"] == f"urn:fineshards:content:{content}"
    assert fineshards.verify(copy).problems == []


def test_verify_finds_another_content_fingerprint(ours: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(ours, tmp_path / "copy")
    edit_manifest(copy, lambda content: content.update(content_fingerprint="0" * 64))
    with pytest.raises(fineshards.FineshardsError, match="content fingerprint is 0000"):
        opened(copy)
    assert any(
        "its content fingerprint is 0000" in each for each in fineshards.verify(copy).problems
    )


@pytest.mark.parametrize("value", [7, "no checksum", "AAAAAA=="])
def test_a_checksum_without_redactions_is_one(ours: Path, tmp_path: Path, value: object) -> None:
    copy = shutil.copytree(ours, tmp_path / "copy")
    edit_manifest(copy, lambda content: content["shards"][0].update(unredacted_crc32c=value))
    if value == "AAAAAA==":
        assert opened(copy, "test").fingerprint != opened(ours, "test").fingerprint
        return
    assert main(["inspect", str(copy)]) == 1
