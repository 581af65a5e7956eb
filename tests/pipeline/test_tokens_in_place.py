"""Tokens go to their places in shards while blocks are tokenized: whatever happens, same bytes."""

import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.damage import flip_bit
from support.fresh_interpreter import run_program
from support.growing import append, build, made_up_rows, published_files, shards_of, write_rows
from support.kills import crashes_of, kill
from support.process_tree import wait_until
from support.watched_encoder import watched_encode

import fineshards as package
from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.encoders.gigatoken.exact_encoder import ExactEncoder
from fineshards.errors import OutputError
from fineshards.pipeline.launch import prepare as launch_of
from fineshards.shards.layout import Layout
from fineshards.storage.base import Storage
from fineshards.storage.local import LocalStorage
from fineshards.transforms import commit
from fineshards.worker.pool import Pool
from fineshards.worker.tasks import Worker, discover_files, finish_block, write_shard
from fineshards.worker.work import Work

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


@pytest.mark.kills
@pytest.mark.parametrize("kind", ["test_fraction", "test_shards", "append", "recipe"])
@pytest.mark.parametrize("part", range(2))
def test_a_command_killed_with_its_workers_before_any_file_operation(
    tmp_path: Path, kind: str, part: int
) -> None:
    command, documents = prepare(tmp_path, kind)
    crashes = crashes_of(tmp_path, command, part, 6, workers=True)
    assert any(0 < crash["documents_finished"] < documents for crash in crashes) or not documents
    for crash in crashes:
        folder = Path(crash["folder"])
        assert crash["status"] == 0, crash
        assert published_files(folder) == published_files(tmp_path / "after"), crash
        assert crash["seen"]["problems"] == [], crash
        assert crash["rewritten"] == crash["changed"] == [], crash
        if kind not in ("append", "recipe"):
            finished = crash["documents_finished"]
            assert crash["documents_encoded"] == documents - finished, crash
        assert not (folder / "checkpoints").exists(), crash


def refuse(*_: object) -> None:
    raise OutputError("stopped")


def stop(folder: Path, kind: str, before: str = "manifest.json") -> tuple[Path, list[str]]:
    """A build that was killed before it wrote a file; and how to go on with it."""
    command, _ = prepare(folder, kind)
    output = folder / "stopped"
    command = [argument.replace("OUT", str(output)) for argument in command]
    kill(f"replace:{before}", *command, workers=True)
    return output, command


def unfinished(folder: Path) -> list[Path]:
    """The shards that have no name yet, in which tokens are."""
    return sorted(folder.glob("checkpoints/*/shards/*.npy"))


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[Path, list[str]]:
    """All shards have their names, and nothing else is missing."""
    return stop(tmp_path, "test_fraction")


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
def test_a_finished_shard_that_is_damaged_is_made_again(
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
    encoded = encoded_by(command, monkeypatch)
    if damage in ("table", "record"):
        assert encoded == 0, "its tokens are there"
    else:
        assert 0 < encoded < 40, "only its blocks"
    assert published_files(folder) == published_files(folder.parent / "after")
    assert package.verify(folder).ok


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "gone", "plan"])
def test_an_unfinished_shard_that_is_damaged_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    before = "train_0000.npy" if damage == "plan" else "plan.json"
    folder, command = stop(tmp_path, "test_fraction", before)
    shard = unfinished(folder)[-1]
    if damage == "plan":  # a shard has its name, and nothing says how many digits that has
        (plan,) = folder.glob("checkpoints/*/plan.json")
        flip_bit(plan, 5)
    elif damage == "cut":
        os.truncate(shard, 500)
    elif damage == "longer":
        with shard.open("ab") as file:
            file.write(b"more")
    elif damage == "gone":
        shard.unlink()
    else:
        flip_bit(shard, shard.stat().st_size // 2)
    assert encoded_by(command, monkeypatch) < 44
    assert published_files(folder) == published_files(folder.parent / "after")
    assert package.verify(folder).ok


def test_shares_go_on_with_tokens_in_shards(
    stopped: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, command = stopped
    (record,) = folder.glob("checkpoints/*/shards/train_0001.json")
    record.unlink()
    assert main([*command, "--share=1/1"]) == 0, capsys.readouterr().err
    assert main(command) == 0
    assert published_files(folder) == published_files(folder.parent / "after")


def test_a_share_copies_no_damaged_tokens_from_a_shard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a power cut leaves them after the last block is made."""
    folder, command = stop(tmp_path, "test_fraction", "train_0000.npy")
    shard = unfinished(folder)[-1]
    flip_bit(shard, shard.stat().st_size // 2)
    assert main([*command, "--share=1/1"]) == 1
    assert "Run the command without --share, which makes it again" in capsys.readouterr().err
    assert main(command) == 0
    assert published_files(folder) == published_files(tmp_path / "after")


def test_a_block_that_has_another_number_of_tokens_by_now_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its source was changed, although it has the size and the time that it had."""
    folder, command = stop(tmp_path, "jsonl", "plan.json")
    source = tmp_path / "in/0.jsonl"
    content, state = source.read_bytes(), source.stat()
    source.write_bytes(content.replace(b"beta", b"qzxj", 1))
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    first = next(path for path in unfinished(folder) if path.name == "train-0.npy")
    flip_bit(first, 200)
    for _ in range(2):  # the second run must not take what the first one refused
        assert main(command) == 1
        assert "gives other tokens than when tokens of blocks after it" in capsys.readouterr().err
    assert not [*folder.glob("metadata/manifest.json")]


LATE = """
import sys, time
from fineshards.cli.cli import main
from fineshards.worker import own_process, pool, tasks

make, doing = tasks.TASKS["finish_block"]

def late(worker, file, block):
    checkpoints = worker.work.checkpoints
    others = f"{checkpoints.folder}/blocks/"
    while (file.index, block.index) == (0, 0):
        if len([*checkpoints.storage.names(others)]) >= int(sys.argv[2]):
            break
        time.sleep(0.01)
    return make(worker, file, block)

tasks.TASKS["finish_block"], pool.HELD_BYTES = (late, doing), int(sys.argv[1])
own_process.alone = True
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize("held", [1, 300, 1 << 20])
def test_blocks_that_wait_too_long_for_their_place_get_files(tmp_path: Path, held: int) -> None:
    """All, because none fits into memory; or some; or none. The first one takes long."""
    command, _ = prepare(tmp_path, "test_fraction")
    folder = tmp_path / "late"
    command = [argument.replace("OUT", str(folder)) for argument in command]
    done = run_program(LATE, held, 3, *command, "--keep_checkpoints")
    assert done.returncode == 0, done.stderr
    files = [*folder.glob("checkpoints/*/blocks/*.tokens")]
    assert (len(files) == 0) == (held == 1 << 20)
    assert published_files(folder) == published_files(tmp_path / "after")


def test_many_small_blocks_that_wait_for_their_place_get_files(tmp_path: Path) -> None:
    """Although they would fit into memory: a worker names those that it keeps in each answer."""
    for number in range(80):
        write_rows(tmp_path / f"in/{number:02d}.jsonl", made_up_rows(number, 1))
    flags = [*FLAGS, "--test_fraction=0"]
    source, folder = f"{tmp_path}/in/*.jsonl", tmp_path / "small"
    command = ["build", f"--input={source}", f"--output={folder}", *flags, "--keep_checkpoints"]
    done = run_program(LATE, 1_000_000, 75, *command, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [*folder.glob("checkpoints/*/blocks/*.tokens")], "there are places for few of them"
    build(tmp_path / "after", source, *flags)
    assert published_files(folder) == published_files(tmp_path / "after")


LAST_FOOTER = """
import sys, time
from fineshards.cli.cli import main
from fineshards.worker import own_process, tasks

discover = tasks.discover_file

def late(file, work):
    time.sleep(file.index)
    return discover(file, work)

tasks.discover_file = late
own_process.alone = True
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("flags", [[], ["--shuffle_seed=1"]], ids=["in_order", "shuffled"])
def test_no_block_is_finished_before_all_columns_are_checked(
    tmp_path: Path, flags: list[str]
) -> None:
    """The last file has other columns, and its footer is read late."""
    first = write_rows(tmp_path / "in/0.parquet", made_up_rows(5, 22))
    pq.write_table(pa.table({"content": ["a"]}), tmp_path / "in/1.parquet")
    folder = tmp_path / "out"
    done = run_program(
        LAST_FOOTER, "build", f"--input={first.parent}", f"--output={folder}", *FLAGS, *flags
    )
    assert done.returncode == 1, done.stderr
    assert "has no column 'text'" in done.stderr
    assert not folder.exists(), "the job has taken itself back"


def test_two_launches_of_a_job_side_by_side(tmp_path: Path) -> None:
    """One of them writes to places, the other files of its own."""
    command, _ = prepare(tmp_path, "test_fraction")
    folder = tmp_path / "twice"
    command = [argument.replace("OUT", str(folder)) for argument in command]
    with ThreadPoolExecutor(2) as pool:
        done = [*pool.map(lambda _: run_program(LATE, 1_000_000, 3, *command), range(2))]
    assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
    assert published_files(folder) == published_files(tmp_path / "after")
    assert package.verify(folder).ok


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
    done = [finish_block(file, block).run(worker)[0] for block in found]
    first, second, *_ = shards_of(done, worker.work)
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


def test_a_shard_that_another_process_finishes_meanwhile_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after --overwrite of a job that runs, or where locks of files do not work."""
    source = write_rows(tmp_path / "in.parquet", made_up_rows(5, 100))
    config = BuildConfig(
        input=source, output=tmp_path / "out", shard_tokens=400, test_shards=0, block_bytes=1
    )
    launch = launch_of(config)
    work = Work.of(launch.checkpoints, launch.job, config)
    worker, places, done = Worker(work, alone=True), work.places(), []
    assert places is not None
    (file,) = launch.job.files
    found = discover_files(file).run(worker)[0][1]
    places.expect(found)
    for block in found:  # each second one gets files of its own
        worker.held.most = 1 << 20 if block.index % 2 == 0 else 0
        done.append(finish_block(file, block).run(worker)[0])
        worker.held.settle([*places.add(done[-1])])
    work.checkpoints.write_layout(
        Layout.plan([sum(each.counts.tokens for each in done)], 400, work.settings.split)
    )
    open_at, contents = LocalStorage.open_at, {}

    def late(storage: LocalStorage, *arguments: object, **flags: object) -> object:
        monkeypatch.setattr(LocalStorage, "open_at", open_at)
        write_shard(*shard).run(Worker(work, alone=True))
        contents.update(published_files(tmp_path / "out"))
        return open_at(storage, *arguments, **flags)

    for shard in shards_of(done, work):
        monkeypatch.setattr(LocalStorage, "open_at", late)
        write_shard(*shard).run(worker)
        now = published_files(tmp_path / "out")
        assert {name: now[name] for name in contents} == contents, shard
    assert contents


def test_a_second_launch_of_the_job_may_finish_a_shard_that_is_being_written(
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


def test_tokens_are_written_once(sample: Path, tmp_path: Path) -> None:
    """While blocks are tokenized there is room for the dataset, and for little else."""
    source, folder = tmp_path / "in.parquet", tmp_path / "out"
    pq.write_table(pq.read_table(sample), source, row_group_size=40)
    config = BuildConfig(
        input=source, output=folder, shard_tokens=60_000, test_fraction="0.01", block_bytes=1
    )
    launch = launch_of(config)
    work = Work.of(launch.checkpoints, launch.job, config)
    with Pool(work, 2, launch.job.files, alone=True):
        wait_until(lambda: package.status(folder).of("tokenize").done == 27)
    assert not [*folder.glob("checkpoints/*/blocks/*.tokens")]
    tokens = 665_971 * 4
    room = sum(path.stat().st_blocks * 512 for path in unfinished(folder))
    assert tokens < room < 1.1 * tokens
