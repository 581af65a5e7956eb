"""The head start makes the blocks that the step would make; nothing is done or reported twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.oracle import oracle, read_texts, shards_in
from support.watched_encoder import watched_encode

from fineshards.config import BuildConfig
from fineshards.encoders.exact import ExactEncoder
from fineshards.pipeline.launch import Launch, prepare
from fineshards.shards.records import Block
from fineshards.transforms import head_start
from fineshards.transforms.blocks import discover_file
from fineshards.transforms.head_start import HeadStart
from fineshards.transforms.work import Work

Build = Callable[..., int]


@pytest.fixture
def slow_encoder(monkeypatch: pytest.MonkeyPatch) -> SlowEncoder:
    slow = SlowEncoder()
    monkeypatch.setattr(ExactEncoder, "encode", watched_encode(slow.called))
    return slow


class SlowEncoder:
    """The real encoder, except that each call waits for `may_continue`."""

    def __init__(self) -> None:
        self.documents: list[int] = []
        self.started = threading.Event()
        self.may_continue = threading.Event()

    def called(self, documents: int) -> None:
        self.documents.append(documents)
        self.started.set()
        assert self.may_continue.wait(60)


def launch(source: Path, output: Path, block_bytes: int = 1) -> Launch:
    return prepare(
        BuildConfig(input=source, output=output, shard_tokens=50_000, block_bytes=block_bytes)
    )


def new_head_start(job: Launch) -> tuple[HeadStart, list[Block]]:
    """A head start that has not started yet, and the blocks of the job."""
    work = Work(job.checkpoints, job.job.settings, files=1)
    (file,) = job.job.files
    return HeadStart(work), discover_file(file, work)


def test_the_step_waits_for_a_block_in_progress_and_no_other_is_started(
    sample: Path, tmp_path: Path, slow_encoder: SlowEncoder
) -> None:
    job = launch(sample, tmp_path)
    early, blocks = new_head_start(job)
    with early:
        assert slow_encoder.started.wait(60)
        taken = []
        step = threading.Thread(
            target=lambda: taken.append(head_start.take(job.checkpoints, blocks[0]))
        )
        step.start()
        time.sleep(0.05)
        assert taken == []
        assert head_start.take(job.checkpoints, blocks[1]) is None
        slow_encoder.may_continue.set()
        step.join()
        ((summary, reused),) = taken
        assert (summary, reused) == (job.checkpoints.read_summary(blocks[0]), False)
    assert sum(slow_encoder.documents) == summary.counts.documents
    assert set(job.checkpoints.finished_blocks()) == {(0, 0)}
    assert head_start.take(job.checkpoints, blocks[0]) is None


def test_blocks_are_made_until_the_step_asks_and_reused_by_a_later_run(
    sample: Path, tmp_path: Path
) -> None:
    for reused in (False, True):
        job = launch(sample, tmp_path)
        early, blocks = new_head_start(job)
        with early:
            early._thread.join(60)
            found = [head_start.take(job.checkpoints, block) for block in blocks]
        assert found == [(job.checkpoints.read_summary(block), reused) for block in blocks]


def test_a_build_encodes_every_document_once(
    build: Build, sample: Path, tmp_path: Path, slow_encoder: SlowEncoder
) -> None:
    slow_encoder.may_continue.set()
    flags = ["--shard_tokens=50000", "--test_shards=1", "--block_bytes=1"]
    assert build(sample, tmp_path, *flags) == 0
    texts = read_texts(sample)
    assert shards_in(tmp_path) == oracle(texts, 50_000, test_shards=1)
    assert sum(slow_encoder.documents) == len(texts)


def test_no_block_is_started_before_all_footers_are_checked(
    build: Build, sample: Path, tmp_path: Path, slow_encoder: SlowEncoder
) -> None:
    """So a wrong column that only some files have can be corrected without --overwrite."""
    slow_encoder.may_continue.set()
    folder = tmp_path / "input"
    folder.mkdir()
    table = pq.read_table(sample).slice(0, 30)
    pq.write_table(table.append_column("body", table["text"]), folder / "a.parquet")
    pq.write_table(table, folder / "b.parquet")
    output = tmp_path / "out"
    assert build(folder / "*.parquet", output, "--text_column=body") == 1
    assert slow_encoder.documents == []
    assert build(folder / "*.parquet", output) == 0


def test_an_interrupt_waits_for_a_record_batch_and_leaves_no_thread(
    sample: Path, tmp_path: Path, slow_encoder: SlowEncoder
) -> None:
    """A thread that is still in native code may abort the process at exit."""
    job = launch(sample, tmp_path, block_bytes=10**9)
    early, blocks = new_head_start(job)
    assert len(blocks) == 1
    slow_encoder.may_continue = early._given_up
    before = threading.active_count()

    def interrupted() -> None:
        with early:
            assert slow_encoder.started.wait(60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert threading.active_count() == before
    (documents,) = slow_encoder.documents
    assert 0 < documents < len(read_texts(sample))
    assert not job.checkpoints.finished_blocks()
    assert list(tmp_path.glob("checkpoints/unfinished/*")) == []


def test_an_error_in_the_head_start_is_reported_once_by_the_step(
    build: Build, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = pa.array([b"good", b"\xff"]).cast(pa.binary()).view(pa.binary())
    bad = pa.Array.from_buffers(pa.string(), 2, broken.buffers())
    pq.write_table(pa.table({"text": bad}), tmp_path / "a.parquet")
    assert build(tmp_path / "a.parquet", tmp_path / "out") == 1
    errors = capfd.readouterr().err.splitlines()
    assert [line for line in errors if line.startswith("fineshards: ")] == errors[-1:]
    assert "row 1: its 'text' is not valid UTF-8" in errors[-1]
