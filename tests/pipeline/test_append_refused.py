"""Appends that cannot be: one sentence each, and the dataset stays as it was."""

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from support.damage import edit_manifest, sealed
from support.growing import (
    append,
    build,
    content_of,
    made_up_rows,
    published_files,
    unfinished_append,
    write_parts,
)
from support.oracle import files_in

import fineshards
from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.errors import InputError, OutputError, UsageError
from fineshards.pipeline.append import prepare_append, withdraw
from fineshards.pipeline.launch import Launch
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import Counts, FileReport, Sums
from fineshards.shards.job.job import Job
from fineshards.shards.layout import Layout
from fineshards.shards.piece_plan import EarlierGeneration, plan_stream
from fineshards.shards.split_rule import ByFraction, FirstShards, SplitRule
from fineshards.storage.local import LocalStorage
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.growing

ROWS = made_up_rows(2, 60)
FLAGS = ["--shard_tokens=400", "--test_fraction=0.3"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files `in/0.parquet` to `in/2.parquet`, and a dataset of the first."""
    folder = tmp_path_factory.mktemp("finished")
    write_parts(folder / "in", ROWS, 20)
    build(folder / "out", folder / "in/0.parquet", *FLAGS)
    return folder


@pytest.fixture
def dataset(finished: Path, tmp_path: Path) -> Path:
    """A copy of the dataset; the sources stay where they are."""
    shutil.copytree(finished / "out", tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def new(finished: Path) -> Path:
    """A file that is not in the dataset."""
    return finished / "in/1.parquet"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an append that is refused and changes nothing; returns the sentence."""

    def run(dataset: Path, *arguments: object) -> str:
        before = files_in(dataset)
        given = list(map(str, arguments))
        flags = [argument for argument in given if argument.startswith("--")]
        files = [argument for argument in given if not argument.startswith("--")]
        capsys.readouterr()
        assert main(["append", str(dataset), "--input", *files, *flags]) in (1, 2)
        assert files_in(dataset) == before
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith("fineshards: ")
        return said

    return run


def test_another_version_of_the_tokenizer(
    dataset: Path, refused: Callable[..., str], new: Path
) -> None:
    record = dataset / "metadata/job.json"
    manifest = json.loads((dataset / "metadata/manifest.json").read_text())
    golden = manifest["settings"]["tokenizer"]["golden_sha256"]
    fake = "0" * 64

    def change(content: dict[str, object]) -> None:
        content["settings"]["tokenizer"]["golden_sha256"] = fake  # type: ignore[index]

    def edit_record(old: str, new: str) -> None:
        content = json.loads(record.read_text().replace(old, new))
        record.write_bytes(sealed({key: content[key] for key in content if key != "crc32c"}))

    edit_record(golden, fake)
    job = Job.load(open_storage(str(dataset)))
    assert job is not None
    fingerprint = job.fingerprint()
    edit_record(manifest["fingerprint"], fingerprint)
    edit_manifest(dataset, change)
    edit_manifest(dataset, lambda content: content.update(fingerprint=fingerprint))
    assert "gives different tokens for the golden texts" in refused(dataset, new)


def test_a_file_that_is_in_the_dataset(
    dataset: Path,
    finished: Path,
    tmp_path: Path,
    refused: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new = finished / "in/0.parquet", finished / "in/1.parquet"
    there = f"{old} is in the dataset already"
    assert f"{there}, and {new} is not. Give the new files only." in refused(dataset, old, new)
    # All of them: there is nothing to do.
    before = files_in(dataset)
    append(dataset, old)
    assert "nothing new, nothing to do: 20 documents" in capsys.readouterr().out
    assert files_in(dataset) == before
    assert fineshards.append(dataset, input=old).generation == 1
    copied = tmp_path / "c.parquet"
    # The file in the dataset has changed.
    shutil.copy2(old, copied)
    old.write_bytes(old.read_bytes() + b"\n")
    try:
        assert f"{there}, and has changed since" in refused(dataset, old)
        assert f"{there}, and has changed since" in refused(dataset, new, old)
    finally:
        shutil.copy2(copied, old)


@pytest.mark.parametrize(
    ("option", "value"),
    [("shard_tokens", 100_000_000), ("shard_tokens", 400), ("statistics", False), ("dedup", None)],
)
def test_settings_that_are_given_with_the_value_of_the_default(
    dataset: Path, new: Path, option: str, value: object
) -> None:
    before = files_in(dataset)
    message = f"--{option} is the dataset's own, and an append takes it from there"
    with pytest.raises(UsageError, match=message):
        fineshards.append(dataset, input=new, **{option: value})
    with pytest.raises(UsageError, match=message):
        fineshards.build(output=dataset, input=new, append=True, **{option: value})
    assert files_in(dataset) == before
    if value == 100_000_000:
        command = ["build", "--append", f"--output={dataset}", f"--input={new}"]
        assert main([*command, f"--{option}={value}"]) == 2
        assert files_in(dataset) == before


@pytest.mark.parametrize("version", [3, 5, "4a"])
def test_a_dataset_of_another_version(
    dataset: Path, refused: Callable[..., str], new: Path, version: object
) -> None:
    edit_manifest(dataset, lambda content: content.update(format=f"fineshards manifest {version}"))
    assert "is not of the format 'fineshards manifest 4'" in refused(dataset, new)
    (dataset / "metadata/manifest.json").unlink()
    record = dataset / "metadata/job.json"
    content = json.loads(record.read_text()) | {"format": f"fineshards job {version}"}
    record.write_bytes(sealed({name: content[name] for name in content if name != "crc32c"}))
    with pytest.raises(OutputError, match="is not of the format 'fineshards job 4'"):
        fineshards.status(dataset)


def test_files_that_were_changed_after_a_kill_behind_the_manifest(
    dataset: Path, new: Path, refused: Callable[..., str]
) -> None:
    append(dataset, new, "--keep_checkpoints")  # as a kill just after the manifest leaves it
    first, second, *_ = sorted((dataset / "train").iterdir())
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])
    said = refused(dataset, new)
    assert f"{first} is not what the manifest says, so the dataset is not finished." in said
    assert said.endswith("and run fineshards repair.")
    assert main(["repair", str(dataset)]) == 0
    append(dataset, new)
    assert (first.read_bytes(), second.read_bytes()) == contents
    assert not (dataset / "checkpoints").exists()


def test_an_unfinished_append_of_other_files(
    dataset: Path, finished: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    before, first, second = (
        published_files(dataset),
        *(finished / f"in/{n}.parquet" for n in (1, 2)),
    )
    unfinished_append(dataset, first)
    assert fineshards.verify(dataset).problems == []
    assert published_files(dataset) != before
    said = refused(dataset, second)
    assert f"another append to {dataset} is not finished: input file 1: was 1.parquet" in said
    assert "Finish it with its own command, or discard what it has done with --overwrite." in said
    # What replaces it adds no shard.
    empty = finished / "in/empty.jsonl"
    empty.touch()
    append(dataset, empty, "--overwrite")
    assert published_files(dataset) == before
    for generation in (1, 2):
        assert fineshards.verify(dataset, generation=generation).problems == []
    append(dataset, second)
    build(tmp_path / "at-once", finished / "in/0.parquet", empty, second, *FLAGS)
    assert content_of(dataset) == content_of(tmp_path / "at-once")


def test_an_unfinished_append_whose_record_is_damaged(
    dataset: Path, finished: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = finished / "in/1.parquet", finished / "in/2.parquet"
    unfinished_append(dataset, first)
    record = dataset / "metadata/generations/0002.job.json"
    record.write_bytes(record.read_bytes()[:-30])
    assert f"{record} is damaged" in refused(dataset, second)
    for command in ("status", "inspect", "verify"):
        assert main([command, str(dataset)]) == 1
        assert "run that command again, or with --overwrite to discard" in capsys.readouterr().err
    # The same append writes it again; a copy, because the other one is to discard it.
    append(shutil.copytree(dataset, dataset.parent / "healed"), first)
    assert fineshards.verify(dataset.parent / "healed", sample=100).problems == []
    append(dataset, second, "--overwrite")
    for generation in (1, 2):
        assert fineshards.verify(dataset, generation=generation, sample=100).problems == []


def test_an_append_that_withdraws_late_leaves_the_next_one_alone(
    dataset: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one takes its place while it deletes its checkpoints."""
    first, second = (
        BuildConfig(
            output=dataset, input=finished / f"in/{n}.parquet", append=True, overwrite=n == 2
        )
        for n in (1, 2)
    )
    other, deleted = prepare_append(first), LocalStorage.delete_folder
    launches: list[Launch] = []

    def delete_late(storage: LocalStorage, name: str, check: Callable[[], object]) -> None:
        check()
        monkeypatch.undo()
        launches.append(prepare_append(second))
        launches[0].checkpoints.write_blocks(1, [])
        deleted(storage, name)

    monkeypatch.setattr(LocalStorage, "delete_folder", delete_late)
    with pytest.raises(UsageError, match="was launched at the same time, and was faster"):
        withdraw(other)
    assert launches[0].checkpoints.job() == launches[0].job
    assert launches[0].checkpoints.read_blocks(1) == []


def test_the_end_of_a_job_keeps_the_checkpoints_of_the_append_after_it(
    dataset: Path, finished: Path
) -> None:
    first = finished / "in/1.parquet"
    unfinished_append(dataset, first)
    storage = open_storage(str(dataset))
    job = Job.load(storage, 2)
    assert job is not None
    kept = Checkpoints.of(storage, job).blocks.finished_blocks()
    assert kept
    # The first command again: it is finished.
    build(dataset, finished / "in/0.parquet", *FLAGS)
    assert Checkpoints.of(storage, job).blocks.finished_blocks() == kept


def test_kept_checkpoints_of_every_generation_belong_to_the_dataset(
    finished: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    build(output, finished / "in/0.parquet", *FLAGS, "--keep_checkpoints")
    append(output, finished / "in/1.parquet", "--keep_checkpoints")
    assert len(list((output / "checkpoints").iterdir())) == 2
    assert fineshards.verify(output).problems == []


def test_the_record_of_an_append_can_be_read_as_other_files_can(dataset: Path, new: Path) -> None:
    append(dataset, new)
    modes = {
        stat.S_IMODE((dataset / f"metadata/{name}").stat().st_mode)
        for name in ("job.json", "manifest.json", "generations/0002.job.json")
    }
    assert len(modes) == 1


@pytest.mark.parametrize("rule", [ByFraction("1/2", "text", 1), FirstShards(3)])
def test_a_dataset_does_not_outgrow_the_digits_of_its_names(rule: SplitRule) -> None:
    streams = len(rule.streams)

    def plan(held: int, new: int) -> int:
        sums = Sums(1, new)
        test = sums if rule.by_document else None
        counts = Counts(rows=streams, documents=streams, tokens=new * streams)
        layout = Layout.plan((held,) * streams, 10, rule)
        before = EarlierGeneration(1, (Sums(1, held),) * streams, layout.added)
        return plan_stream([FileReport(1, 1, counts, test)], 10, rule, before).layout.windows

    most = 100_000 if rule.by_document else 100_030
    assert plan(90_000, most - 90_000) == most // 10 * streams
    with pytest.raises(InputError, match="and its names have 4 digits, so readers that sort them"):
        plan(90_000, most - 90_000 + 1)
    # With five digits from the beginning it may grow.
    assert plan(most + 1, 200_000) > 20_000
