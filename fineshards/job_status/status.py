"""The progress of a job, read from its output folder alone, wherever the job runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fineshards.errors import OutputError
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.job import Job
from fineshards.shards.job.local_run import is_running, seconds_running
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import Block
from fineshards.shards.job.remote_run import RemoteRun
from fineshards.shards.layout import Layout
from fineshards.shards.tables.verdicts import StageFiles
from fineshards.storage.base import TEMPORARY, Storage
from fineshards.storage.open import open_storage

_RATES = ("bytes_per_second", "tokens_per_second", "seconds_left")
# A rate is that of this many files, or of the last minute if that had more. The mean since the
# first start would be worse: that may have been days and several restarts ago.
FEW = 50
_SECONDS = 60
_LEAST_SECONDS = 0.5
# Seconds without a written file after which a job is probably not running. A block or a shard takes
# seconds, and a local file shows while it is written.
LONG_IDLE = 300


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of a job, as `status` returns it. Totals are None until they are known.

    Args:
        stage: `discovering`, `judging`, `tokenizing`, `shuffling`, `writing` or `finished`. Judging
            is what the steps of a recipe do before documents are compared.
        files: Files whose blocks are known.
        files_total: Files of the input.
        blocks: Finished token blocks.
        blocks_total: Blocks of the input.
        text_bytes: Text of the finished blocks, in bytes. Before the job has finished, a block's
            size is that of its column in the source file, for .jsonl of the whole file.
        text_bytes_total: Text of the input, in the same measure.
        tokens: Tokens of the finished blocks.
        shards: Finished shards.
        shards_total: Shards of the dataset; known once they are planned.
        bytes_per_second: Recent rate of judging or tokenizing, in the measure of `text_bytes`; None
            in other stages, and until it can be measured.
        seconds_left: Estimated time to the end of this stage; None without a rate.
        seconds_idle: Time since a worker last wrote a file, or since the launch, by the times of
            the files. 0 if finished.
        splits: Shards, documents and tokens of `test` and `train`; None until the job has finished.
        generation: The generation of the dataset that the job makes, or made last. Beyond the
            first, files, blocks and tokens are those that it adds, until it has finished.
        step: While judging, the step of the recipe that will compare documents, such as
            `2 minhash`.
        judged: While judging, blocks that are judged up to that step. If these are all, keys are
            compared.
        compared: The steps that have compared documents.
        tokens_per_second: Recent rate of tokenizing or shuffling; None as `bytes_per_second` is.
        shuffled: Tokens of documents that are in their random order; None if none are to be
            shuffled.
        to_compare: The steps that will compare documents after `step`.
        job_id: The job's id on Dataflow; None elsewhere, and once it has finished.
        console: The address of that job's page in Google's console.
        running: Whether processes on this machine work on it; None where that is not known, as on
            object storage. A job that does not run has no rates and no time left.
        seconds_running: How long they have worked since they last began; None if they do not.

    Example:
        >>> import fineshards
        >>> status = fineshards.status(dataset_folder)
        >>> status.files, status.tokens, status.seconds_left
        (1, 665971, 0.0)
    """

    stage: str
    files: int
    files_total: int
    blocks: int
    blocks_total: int | None
    text_bytes: int
    text_bytes_total: int | None
    tokens: int
    shards: int
    shards_total: int | None
    bytes_per_second: float | None
    seconds_left: float | None
    seconds_idle: float
    splits: dict[str, dict[str, int]] | None = None
    generation: int = 1
    step: str | None = None
    judged: int = 0
    compared: tuple[str, ...] = ()
    tokens_per_second: float | None = None
    shuffled: int | None = None
    to_compare: tuple[str, ...] = ()
    job_id: str | None = None
    console: str | None = None
    running: bool | None = None
    seconds_running: float | None = None


def status(folder: str | os.PathLike[str]) -> Status:
    """Returns the progress of the job that writes to a folder, wherever the job runs.

    Args:
        folder: The job's output folder, local, `gs://` or `s3://`.

    Returns:
        The Status at this moment. Its `stage` is `discovering`, `judging`, `tokenizing`,
        `shuffling`, `writing` or `finished`.

    Raises:
        OutputError: If the folder holds no job.

    Example:
        >>> import fineshards
        >>> status = fineshards.status(dataset_folder)
        >>> status.stage, status.shards
        ('finished', 7)
    """
    return StatusReader(open_storage(folder)).read()


def latest_job(storage: Storage, manifest: Manifest | None) -> Job | None:
    """The job of the latest generation, finished or not; None if there is none.

    manifest: of the latest finished one.
    """
    following = None if manifest is None else Job.load(storage, manifest.generation + 1)
    if following is not None and following.redaction is None:
        return following
    return Job.load(storage) if manifest is None else manifest.job


def pause_after(took: float, least: float) -> float:
    """Seconds until the next look: longer where listing a million blocks takes long, up to 30."""
    return min(max(least, 10 * took), 30.0)


class StatusReader:
    """Lists the checkpoints of one job against its plan, repeatedly; keeps what cannot change.

    from_now: measure rates by what is finished from now on. A launch that resumes a job does so,
    because its own blocks say how fast it is.
    """

    def __init__(self, storage: Storage, from_now: bool = False) -> None:
        manifest = Manifest.load(storage)
        job = latest_job(storage, manifest)
        if job is None:
            raise OutputError(
                f"{storage.root} holds no fineshards job. Check the folder, or start a job with "
                "fineshards build."
            )
        self._job, self._storage = job, storage
        self._checkpoints = Checkpoints.of(storage, job)
        self._steps = _compared(job)
        self._blocks: dict[int, list[Block]] = {}
        self._layout: Layout | None = None
        # Finished blocks, once these are all.
        self._done: dict[tuple[int, int], tuple[int, float]] | None = None
        # Steps of the recipe that have compared documents.
        self._compared = 0
        # When stages ended that are over.
        self._ended: dict[str, float | None] = {}
        is_finished = manifest is not None and manifest.generation >= job.generation
        self._finished = manifest if is_finished else None
        self._record = None if is_finished else storage.version(job.record_name)
        # What the dataset holds already, if this job makes it grow.
        self._before = None if is_finished else manifest
        self._since = time.time() if from_now else 0.0

    def read(self, added: bool = False) -> Status:
        """The status at this moment; raises OutputError if the job is gone.

        added: once finished, say what the job has added, and not what the dataset holds.
        """
        manifest = self._finished or Manifest.load(self._storage)
        if manifest is not None and manifest.generation >= self._job.generation:
            finished = _finished(manifest)
            return self._only_added(finished) if added and self._before else finished
        self._check_record()
        if len(self._blocks) < len(self._job.new_files):
            self._blocks |= self._checkpoints.discovered.read_new_blocks(self._blocks)
        self._layout = self._layout or self._checkpoints.read_layout()
        found = self._listed()
        where = self._storage, self._checkpoints.folder
        if (run := RemoteRun.load(*where)) is not None:
            return replace(found, job_id=run.job_id, console=run.console)
        running = is_running(*where)
        if running is not False:
            elapsed = seconds_running(*where) if running else None
            return replace(found, running=running, seconds_running=elapsed)
        rates: dict[str, Any] = dict.fromkeys(_RATES)
        return replace(found, running=False, **rates)

    def _finished_blocks(self) -> dict[tuple[int, int], tuple[int, float]]:
        """As those of Checkpoints, which are listed no more once there is a layout of all."""
        if self._done is not None:
            return self._done
        every = [(block.file, block.index) for blocks in self._blocks.values() for block in blocks]
        if self._layout is not None and self._storage.composes:
            # A million names take a minute to list. The plan says that all blocks are finished.
            done = dict.fromkeys(every, (0, self._checkpoints.planned_at()))
        else:
            done = self._checkpoints.blocks.finished_blocks(files=len(self._job.files))
        if self._layout is not None and len(done) >= len(every):
            self._done = done
        return done

    def _check_record(self) -> None:
        """Raises OutputError if the job is gone. A record that was only copied or touched is it."""
        version = self._storage.version(self._job.record_name)
        if version == self._record:
            return
        now = None if version is None else Job.load(self._storage, self._job.generation)
        if now is None or now.fingerprint() != self._job.fingerprint():
            raise OutputError(
                f"{self._storage.root} does not hold this job any more: it was deleted, or another "
                "one took its place. fineshards status shows what is there now."
            )
        self._record = version

    def _judged(self) -> dict[tuple[int, int], float] | None:
        """When blocks were judged in the present stage of the recipe; None after the last."""
        while self._compared < len(self._steps):
            stage = StageFiles(self._checkpoints, self._compared)
            marked = stage.marked_files()
            if len(marked) < len(self._job.new_files):
                return stage.judged_blocks(len(self._job.files))
            self._ended["judging"] = max(marked, default=None)
            self._compared += 1
        return None

    def _began(self, stage: str, tokenized: Iterable[float]) -> float | None:
        """When a stage began: when the one before it ended; None if that is not known."""
        if stage == "discovering":
            return None
        if "discovering" not in self._ended:
            self._ended["discovering"] = max(self._written_in("files"), default=None)
        if stage in ("judging", "tokenizing"):
            return self._ended.get("judging", self._ended["discovering"])
        if stage == "writing" and self._job.settings.shuffle is not None:
            if "shuffling" not in self._ended:
                buckets = self._checkpoints.blocks.finished_blocks("buckets").values()
                self._ended["shuffling"] = max((time_ for _, time_ in buckets), default=None)
            return self._ended["shuffling"]
        return max(tokenized, default=None)

    def _listed(self) -> Status:
        """What is finished, of how much, and how fast that is in the present stage."""
        files, shuffles = len(self._job.new_files), self._job.settings.shuffle is not None
        # A list, because progress may look in two threads at its end.
        known = list(self._blocks.values())
        sizes = {(b.file, b.index): b.bytes for blocks in known for b in blocks}
        all_known = len(known) == files
        judged = self._judged() if all_known else None
        done, shards = self._finished_blocks(), self._checkpoints.finished_shards()
        tokens, shards_total = sum(count for count, _ in done.values()), None
        bytes_done, bytes_total = sum(sizes.get(key, 0) for key in done), sum(sizes.values())
        # What is finished by the present stage, as (time, amount), and of how much.
        pieces = [(time_, sizes.get(key, 0)) for key, (_, time_) in done.items()]
        counted, total, shuffled = (
            [(time_, count) for count, time_ in done.values()],
            bytes_total,
            0,
        )
        if self._layout is not None:
            before = self._before and self._before.layout
            tokens = self._layout.tokens - (before.tokens if before else 0)
            shards_total = self._layout.windows - (before.windows if before else 0)
            stage, total, shuffled = "writing", shards_total, tokens
            pieces = [(time_, 1) for time_ in shards]
        elif judged is not None:
            stage, pieces = "judging", [(time_, sizes.get(key, 0)) for key, time_ in judged.items()]
        elif all_known and shuffles and 0 < len(done) == len(sizes):
            stage, total = "shuffling", tokens
            buckets = self._checkpoints.blocks.finished_blocks("buckets").values()
            pieces = counted = [(time_, count) for count, time_ in buckets]
            # Buckets of another size may be left from an earlier run.
            shuffled = min(tokens, sum(count for count, _ in buckets))
        else:
            stage = "tokenizing" if all_known else "discovering"
        began = self._began(stage, [time_ for _, time_ in done.values()])
        # No rate says how long it takes to compare documents.
        compares = stage == "judging" and len(pieces) == len(sizes)
        rate = None if compares else self._rate(pieces, began)
        left = None
        if rate and all_known:
            left = max(0, total - sum(amount for _, amount in pieces)) / rate
        return Status(
            stage=stage,
            files=len(known),
            files_total=files,
            blocks=len(done),
            blocks_total=len(sizes) if all_known else None,
            text_bytes=bytes_done,
            text_bytes_total=bytes_total if all_known else None,
            tokens=tokens,
            shards=len(shards),
            shards_total=shards_total,
            bytes_per_second=None if stage in ("shuffling", "writing") else rate,
            seconds_left=left,
            seconds_idle=self._idle(began, [*pieces, *((time_, 0) for _, time_ in done.values())]),
            generation=self._job.generation,
            step=None if judged is None else self._steps[self._compared],
            judged=len(judged or ()),
            compared=self._steps[: self._compared],
            tokens_per_second=None
            if stage in ("judging", "writing")
            else self._rate(counted, began),
            shuffled=shuffled if shuffles else None,
            to_compare=self._steps[self._compared + (judged is not None) :],
        )

    def _idle(self, began: float | None, finished: Iterable[tuple[float, int]]) -> float:
        """Seconds since anything was written."""
        times = [time_ for time_, _ in finished]
        # Unfinished files, but not those in the scratch folder of a repair.
        unfinished = self._storage.entries(TEMPORARY)
        times += [entry.modified for entry in unfinished if entry.name.count("/") == 2]
        times += self._written_in("files") if began is None else [began]
        if not times:
            times = [entry.modified for entry in self._storage.entries("metadata")]
        now = time.time()
        return max(0.0, now - max(self._since, *times)) if times else 0.0

    def _rate(self, finished: list[tuple[float, int]], began: float | None) -> float | None:
        """The recent rate of what is finished, of (time, amount) in any order."""
        if self._since:
            began = max(self._since, began or 0.0)
        return _recent_rate([each for each in finished if each[0] > self._since], began)

    def _only_added(self, finished: Status) -> Status:
        assert self._before is not None
        before = _finished(self._before)
        names = "files", "files_total", "blocks", "blocks_total", "tokens", "shards", "shards_total"
        added: dict[str, Any] = {
            name: getattr(finished, name) - getattr(before, name) for name in names
        }
        return replace(finished, shuffled=finished.shuffled and added["tokens"], **added)

    def _written_in(self, folder: str) -> list[float]:
        entries = self._storage.entries(f"{self._checkpoints.folder}/{folder}")
        return [entry.modified for entry in entries]


def _recent_rate(finished: Iterable[tuple[float, int]], began: float | None) -> float | None:
    """Amount per second over the most recent of (time, amount), in any order; None without one.

    Counts since the last long pause, in which no worker was running. began: when the first one was
    begun, if that is known.
    """
    ordered = sorted(finished)
    if began is not None and ordered and began < ordered[0][0]:
        ordered.insert(0, (began, 0))
    start = len(ordered) - 1
    while start > 0:
        before, time = ordered[start - 1][0], ordered[start][0]
        is_old = len(ordered) - start > FEW and ordered[-1][0] - before > _SECONDS
        if is_old or time - before > LONG_IDLE:
            break
        start -= 1
    seconds = ordered[-1][0] - ordered[start][0] if ordered else 0.0
    # Workers that began at once also end almost at once, which says nothing of how long they took.
    if seconds < _LEAST_SECONDS:
        return None
    return sum(amount for _, amount in ordered[start + 1 :]) / seconds


def _finished(manifest: Manifest) -> Status:
    totals, shards, files = manifest.totals, len(manifest.shards), len(manifest.files)
    return Status(
        stage="finished",
        files=files,
        files_total=files,
        blocks=totals["blocks"],
        blocks_total=totals["blocks"],
        text_bytes=totals["text_bytes"],
        text_bytes_total=totals["text_bytes"],
        tokens=totals["tokens"],
        shards=shards,
        shards_total=shards,
        bytes_per_second=None,
        seconds_left=0.0,
        seconds_idle=0.0,
        splits=manifest.splits,
        generation=manifest.generation,
        compared=_compared(manifest.job),
        shuffled=totals["tokens"] if manifest.settings.shuffle else None,
    )


def _compared(job: Job) -> tuple[str, ...]:
    """The names of the steps that compare documents."""
    recipe = job.settings.recipe
    return tuple(map(recipe.step_name, recipe.keyed)) if recipe else ()
