"""How fast a job is and how long a stage takes, by the times of files.

The files are those of a real launch, and those that its stages write, which here are as short as
`status` allows. Their times are set.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineshards.config import BuildConfig
from fineshards.errors import OutputError
from fineshards.job_status.progress_words import describe_pace
from fineshards.job_status.status import Stage, Status, StatusReader, pause_after, status
from fineshards.pipeline.launch import Launch, prepare
from fineshards.shards.counts import BlockSummary, Counts
from fineshards.shards.job.runs import held_lock
from fineshards.shards.layout import Layout
from fineshards.shards.ledger import Kind
from fineshards.worker.tasks import discover_file
from fineshards.worker.work import Work

BLOCKS = 6
# Of each block.
TOKENS = 1000
# Seconds ago: an earlier stage ended, the present one began, and it finished two pieces.
EARLIER, BEGAN, FIRST, SECOND = 250, 100, 70, 60
# Two pieces since the stage began, and not one since the first was finished.
RATE = 2 / (BEGAN - SECOND)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six equal row groups of two columns."""
    path = tmp_path_factory.mktemp("source") / "in.parquet"
    texts = ["A text of some length."] * BLOCKS
    pq.write_table(pa.table({"text": texts, "other": texts}), path, row_group_size=1)
    return path


class Files:
    """The output folder of a launched job, whose stages are done by writing their files.

    Times are seconds before now.
    """

    def __init__(self, source: Path, output: Path | str, **options: object) -> None:
        self.config = BuildConfig(
            input=source, output=output, block_bytes=1, shard_tokens=1000, **options
        )
        self.launch: Launch = prepare(self.config)
        self.storage = self.launch.checkpoints.storage
        self.folder = self.launch.checkpoints.folder
        self._now = time.time()

    def write(self, kind: str, key: str, ago: float, content: object = None) -> None:
        """An entry of a stage."""
        ledger, of = self.launch.checkpoints.ledger, Kind(kind, object)
        ledger.put(of, key, (), content)
        self.age(ledger.name(of, key), ago)

    def age(self, name: str, ago: float) -> None:
        """Sets a file's time."""
        os.utime(self.storage.path(name), times=(self._now - ago,) * 2)

    def discover(self, ago: float) -> None:
        work = Work.of(self.launch.checkpoints, self.launch.job, self.config)
        assert len(discover_file(self.launch.job.files[0], work)) == BLOCKS
        self.age(f"{self.folder}/files/00000.json", ago)

    def judge(self, stage: int, *times: float) -> None:
        for index, ago in enumerate(times):
            self.write(f"judged/{stage}", f"00000-{index:05d}", ago)

    def mark(self, stage: int, ago: float) -> None:
        self.write(f"marked/{stage}", "00000", ago)

    def tokenize(self, *times: float, folder: str = "blocks") -> None:
        for number, ago in enumerate(times):
            # A bucket has a number where a block has that of its file.
            file, index = (number, 0) if folder == "buckets" else (0, number)
            summary = BlockSummary(file, index, BLOCKS, Counts(tokens=TOKENS))
            self.write(folder, f"{file:05d}-{index:05d}", ago, summary)

    def plan(self) -> None:
        self.launch.checkpoints.write_layout(Layout(TOKENS, ((0, BLOCKS * TOKENS),)))

    def shards(self, *times: float) -> None:
        for index, ago in enumerate(times):
            self.write("shards", f"train_{index:04d}", ago)


def now(found: Status) -> Stage:
    assert found.now is not None
    return found.now


def steps(found: Status, state: str) -> list[str | None]:
    """The steps of the recipe that are done, compare now, or come later."""
    return [each.step for each in found.stages if (each.name, each.state) == ("judge", state)]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_tokenizing_is_measured_from_the_end_of_reading(source: Path, output: Path) -> None:
    files = Files(source, output)
    files.discover(BEGAN)
    files.tokenize(FIRST, SECOND)
    found = status(output)
    assert found.stage == "tokenizing"
    assert now(found).rate == pytest.approx(RATE * TOKENS)
    assert found.tokens_expected == BLOCKS * TOKENS
    assert now(found).seconds_left == pytest.approx((BLOCKS - 2) / RATE)
    assert SECOND <= found.seconds_idle < SECOND + 60


def test_each_step_of_a_recipe_is_measured_from_the_end_of_the_one_before(
    source: Path, output: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[[steps]]\nuse = "exact"\n')
    files = Files(source, output, recipe=recipe, dedup="exact")
    assert steps(status(output), "later") == ["1 exact", "2 exact"]
    files.discover(BEGAN)
    files.judge(0, FIRST, SECOND)
    found = status(output)
    assert (steps(found, "now"), steps(found, "later")) == (["1 exact"], ["2 exact"])
    assert now(found).seconds_left == pytest.approx((BLOCKS - 2) / RATE)

    # All are judged, and no rate says how long it takes to compare them.
    files.discover(EARLIER)
    files.judge(0, *[EARLIER - 10] * BLOCKS)
    found = status(output)
    assert (found.stage, now(found).rate, now(found).seconds_left) == ("judging", None, None)
    files.mark(0, BEGAN)
    files.judge(1, FIRST, SECOND)
    found = status(output)
    assert (steps(found, "now"), steps(found, "later")) == (["2 exact"], [])
    assert now(found).seconds_left == pytest.approx((BLOCKS - 2) / RATE)
    assert SECOND <= found.seconds_idle < SECOND + 60

    files.mark(0, EARLIER - 10)
    files.judge(1, *[EARLIER - 20] * BLOCKS)
    files.mark(1, BEGAN)
    files.tokenize(FIRST, SECOND)
    found = status(output)
    assert (found.stage, steps(found, "done")) == ("tokenizing", ["1 exact", "2 exact"])
    assert now(found).rate == pytest.approx(RATE * TOKENS)
    assert now(found).seconds_left == pytest.approx((BLOCKS - 2) / RATE)


def test_shuffling_is_measured_from_the_end_of_tokenizing(source: Path, output: Path) -> None:
    files = Files(source, output, shuffle_seed=1)
    files.discover(EARLIER)
    files.tokenize(*[EARLIER] * (BLOCKS - 1), BEGAN)
    files.tokenize(FIRST, SECOND, folder="buckets")
    found = status(output)
    assert (found.stage, now(found).done) == ("shuffling", 2 * TOKENS)
    assert now(found).rate == pytest.approx(RATE * TOKENS)
    assert now(found).seconds_left == pytest.approx((BLOCKS - 2) / RATE)
    assert SECOND <= found.seconds_idle < SECOND + 60


@pytest.mark.parametrize("shuffle_seed", [None, 1])
def test_writing_is_measured_from_the_end_of_the_stage_before(
    source: Path, output: Path, shuffle_seed: int | None
) -> None:
    files = Files(source, output, shuffle_seed=shuffle_seed)
    files.discover(EARLIER)
    last = EARLIER if shuffle_seed else BEGAN
    files.tokenize(*[EARLIER] * (BLOCKS - 1), last)
    if shuffle_seed:
        files.tokenize(*[EARLIER] * (BLOCKS - 1), BEGAN, folder="buckets")
    files.plan()
    files.shards(FIRST, SECOND)
    found = status(output)
    assert (found.stage, now(found).done, now(found).total) == ("writing", 2, BLOCKS)
    assert now(found).seconds_left == pytest.approx((BLOCKS - 2) / RATE)
    assert SECOND <= found.seconds_idle < SECOND + 60


def test_a_build_that_resumes_counts_its_own_blocks_and_time(source: Path, output: Path) -> None:
    files = Files(source, output)
    files.discover(1300)
    files.tokenize(1250, 1200)
    assert "probably not running" in describe_pace(status(output))
    reader = StatusReader(files.storage, from_now=True)
    found = reader.read()
    assert (now(found).rate, now(found).seconds_left) == (None, None)
    assert found.seconds_idle < 60
    # What it finishes, so far from now that what passes meanwhile does not matter.
    files.tokenize(1250, 1200, -280)
    found = reader.read()
    assert now(found).rate == pytest.approx(TOKENS / 280, rel=0.1)
    assert now(found).seconds_left == pytest.approx((BLOCKS - 3) * 280, rel=0.1)


def test_a_running_job_says_for_how_long(source: Path, output: Path) -> None:
    files = Files(source, output)
    with held_lock(files.storage, files.folder):
        found = status(output)
        assert found.seconds_running is not None
        assert found.seconds_running < 60
        files.age(f"{files.folder}/running", 300)
        found = status(output)
        assert found.running
        assert describe_pace(found).endswith(" ago, running for 5 min")
    found = status(output)
    assert (found.running, found.seconds_running) == (False, None)


def test_an_append_is_resumed_by_its_own_command(source: Path, output: Path) -> None:
    Files(source, output)
    idle = replace(status(output), seconds_idle=900.0)
    assert describe_pace(idle).endswith("The same build command resumes it.")
    assert describe_pace(replace(idle, generation=2)).endswith(
        "The same append command resumes it."
    )


def test_a_job_record_that_was_touched_or_copied_is_the_same_job(
    source: Path, output: Path
) -> None:
    files = Files(source, output)
    reader = StatusReader(files.storage)
    record = output / "metadata/job.json"
    os.utime(record)
    assert reader.read().stage == "discovering"
    content = record.read_bytes()
    record.unlink()
    record.write_bytes(content)
    assert reader.read().stage == "discovering"
    prepare(BuildConfig(input=source, output=output, text_column="other"))
    with pytest.raises(OutputError, match="does not hold this job any more"):
        reader.read()


def test_damaged_checkpoints_are_not_shown_as_done(source: Path, output: Path) -> None:
    files = Files(source, output)
    files.discover(BEGAN)
    files.tokenize(FIRST)
    files.write("blocks", "x-y", 1)
    files.storage.write(f"{files.folder}/blocks/00000-00001.json", b"{}")
    files.storage.write(f"{files.folder}/plan.json", b'{"a": 1}')
    found = status(output)
    assert (found.stage, now(found).done) == ("tokenizing", 1)
    files.storage.write(f"{files.folder}/files/00000.json", b'{"a": 1}')
    assert status(output).stage == "discovering"


def test_the_pause_between_looks_grows_with_what_a_look_takes_up_to_a_bound() -> None:
    assert pause_after(0.001, least=0.5) == 0.5
    assert pause_after(2.0, least=0.5) == 20.0
    assert pause_after(300.0, least=0.5) == 30.0
