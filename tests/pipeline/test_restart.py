"""A build killed at any moment resumes: same bytes, no work repeated, no files left behind."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from support.build_here import build_here
from support.damage import flip_bit
from support.kills import crashes_of
from support.oracle import files_in, oracle, oracle_by_text, read_texts, shards_in

from fineshards.config import BuildConfig
from fineshards.errors import OutputError
from fineshards.pipeline.graph import build_pipeline
from fineshards.pipeline.launch import prepare
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.job import JOB_NAME, Job
from fineshards.storage.open import open_storage
from fineshards.worker.tasks import Worker, discover_file, finish_block
from fineshards.worker.work import Work

Build = Callable[..., int]


@pytest.fixture
def small(tmp_path: Path, sample: Path) -> Path:
    """40 documents of the sample in two files and three row groups."""
    return write_small(tmp_path / "input", sample)


def write_small(folder: Path, sample: Path) -> Path:
    folder.mkdir()
    table = pq.read_table(sample)
    pq.write_table(table.slice(0, 30), folder / "a.parquet", row_group_size=15)
    pq.write_table(table.slice(30, 10), folder / "b.parquet")
    return folder


def times_in(folder: Path) -> dict[str, int]:
    """All files, with the times of their last changes."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.kills
@pytest.mark.parametrize("part", range(2))
def test_restart_after_a_kill_before_any_file_operation(
    small: Path, tmp_path: Path, part: int
) -> None:
    """Each state that a crash can leave on disk, one after the other."""
    command = ["build", f"--input={small}/*.parquet", "--output=OUT", "--shard_tokens=10000"]
    crashes = crashes_of(tmp_path, [*command, "--block_bytes=1", "--test_fraction=0.2"], part, 2)
    files = [read_texts(small / name) for name in ("a.parquet", "b.parquet")]
    texts = [*files[0], *files[1]]
    expected = oracle_by_text(*files, shard_tokens=10_000, fraction="0.2")
    assert "test/test_0000.npy" in expected
    assert len(crashes) > 10
    for crash in crashes:
        output = Path(crash["folder"])
        assert shards_in(output) == expected, crash
        # Right after the crash, the split folders held only whole shards.
        assert (crash["status"], crash["rewritten"], crash["changed"]) == (0, [], []), crash
        assert crash["documents_encoded"] == len(texts) - crash["documents_finished"], crash
        assert not (output / "checkpoints").exists(), crash
        assert set(times_in(output)) == expected_names(expected), crash


def expected_names(shards: dict[str, bytes]) -> set[str]:
    tables = {f"metadata/documents/{Path(name).stem}.parquet" for name in shards}
    records = ("job.json", "manifest.json", "generations/0001.json")
    others = ("blocks.parquet", "vocabulary.tiktoken")
    return set(shards) | tables | {f"metadata/{name}" for name in (*records, *others)}


@pytest.mark.parametrize("what", ["shard", "table"])
def test_a_shard_that_was_changed_after_a_kill_is_written_again(
    build: Build, small: Path, tmp_path: Path, what: str
) -> None:
    output = tmp_path / "out"
    flags = ["--shard_tokens=10000", "--keep_checkpoints"]
    assert build(small / "*.parquet", output, *flags) == 0
    expected = files_in(output, ("test", "train", "metadata"))
    (output / "metadata/manifest.json").unlink()
    changed, whole = sorted((output / "train").iterdir())[:2]
    inode = whole.stat().st_ino
    if what == "table":
        changed = output / f"metadata/documents/{changed.stem}.parquet"
    flip_bit(changed, changed.stat().st_size // 2)
    assert build(small / "*.parquet", output, *flags) == 0
    assert files_in(output, ("test", "train", "metadata")) == expected
    assert whole.stat().st_ino == inode


@pytest.fixture(scope="session")
def finished_build(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The input and the output of a finished build with `--shard_tokens=10000`. Read-only."""
    folder = tmp_path_factory.mktemp("restart")
    source = write_small(folder / "input", sample)
    build_here(input=source / "*.parquet", output=folder / "out", shard_tokens=10_000)
    return source, folder / "out"


def test_a_finished_job_does_nothing_and_says_so(
    build: Build,
    finished_build: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, output = finished_build[0], tmp_path / "out"
    shutil.copytree(finished_build[1], output)
    before = times_in(output)
    assert build(source / "*.parquet", output, "--shard_tokens=10000") == 0
    assert times_in(output) == before
    assert "already finished, nothing to do" in capsys.readouterr().out


SPLIT = "split: was --test_fraction 0.01 --split_key text, now"


@pytest.mark.parametrize(
    ("flag", "difference"),
    [
        ("--shard_tokens=9999", "--shard_tokens: was 10000, now 9999"),
        ("--test_fraction=0.5", f"{SPLIT} --test_fraction 0.5 --split_key text"),
        ("--split_key=row", f"{SPLIT} --test_fraction 0.01 --split_key row"),
        ("--split_key=host", f"{SPLIT} --test_fraction 0.01 --split_key host"),
        ("--test_shards=1", f"{SPLIT} --test_shards 1"),
        ("--text_column=url", "--text_column: was 'text', now 'url'"),
        ("--id_column=url", "--id_column: was 'id', now 'url'"),
        ("--block_bytes=77", "--block_bytes: was 16777216, now 77"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_other_options_are_refused_with_the_difference_named(
    build: Build,
    finished_build: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    difference: str,
    finished: bool,
) -> None:
    source, output = finished_build[0], tmp_path / "out"
    shutil.copytree(finished_build[1], output)
    if not finished:
        (output / "metadata/manifest.json").unlink()
    before = times_in(output)
    assert build(source / "*.parquet", output, "--shard_tokens=10000", flag) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "holds another job: " in last
    assert difference in last
    assert times_in(output) == before


def test_another_input_is_refused_with_the_difference_named(
    build: Build, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert build(small / "*.parquet", output) == 0

    def refusal(pattern: str = "*.parquet") -> str:
        assert build(small / pattern, output) == 2
        return capsys.readouterr().err.splitlines()[-1]

    first, renamed = small / "a.parquet", small / "aa.parquet"
    assert "number of input files: was 2, now 1" in refusal("a.parquet")
    first.write_bytes(first.read_bytes() + b"\n")
    assert f"{first} changed: it had" in refusal()
    first.rename(renamed)
    assert f"input file 0: was {first.name}, now {renamed.name}" in refusal()


def test_a_first_try_that_failed_at_once_needs_no_overwrite(
    build: Build, small: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    assert build(small / "*.parquet", output, "--text_column=body") == 1
    flags = ["--shard_tokens=10000", "--test_shards=1"]
    assert build(small / "*.parquet", output, *flags) == 0
    texts = read_texts(small / "a.parquet", small / "b.parquet")
    assert shards_in(output) == oracle(texts, 10_000, test_shards=1)


TAKEN = (
    "was taken over by another job, so this one stops. The other job differs: --shard_tokens: was "
    "100000000, now 2000. Let one job finish"
)


@pytest.fixture(name="run_command")
def _run_command(
    fineshards: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The fixture `fineshards`, whose name the package has here."""
    return fineshards


@pytest.mark.long
def test_a_job_that_is_replaced_before_its_first_block_is_told_so_and_stops(
    small: Path, tmp_path: Path, run_command: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    output = tmp_path / "out"
    config = BuildConfig(input=str(small / "*.parquet"), output=str(output))
    launch = prepare(config)
    work = Work.of(launch.checkpoints, launch.job, config)
    ((file, block), *_) = [(f, b) for f in launch.job.files for b in discover_file(f, work)]

    flags = ["--shard_tokens=2000", "--keep_checkpoints"]
    other = run_command("build", "--input", config.patterns[0], "--output", output, *flags)
    assert other.returncode == 0, other.stderr
    said = other.stderr.splitlines()[0].partition(" ")[2]
    assert said == (
        f"starting over in {output}: an earlier attempt had finished nothing: --shard_tokens: "
        "was 100000000, now 2000"
    )
    before = times_in(output)
    # A worker that is about to begin a block, and the whole graph.
    with pytest.raises(OutputError, match=TAKEN):
        finish_block(file, block).run(Worker(work))
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    build_pipeline(pipeline, work)
    with pytest.raises(OutputError, match=TAKEN):
        pipeline.run()
    assert times_in(output) == before


def test_a_job_whose_output_was_taken_over_writes_nothing(
    build: Build, small: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    assert build(small / "a.parquet", output, "--keep_checkpoints") == 0
    storage = open_storage(str(output))
    job = Job.load(storage)
    assert job is not None
    old = Checkpoints.of(storage, job)
    assert build(small / "b.parquet", output, "--overwrite", "--keep_checkpoints") == 0
    before = times_in(output)
    taken = "was taken over by another job, .* differs: it has other input files"
    with pytest.raises(OutputError, match=taken):
        old.job()
    # What it would have deleted at its end is not its own any more.
    with pytest.raises(OutputError, match=taken):
        old.clear()
    assert times_in(output) == before
    storage.delete(JOB_NAME)
    with pytest.raises(OutputError, match="has no job record any more, so this job stops"):
        old.job()


def test_overwrite_starts_from_scratch(build: Build, small: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert build(small / "*.parquet", output, "--shard_tokens=1000") == 0
    (output / "README.md").mkdir()  # someone's own
    flags = ["--shard_tokens=10000", "--test_shards=1", "--overwrite"]
    assert build(small / "a.parquet", output, *flags) == 0
    expected = oracle(read_texts(small / "a.parquet"), 10_000, test_shards=1)
    assert shards_in(output) == expected
    (output / "README.md").rmdir()
    assert set(times_in(output)) == expected_names(expected)
