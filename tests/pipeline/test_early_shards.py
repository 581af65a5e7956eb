"""Shards written while blocks are tokenized: the same bytes, whatever happens meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.crash_driver import dropped, shorten_names
from support.damage import flip_bit
from support.fresh_interpreter import run_program
from support.growing import append, build, made_up_rows, published_files, write_rows
from support.kills import crashes_of, kill
from support.process_tree import wait_until
from support.watched_encoder import watched_encode

import fineshards as package
from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.encoders.checked_encoder import ExactEncoder
from fineshards.errors import OutputError
from fineshards.pipeline.launch import prepare as launch_of
from fineshards.shards import layout
from fineshards.storage.base import Storage
from fineshards.storage.local import LocalStorage
from fineshards.transforms import commit
from fineshards.worker.pool import Pool
from fineshards.worker.tasks import (
    Done,
    Task,
    discover_files,
    finish_block,
    write_shard,
)
from fineshards.worker.work import Work
from fineshards.worker.worker import Worker

Run = Callable[..., subprocess.CompletedProcess[str]]

FLAGS = ["--shard_tokens=400", "--block_bytes=1", "--workers=2"]
RECIPE = """
[[steps]]
use = "length"
min_chars = 2

[[steps]]
use = "exact"
"""


def prepare(folder: Path, kind: str) -> tuple[list[str], int]:
    """Makes `before` and `after` in a folder; the command between them, and its documents.

    `after` is made without worker processes, so that its shards are written last.
    """
    parts = made_up_rows(5, 22), made_up_rows(6, 22)
    ending = "jsonl" if kind == "jsonl" else "parquet"
    files = [write_rows(folder / f"in/{n}.{ending}", part) for n, part in enumerate(parts)]
    flags = [*FLAGS, "--test_shards=2" if kind == "test_shards" else "--test_fraction=0.3"]
    if kind == "recipe":
        (folder / "recipe.toml").write_text(RECIPE)
        flags += [f"--recipe={folder}/recipe.toml"]
    documents = sum(row["text"] is not None for part in parts for row in part)
    if kind != "append":
        build(folder / "after", *files, *flags)
        return ["build", "--input", *map(str, files), "--output=OUT", *flags], documents
    build(folder / "before", files[0], *flags)
    shutil.copytree(folder / "before", folder / "after")
    append(folder / "after", files[1])
    return ["append", "OUT", "--input", str(files[1]), "--workers=2"], 0


def shorten(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Gives shards five digits where a split has more than `most`, here and in `crash_driver`."""
    monkeypatch.setenv("SHORT_NAMES", str(most))
    monkeypatch.setattr(layout.Layout, "index_width", layout.Layout.index_width)
    shorten_names(most)


@pytest.mark.kills
@pytest.mark.parametrize(
    "kind", ["test_fraction", "test_shards", "append", "recipe", "more_shards_than_digits"]
)
@pytest.mark.parametrize("part", range(2))
def test_a_command_killed_with_its_workers_before_any_file_operation(
    tmp_path: Path, kind: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "more_shards_than_digits":
        shorten(monkeypatch, 4)
    command, documents = prepare(tmp_path, kind)
    crashes = crashes_of(tmp_path, command, part, 6, workers=True)
    assert any("/blocks/" in name for crash in crashes for name in crash["finished"])
    for crash in crashes:
        folder = Path(crash["folder"])
        assert crash["status"] == 0, crash
        assert published_files(folder) == published_files(tmp_path / "after"), crash
        assert crash["seen"]["problems"] == [], crash
        if kind == "more_shards_than_digits":
            assert all(len(path.stem) == len("test_00000") for path in folder.glob("test/*"))
        else:
            assert crash["rewritten"] == crash["changed"] == [], crash
        if kind not in ("append", "recipe"):
            finished = crash["documents_finished"]
            assert crash["documents_encoded"] == documents - finished, crash
        assert not (folder / "checkpoints").exists(), crash


def refuse(*_: object) -> None:
    raise OutputError("stopped")


def stop(folder: Path, kind: str) -> tuple[Path, list[str]]:
    """A build that has dropped token blocks, but has no manifest; and how to go on with it."""
    command, _ = prepare(folder, kind)
    output = folder / "stopped"
    command = [argument.replace("OUT", str(output)) for argument in command]
    # Of two workers the second may take the last task before the first has finished a shard.
    kill("replace:manifest.json", *command, "--workers=1", workers=True)
    return output, command


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[Path, list[str]]:
    """Three of its four blocks are dropped."""
    folder, command = stop(tmp_path, "test_fraction")
    assert len(dropped(folder)) == 3
    return folder, command


def encoded_by(command: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs a command; returns how many documents it encoded."""
    encoded: list[int] = []
    monkeypatch.setattr(ExactEncoder, "encode", watched_encode(encoded.append))
    assert main(command) == 0
    return sum(encoded)


def test_a_resumed_build_reads_nothing_again(
    stopped: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, command = stopped
    found = package.status(folder)
    assert (found.stage, found.of("tokenize").done) == ("writing", 4)
    assert encoded_by(command, monkeypatch) == 0
    assert published_files(folder) == published_files(folder.parent / "after")
    assert package.status(folder).tokens == found.tokens


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "table", "record"])
def test_a_shard_damaged_after_its_blocks_were_dropped_is_made_again(
    stopped: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    folder, command = stopped
    shard = folder / "train/train_0001.npy"
    (record,) = folder.glob("checkpoints/*/shards/train_0001.json")
    if damage == "cut":
        os.truncate(shard, 500)
    elif damage == "gone":
        shard.unlink()
    else:
        table = folder / "metadata/documents/train_0001.parquet"
        path = {"flipped": shard, "table": table, "record": record}[damage]
        path.write_bytes(b"") if damage == "record" else flip_bit(path, path.stat().st_size // 2)
    assert 0 < encoded_by(command, monkeypatch) < 40, "only its blocks"
    assert published_files(folder) == published_files(folder.parent / "after")
    assert package.verify(folder).ok


def test_shares_go_on_with_dropped_blocks(
    stopped: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, command = stopped
    (record,) = folder.glob("checkpoints/*/shards/train_0001.json")
    record.unlink()
    assert main([*command, "--share=1/1"]) == 1
    assert "Run the command without --share, which makes it again" in capsys.readouterr().err
    assert main(command) == 0
    assert published_files(folder) == published_files(folder.parent / "after")


@pytest.mark.parametrize("begun", [4, 5])
def test_shards_that_turn_out_to_be_too_many_for_their_names_are_renamed(
    stopped: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    """As if there were more than ten thousand by now, which no one could know."""
    folder, command = stopped
    shorten(monkeypatch, 0)
    (plan,) = folder.glob("checkpoints/*/plan.json")
    if begun == 4:  # killed before it was known
        plan.unlink()
    inodes = {path.stat().st_ino for path in folder.glob("t*/*.npy")}
    kill("replace:manifest.json", *command, workers=True)
    assert encoded_by(command, monkeypatch) == 0
    expected = published_files(folder.parent / "after")
    longer = {name.replace("_0", "_00"): content for name, content in expected.items()}
    assert published_files(folder) == longer
    assert {path.stat().st_ino for path in folder.glob("t*/*.npy")} == inodes


SLOW = """
import os, sys, time
from fineshards.cli.cli import main
from fineshards.worker import own_process

def slow(operation):
    def later(*arguments, **more):
        if "/blocks/" in str(arguments[-1]) and str(arguments[-1]).endswith(sys.argv[1]):
            time.sleep(0.3)
        return operation(*arguments, **more)
    return later

os.replace, os.unlink = slow(os.replace), slow(os.unlink)
own_process.claim()
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("slow", [".tokens", ".test.parquet", ".train.parquet"])
def test_neighbours_of_a_block_that_is_made_again_wait_for_all_of_it(
    stopped: tuple[Path, list[str]], slow: str
) -> None:
    """Whatever takes long: the renames that make it appear, or its deletion."""
    folder, command = stopped
    for number, shard in enumerate(folder.glob("t*/*.npy")):
        flip_bit(shard, 130) if number % 3 else shard.unlink()
    done = run_program(SLOW, slow, *command)
    assert done.returncode == 0, done.stderr
    assert published_files(folder) == published_files(folder.parent / "after")


def test_a_shard_reads_as_much_as_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of its block are finished."""
    rows = [{"text": "alpha beta", "id": str(n), "url": None, "group": 1} for n in range(200)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    config = BuildConfig(input=source, output=tmp_path / "out", shard_tokens=10, test_shards=0)
    launch = launch_of(config)
    worker = Worker(Work.of(launch.checkpoints, launch.job, config))
    ((file, (block,)),) = discover_files(*launch.job.files).run(worker)
    prefix = worker.work.shard_prefix([block])
    assert prefix is not None
    opened: list[str] = []
    read = LocalStorage.open
    monkeypatch.setattr(
        LocalStorage, "open", lambda *given: opened.append(given[1]) or read(*given)
    )
    counts = []
    for shard in prefix.add(finish_block(file, block).run(worker)[0]):
        opened.clear()
        write_shard(*shard).run(worker)
        counts.append(len(opened))
    assert len(counts) > 30
    assert {*counts[1:]} == {counts[1]}, "the first one reads the job, too"


def test_a_dropped_block_whose_record_is_damaged_is_made_again(
    stopped: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, command = stopped
    dropped(folder)[0].write_bytes(b"\0" * 100)
    assert 0 < encoded_by(command, monkeypatch) < 40
    assert published_files(folder) == published_files(folder.parent / "after")


def test_a_dropped_block_of_a_touched_input_needs_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, command = stop(tmp_path, "jsonl")
    assert len(dropped(folder)) == 1
    source = tmp_path / "in/0.jsonl"
    content = source.read_bytes()
    source.write_bytes(content)
    os.utime(source, (1, 1))
    assert main(command) == 2
    assert "Give --trust_input if the content is the same" in capsys.readouterr().err
    assert encoded_by([*command, "--trust_input"], monkeypatch) == 0
    assert published_files(folder) == published_files(tmp_path / "after")


def test_a_changed_source_is_noticed_when_a_dropped_block_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even if it has the time that it had."""
    folder, command = stop(tmp_path, "jsonl")
    source = tmp_path / "in/0.jsonl"
    content, state = source.read_bytes(), source.stat()
    source.write_bytes(content.replace(b"beta", b"gamm", 1))
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    (folder / "train/train_0000.npy").unlink()
    for _ in range(2):  # the second run must not take what the first one refused
        assert main(command) == 1
        assert "its tokens, or a shard made of them, are lost or damaged" in capsys.readouterr().err
    source.write_bytes(content)
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert main(command) == 0
    assert published_files(folder) == published_files(tmp_path / "after")


@pytest.mark.parametrize("folder_of_checkpoints", ["checkpoints", "checkpoints/*/[bf]*"])
def test_a_replaced_job_writes_no_shard(tmp_path: Path, folder_of_checkpoints: str) -> None:
    """Another launch deletes the checkpoints first, and the job's record last."""
    rows = [row for row in made_up_rows(5, 100) if row["text"]]
    output, source = tmp_path / "out", write_rows(tmp_path / "in.parquet", rows)
    config = BuildConfig(
        input=source, output=output, shard_tokens=400, test_shards=0, block_bytes=1
    )
    launch = launch_of(config)
    worker = Worker(Work.of(launch.checkpoints, launch.job, config))
    (file,) = launch.job.files
    found = discover_files(file).run(worker)[0][1]
    prefix = worker.work.shard_prefix(found)
    assert prefix is not None
    done = [finish_block(file, block).run(worker)[0] for block in found]
    first, second, *_ = [shard for summary in done for shard in prefix.add(summary)]
    write_shard(*first).run(worker)
    for path in output.glob(folder_of_checkpoints):
        shutil.rmtree(path)
    for shard in (first, second):
        (output / "train/train_0000.npy").unlink(missing_ok=True)
        with pytest.raises(OutputError, match="is being deleted by another launch"):
            write_shard(*shard).run(worker)
    with pytest.raises(OutputError, match="is being deleted by another launch"):
        finish_block(file, found[-1]).run(worker)
    assert not list(output.glob("train/*.npy"))
    assert not list(output.glob("checkpoints/*/files/*"))


def test_a_second_launch_of_the_job_may_drop_the_blocks_of_a_shard_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, _ = prepare(tmp_path, "test_fraction")
    folder = tmp_path / "twice"
    command = [argument.replace("OUT", str(folder)) for argument in command]
    monkeypatch.setattr(Storage, "assemble", after_another(Storage.assemble, command, monkeypatch))
    assert main(command) == 0
    assert published_files(folder) == published_files(tmp_path / "after")


def after_another(
    assemble: Callable[..., int], command: list[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    """Before the first shard is written, another launch does all but the manifest."""

    def first(storage: Storage, *arguments: object) -> int:
        with pytest.MonkeyPatch.context() as changed:
            changed.setattr(Storage, "assemble", assemble)
            changed.setattr(commit, "_refuse_late_shards", refuse)
            assert main(command) == 1
        monkeypatch.undo()
        return assemble(storage, *arguments)

    return first


def test_checkpoints_that_are_kept_are_not_dropped(fineshards: Run, tmp_path: Path) -> None:
    command, _ = prepare(tmp_path, "test_fraction")
    folder = tmp_path / "kept"
    command = [argument.replace("OUT", str(folder)) for argument in command]
    done = fineshards(*command, "--keep_checkpoints")
    assert done.returncode == 0, done.stderr
    assert dropped(folder) == []
    assert len([*folder.glob("checkpoints/*/blocks/*.train.parquet")]) == 4
    assert published_files(folder) == published_files(tmp_path / "after")


class Watched(Pool):
    """A pool of one worker that notes what is on the disk whenever it takes a result."""

    def watch(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[tuple[str, int, int]] = []

    def _take(self, task: Task, result: Done) -> None:
        blocks = self.folder.glob("checkpoints/*/blocks/*.tokens")
        shards = package.status(self.folder).of("write").done
        self.seen.append((task.name, sum(path.stat().st_size for path in blocks), shards))
        super()._take(task, result)


def test_token_blocks_take_the_room_of_a_few_shards(sample: Path, tmp_path: Path) -> None:
    """And shards appear while blocks are tokenized."""
    source, folder, size = tmp_path / "in.parquet", tmp_path / "out", 60_000
    pq.write_table(pq.read_table(sample), source, row_group_size=40)
    config = BuildConfig(
        input=source, output=folder, shard_tokens=size, test_fraction="0.01", block_bytes=1
    )
    launch = launch_of(config)
    pool = Watched(Work.of(launch.checkpoints, launch.job, config), 1, launch.job.files)
    pool.watch(folder)
    with pool:
        wait_until(lambda: [name for name, *_ in pool.seen].count("write_shard") == 11)
    blocks = [seen for seen in pool.seen if seen[0] == "finish_block"]
    assert len(blocks) == 27
    assert [shards for *_, shards in blocks][9:27:8] == [3, 6, 10]
    largest = max(room for _, room, _ in pool.seen)
    # A window that is not complete, one that is being written, a block, and all of the other split.
    assert size * 4 < largest < (2.5 * size + 10_000) * 4
    assert largest < 0.3 * 665_971 * 4
