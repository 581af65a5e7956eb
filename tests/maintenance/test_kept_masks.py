"""Loss masks in datasets that grow, lose documents, and are damaged and repaired."""

import random
import shutil
from pathlib import Path

import pytest
from support.conversations import TEMPLATE, check, made_up, write
from support.damage import flip_bit
from support.growing import append, build, content_of, unfinished_append
from support.kills import check_appends, crashes_of
from support.oracle import files_in
from support.redacted import kill_redactions

import fineshards
from fineshards.inspection.inspect import show_document
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.growing
INPUTS = {"a.parquet": made_up(70, 1), "b.jsonl": made_up(50, 2)}
CONTENT = ("test", "train", "metadata/documents", "metadata/masks")


@pytest.fixture(scope="module", params=[[], ["--shuffle_seed=5"]], ids=["ordered", "shuffled"])
def grown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two generations in `out/`, and one of all files in `once/`."""
    folder = tmp_path_factory.mktemp("masks")
    (folder / "chat.jinja").write_text(TEMPLATE)
    first, second = (write(folder / name, each) for name, each in INPUTS.items())
    flags = [f"--chat_template={folder}/chat.jinja", "--shard_tokens=4001", "--block_bytes=3000"]
    flags += ["--test_fraction=0.2", *request.param]
    build(folder / "out", first, *flags)
    shutil.copytree(folder / "out", folder / "first")
    append(folder / "out", second)
    if not request.param:
        build(folder / "once", first, second, *flags)
    return folder


@pytest.fixture
def dataset(grown: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(grown / "out", tmp_path / "out"))


def sources(grown: Path) -> dict[str, list[list[dict[str, object]]]]:
    return {str(grown / name): each for name, each in INPUTS.items()}


def test_an_append_gives_the_masks_of_one_build(grown: Path) -> None:
    assert check(grown / "out", sources(grown)) == 120
    if (grown / "once").exists():
        assert content_of(grown / "out") == content_of(grown / "once")
    for generation in (1, 2):
        assert fineshards.verify(grown / "out", generation=generation).problems == []
    assert fineshards.verify(grown / "out", sample="100%").problems == []


def test_an_unfinished_append_is_taken_back_with_its_masks(grown: Path, tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(grown / "first", tmp_path / "out"))
    before = files_in(dataset, CONTENT)
    unfinished_append(dataset, grown / "b.jsonl")
    assert files_in(dataset, CONTENT) != before
    assert fineshards.verify(dataset).problems == []
    other = write(tmp_path / "other.jsonl", made_up(20, 9))
    append(dataset, other, "--overwrite")
    inputs = {str(grown / "a.parquet"): INPUTS["a.parquet"], str(other): made_up(20, 9)}
    assert check(dataset, inputs) == 90
    assert fineshards.verify(dataset).problems == []


def test_a_redacted_conversation_is_not_learned_any_more(grown: Path, dataset: Path) -> None:
    storage = open_storage(str(dataset))
    before = Manifest.load_finished(storage).learned
    done = fineshards.redact(dataset, documents=[3, 77])
    manifest = Manifest.load_finished(storage)
    assert (manifest.learned or 0) < (before or 0)
    assert manifest.totals["learned"] == before
    shown = [show_document(Dataset(storage, manifest), None, n, None) for n in (3, 77)]
    gone = {(each.file, each.row) for each in shown}
    assert len(gone) == done.documents == 2
    assert check(dataset, sources(grown), gone) == 120
    for generation in (1, 2, 3):
        assert fineshards.verify(dataset, generation=generation).problems == []
    whole = files_in(dataset, CONTENT)
    for shard in done.shards:
        name = Path(shard).stem
        for file in (shard, f"metadata/documents/{name}.parquet", f"metadata/masks/{name}.npy"):
            (dataset / file).unlink()
    assert fineshards.repair(dataset).left == []
    assert files_in(dataset, CONTENT) == whole


def test_a_redacted_dataset_that_was_appended_to_is_verified_and_repaired(
    grown: Path, tmp_path: Path
) -> None:
    dataset = Path(shutil.copytree(grown / "first", tmp_path / "out"))
    count = len(INPUTS["a.parquet"])
    fineshards.redact(dataset, documents=[0, count - 1])
    redacted = files_in(dataset, CONTENT)
    unfinished_append(dataset, grown / "b.jsonl")
    assert files_in(dataset, CONTENT) != redacted
    assert fineshards.verify(dataset).problems == []
    append(dataset, grown / "b.jsonl")
    for generation in (1, 2, 3):
        assert fineshards.verify(dataset, generation=generation).problems == []
    whole = files_in(dataset, CONTENT)
    tables = sorted((dataset / "metadata/documents").iterdir())
    for table in tables:
        table.unlink()
    assert fineshards.repair(dataset).left == []
    assert files_in(dataset, CONTENT) == whole


def test_every_damage_to_a_mask_is_found_and_repaired(dataset: Path) -> None:
    masks = sorted((dataset / "metadata/masks").iterdir())
    whole, chosen = files_in(dataset, CONTENT), random.Random(4)
    for mask in masks[:2]:
        for position in (20, 100, *chosen.choices(range(128, mask.stat().st_size), k=4)):
            flip_bit(mask, position)
            problems = fineshards.verify(dataset).problems
            assert problems
            assert all(f"masks/{mask.name}" in each for each in problems)
            flip_bit(mask, position)
    masks[0].unlink()
    flip_bit(masks[1], 130)
    done = fineshards.repair(dataset)
    assert (done.left, done.sources) == ([], [])
    assert done.repaired == [f"metadata/masks/{mask.name}" for mask in masks[:2]]
    assert files_in(dataset, CONTENT) == whole


@pytest.mark.kills
def test_an_append_killed_before_any_file_operation_finishes_its_masks(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    first, second = (write(tmp_path / name, each[:8]) for name, each in INPUTS.items())
    flags = [f"--chat_template={tmp_path}/chat.jinja", "--shard_tokens=900", "--block_bytes=1"]
    flags += ["--test_fraction=0.3"]
    build(tmp_path / "before", first, *flags)
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    append(tmp_path / "after", second)
    assert content_of(tmp_path / "after")["train learned"]
    crashes = crashes_of(tmp_path, ["append", "OUT", "--input", str(second)], 3, 12)
    assert len(crashes) > 3
    check_appends(tmp_path, crashes)


@pytest.mark.kills
def test_a_redaction_killed_before_any_file_operation_takes_its_masks_along(
    grown: Path, tmp_path: Path
) -> None:
    assert kill_redactions(grown / "out", tmp_path, 4) > 2
    assert fineshards.verify(tmp_path / "after", sample="100%").problems == []
