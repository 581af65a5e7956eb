"""The progress of a job, read from its output folder alone, wherever the job runs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from fineshards.commands.wording import counted, describe_splits, duration
from fineshards.errors import OutputError
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job import FORMAT_VERSION, Job
from fineshards.shards.judged import Stage
from fineshards.shards.layout import Layout, ShardKey
from fineshards.shards.manifest import Manifest
from fineshards.shards.records import Block
from fineshards.storage.base import TEMPORARY, Storage, open_storage

# The time left is estimated from this many recent blocks or shards. The mean since the first start
# would be worse: that may have been days and several restarts ago.
_RECENT = 50
# Seconds without a written file after which a job is probably not running. A block or a shard takes
# seconds, and a local file shows while it is written.
_LONG_IDLE = 300


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of a job, as `status` returns it. Totals are None until they are known.

    Args:
        stage: `discovering`, `judging`, `tokenizing`, `writing` or `finished`. Judging is what the
            steps of a recipe do before documents are compared.
        files: Files whose blocks are known.
        files_total: Files of the input.
        blocks: Finished token blocks.
        blocks_total: Blocks of the input.
        text_bytes: Text of the finished blocks, in bytes. Before the job has finished, a block's
            size is that of its column in the source file, for .jsonl of the whole file.
        text_bytes_total: Text of the input, in the same measure.
        tokens: Tokens of the finished blocks.
        shards: Finished shards.
        shards_total: Shards of the dataset.
        shards_estimated: Whether `shards_total` is estimated from the tokens so far.
        bytes_per_second: Recent rate of tokenizing, in the measure of `text_bytes`.
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
    shards_estimated: bool
    bytes_per_second: float | None
    seconds_left: float | None
    seconds_idle: float
    splits: dict[str, dict[str, int]] | None = None
    generation: int = 1
    step: str | None = None
    judged: int = 0
    compared: tuple[str, ...] = ()


def status(folder: str | os.PathLike[str]) -> Status:
    """Returns the progress of the job that writes to a folder, wherever the job runs.

    Args:
        folder: The job's output folder, local, `gs://` or `s3://`.

    Returns:
        The Status at this moment. Its `stage` is `discovering`, `judging`, `tokenizing`, `writing`
        or `finished`.

    Raises:
        OutputError: If the folder holds no job.

    Example:
        >>> import fineshards
        >>> status = fineshards.status(dataset_folder)
        >>> status.stage, status.shards
        ('finished', 7)
    """
    return StatusReader(open_storage(os.fspath(folder))).read()


def latest_job(storage: Storage, manifest: Manifest | None) -> Job | None:
    """The job of the latest generation, finished or not; None if there is none.

    manifest: of the latest finished one.
    """
    following = None if manifest is None else Job.load(storage, manifest.generation + 1)
    if following is not None and following.redaction is None:
        return following
    return Job.load(storage) if manifest is None else manifest.job


class StatusReader:
    """Reads the status of one job repeatedly and keeps what cannot change."""

    def __init__(self, storage: Storage) -> None:
        manifest = Manifest.load(storage)
        job = latest_job(storage, manifest)
        if job is None:
            raise OutputError(
                f"{storage.root} holds no fineshards job. Check the folder, or start a job with "
                "fineshards build."
            )
        self._job = job
        self._storage = storage
        self._checkpoints = Checkpoints.of(storage, job)
        self._blocks: dict[int, list[Block]] = {}
        self._layout: Layout | None = None
        # Stages of the recipe that are over: their documents have been compared.
        self._compared = 0
        # What the dataset holds already, if this job makes it grow.
        self._before = manifest if job.generation > 1 else None
        is_finished = manifest is not None and manifest.generation >= job.generation
        self._finished = manifest if is_finished else None

    def read(self, added: bool = False) -> Status:
        """The status at this moment.

        added: once finished, say what the job has added, and not what the dataset holds.
        """
        manifest = self._finished or Manifest.load(self._storage)
        if manifest is not None and manifest.generation >= self._job.generation:
            finished = _finished(manifest)
            return self._only_added(finished, manifest) if added and self._before else finished
        if self._job.format_version != FORMAT_VERSION:
            raise OutputError(
                f"{self._storage.root} holds an unfinished job of an earlier version of "
                f"fineshards (format version {self._job.format_version}, now {FORMAT_VERSION}). "
                "Read its status with the version that started it."
            )
        for file in self._job.new_files:
            if file.index not in self._blocks:
                blocks = self._checkpoints.read_blocks(file.index)
                if blocks is not None:
                    self._blocks[file.index] = blocks
        self._layout = self._layout or self._checkpoints.read_layout()
        done = self._checkpoints.finished_blocks()
        shard_times = self._checkpoints.finished_shards()
        judged = self._judged() if len(self._blocks) == len(self._job.new_files) else None
        return self._status(done, shard_times, judged)

    def _judged(self) -> dict[tuple[int, int], float] | None:
        """When blocks were judged in the present stage of the recipe; None after the last."""
        recipe = self._job.settings.recipe
        while recipe is not None and self._compared < len(recipe.keyed):
            stage = Stage(self._checkpoints, self._compared)
            if stage.marked_files() < len(self._job.new_files):
                return stage.judged_blocks()
            self._compared += 1
        return None

    def _status(
        self,
        done: dict[tuple[int, int], tuple[int, float]],
        shard_times: list[float],
        judged: dict[tuple[int, int], float] | None,
    ) -> Status:
        files_total = len(self._job.new_files)
        # A list, because progress may look in two threads at its end.
        known = list(self._blocks.values())
        sizes = {(b.file, b.index): b.bytes for blocks in known for b in blocks}
        all_known = len(self._blocks) == files_total
        finished = sorted((time_, sizes.get(key, 0)) for key, (_, time_) in done.items())
        text_bytes = sum(size for _, size in finished)
        tokens = sum(count for count, _ in done.values())
        bytes_total = sum(sizes.values()) if all_known else None
        shards_total, estimated = None, False
        if self._layout is not None:
            shards_total = self._layout.windows - self._kept(self._layout)
        elif bytes_total and text_bytes:
            expected = tokens * bytes_total // text_bytes
            shards_total = max(1, self._expected_layout(expected).windows)
            estimated = True
        times = [*(time_ for time_, _ in finished), *shard_times, *(judged or {}).values()]
        rate = _rate(finished)
        seconds_left = None
        if self._layout is not None:
            stage = "writing"
            shard_rate = _rate(sorted((time_, 1) for time_ in shard_times))
            if shard_rate and shards_total is not None:
                seconds_left = (shards_total - len(shard_times)) / shard_rate
        elif judged is not None:
            stage = "judging"
            rate = _rate(sorted((time_, sizes.get(key, 0)) for key, time_ in judged.items()))
            if rate and bytes_total is not None:
                seconds_left = (bytes_total - sum(sizes.get(key, 0) for key in judged)) / rate
        else:
            stage = "tokenizing" if all_known else "discovering"
            if rate and bytes_total is not None:
                seconds_left = (bytes_total - text_bytes) / rate
        return Status(
            stage=stage,
            files=len(self._blocks),
            files_total=files_total,
            blocks=len(done),
            blocks_total=len(sizes) if all_known else None,
            text_bytes=text_bytes,
            text_bytes_total=bytes_total,
            tokens=tokens,
            shards=len(shard_times),
            shards_total=shards_total,
            shards_estimated=estimated,
            bytes_per_second=rate,
            seconds_left=seconds_left,
            seconds_idle=max(0.0, time.time() - self._last_written(times)),
            generation=self._job.generation,
            step=None if judged is None else _compared(self._job)[self._compared],
            judged=len(judged or ()),
            compared=_compared(self._job)[: self._compared],
        )

    def _only_added(self, finished: Status, manifest: Manifest) -> Status:
        assert self._before is not None
        before = _finished(self._before)
        shards = finished.shards - self._kept(manifest.layout)
        blocks = finished.blocks - before.blocks
        return replace(
            finished,
            files=finished.files - before.files,
            files_total=finished.files - before.files,
            blocks=blocks,
            blocks_total=blocks,
            tokens=finished.tokens - before.tokens,
            shards=shards,
            shards_total=shards,
        )

    def _kept(self, layout: Layout) -> int:
        """The number of shards that stay as they are."""
        shards = self._before.shards if self._before else ()
        return sum(
            layout.shard_length(ShardKey(shard.split, shard.index)) == shard.tokens
            for shard in shards
        )

    def _expected_layout(self, tokens: int) -> Layout:
        """The layout of a number of tokens, if documents of both splits are equally long."""
        rule = self._job.settings.split
        streams = [tokens]
        if rule.by_document:
            test = tokens * rule.threshold >> 32
            streams = [test, tokens - test]
        return Layout.plan(streams, self._job.settings.shard_tokens, rule)

    def _last_written(self, finished: list[float]) -> float:
        """When a worker last wrote, in seconds since the epoch; at first, the time of the launch.

        finished: times of finished blocks and shards.
        """
        times = [*finished, *self._written_in(TEMPORARY)]
        if not finished:
            times += self._written_in(f"{self._checkpoints.folder}/files")
        return max(times or self._written_in("metadata"), default=time.time())

    def _written_in(self, folder: str) -> list[float]:
        return [entry.modified for entry in self._storage.entries(folder)]


def _rate(finished: list[tuple[float, int]]) -> float | None:
    """Amount per second over the most recent of a sorted list of (time, amount)."""
    recent = finished[-_RECENT:]
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return None
    return sum(amount for _, amount in recent[1:]) / (recent[-1][0] - recent[0][0])


def _finished(manifest: Manifest) -> Status:
    totals, shards, files = manifest.totals(), len(manifest.shards), len(manifest.files)
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
        shards_estimated=False,
        bytes_per_second=None,
        seconds_left=0.0,
        seconds_idle=0.0,
        splits=manifest.splits(),
        generation=manifest.generation,
        compared=_compared(manifest.job),
    )


def _compared(job: Job) -> tuple[str, ...]:
    """The names of the steps that compare documents."""
    recipe = job.settings.recipe
    return tuple(map(recipe.step_name, recipe.keyed)) if recipe else ()


def describe_status(status: Status) -> list[str]:
    """The status in a few lines."""
    if status.stage == "finished":
        return [
            f"finished: {counted(status.tokens, 'token')} in {counted(status.shards, 'shard')} "
            f"from {counted(status.files, 'file')}"
            + (f"; generation {status.generation}" if status.generation > 1 else ""),
            *describe_splits(status.splits or {}),
        ]
    blocks_total = "?" if status.blocks_total is None else f"{status.blocks_total:,}"
    about = "about " if status.shards_estimated else ""
    shards_total = "?" if status.shards_total is None else f"{about}{status.shards_total:,}"
    lines = [
        status.stage + (f" generation {status.generation}" if status.generation > 1 else ""),
        f"  files   {status.files:,} of {status.files_total:,} read",
        f"  blocks  {status.blocks:,} of {blocks_total}, {counted(status.tokens, 'token')}",
        f"  shards  {status.shards:,} of {shards_total}",
    ]
    if status.step is not None:
        lines.insert(2, f"  judged  {status.judged:,} of {blocks_total} (step {status.step})")
    if status.seconds_idle > _LONG_IDLE:
        return [
            *lines,
            f"no worker has written for {duration(status.seconds_idle)}: it is probably not "
            "running. The same build command resumes it.",
            "This is judged by the times of files. A worker on gs:// shows nothing before a file "
            "is complete.",
        ]
    if status.seconds_left is not None:
        lines.append(f"  left    about {duration(status.seconds_left)} of {status.stage}")
    lines.append(f"  last    written {duration(status.seconds_idle)} ago")
    return lines
