"""The progress of a job, read from its output folder alone, wherever the job runs."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from fineshards.errors import OutputError
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import Block
from fineshards.shards.job.runs import RemoteRun, is_running, seconds_running
from fineshards.shards.layout import Layout
from fineshards.shards.tables.verdicts import StageFiles
from fineshards.shards.token_blocks import SHARDS
from fineshards.storage.base import TEMPORARY, Storage
from fineshards.storage.open import open_storage

# Each stage of a job: its name while it runs, and its unit.
_STAGES = {
    "read": ("discovering", "file"),
    "judge": ("judging", "block"),
    "tokenize": ("tokenizing", "block"),
    "shuffle": ("shuffling", "token"),
    "write": ("writing", "shard"),
}
# A rate is that of this many files, or of the last minute if that had more. The mean since the
# first start would be worse: that may have been days and several restarts ago.
FEW = 50
_SECONDS = 60
_LEAST_SECONDS = 0.5
# Seconds without a written file after which a job is probably not running. A block or a shard takes
# seconds, and a local file shows while it is written.
LONG_IDLE = 300


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a job.

    Args:
        name: `read`, `judge`, `tokenize`, `shuffle` or `write`. A recipe is judged once for each
            step that compares documents.
        state: `done`, `now` or `later`. On some runners a later stage has begun.
        done: What is finished, in `unit`.
        total: The whole amount; None until it is known. If all blocks of a step are judged, their
            documents are compared.
        unit: `file`, `block`, `token` or `shard`.
        step: The step of the recipe that compares what is judged, such as `2 minhash`.
        rate: Recently finished in a second: tokens, of judging bytes of text. None in other stages,
            until it can be measured, and of a job that does not run.
        seconds_left: Estimated time to the end of this stage; None as the rate is.
    """

    name: str
    state: str
    done: int
    total: int | None
    unit: str
    step: str | None = None
    rate: float | None = None
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of a job, as `status` returns it.

    Args:
        stage: `discovering`, `judging`, `tokenizing`, `shuffling`, `writing` or `finished`. Judging
            is what the steps of a recipe do before documents are compared.
        stages: The stages that the job passes, in order.
        tokens: Tokens of the finished blocks.
        tokens_expected: Tokens of all blocks, as estimated from their text, while these are
            tokenized.
        seconds_idle: Time since a worker last wrote a file, or since the launch, by the times of
            the files. 0 if finished.
        splits: Shards, documents and tokens of `test` and `train`; None until the job has finished.
        generation: The generation of the dataset that the job makes, or made last. Beyond the
            first, stages and tokens are those of what it adds, until it has finished.
        job_id: The job's id on Dataflow; None elsewhere, and once it has finished.
        console: The address of that job's page in Google's console.
        running: Whether processes on this machine work on it; None where that is not known, as on
            object storage.
        seconds_running: How long they have worked since they last began; None if they do not.

    Example:
        >>> import fineshards
        >>> status = fineshards.status(dataset_folder)
        >>> status.tokens, status.of("read").done
        (665971, 1)
    """

    stage: str
    stages: tuple[Stage, ...]
    tokens: int
    tokens_expected: int | None = None
    seconds_idle: float = 0.0
    splits: dict[str, dict[str, int]] | None = None
    generation: int = 1
    job_id: str | None = None
    console: str | None = None
    running: bool | None = None
    seconds_running: float | None = None

    @property
    def now(self) -> Stage | None:
        """The present stage; None if the job has finished."""
        return next((stage for stage in self.stages if stage.state == "now"), None)

    def of(self, name: str) -> Stage:
        """The stage of a name; of several the first."""
        return next(stage for stage in self.stages if stage.name == name)


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
        >>> status.stage, status.of("write").done
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
        # The contents before this job, if it makes a dataset grow.
        self._before = None if is_finished else manifest
        self._since = time.time() if from_now else 0.0

    def read(self, added: bool = False) -> Status:
        """The status at this moment; raises OutputError if the job is gone.

        added: once finished, say what the job has added, and not what the dataset holds.
        """
        manifest = self._finished or Manifest.load(self._storage)
        if manifest is not None and manifest.generation >= self._job.generation:
            return _finished(manifest, self._before if added else None)
        self._check_record()
        if len(self._blocks) < len(self._job.new_files):
            self._blocks |= self._checkpoints.read_new_blocks(self._blocks)
        self._layout = self._layout or self._checkpoints.read_layout()
        status = self._listed()
        where = self._storage, self._checkpoints.folder
        if (run := RemoteRun.load(*where)) is not None:
            return replace(status, job_id=run.job_id, console=run.console)
        running = is_running(*where)
        if running is not False:
            elapsed = seconds_running(*where) if running else None
            return replace(status, running=running, seconds_running=elapsed)
        stages = tuple(replace(stage, rate=None, seconds_left=None) for stage in status.stages)
        return replace(status, running=False, stages=stages)

    def _finished_blocks(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Finished blocks, as of Checkpoints; not listed any more once the layout is there."""
        if self._done is not None:
            return self._done
        every = [(block.file, block.index) for blocks in self._blocks.values() for block in blocks]
        if self._layout is not None and not self._storage.on_disk:
            # A million names take a minute to list. The plan says that all blocks are finished.
            done = dict.fromkeys(every, (0, self._checkpoints.planned_at()))
        else:
            done = self._checkpoints.blocks.finished_blocks(files=len(self._job.files))
        if self._layout is not None and len(done) >= len(every):
            self._done = done
        return done

    def _check_record(self) -> None:
        """Raises OutputError if the job is gone. A record that was only copied or touched is it."""
        if (version := self._storage.version(self._job.record_name)) == self._record:
            return
        now = None if version is None else Job.load(self._storage, self._job.generation)
        if now is None or now.fingerprint() != self._job.fingerprint():
            raise OutputError(
                f"{self._storage.root} does not hold this job any more: it was deleted, or another "
                "one took its place. fineshards status shows what is there now."
            )
        self._record = version

    def _judged(self) -> dict[tuple[int, int], float] | None:
        """When blocks were judged in the present stage of the recipe; None after the last stage."""
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
        """The finished amounts, the totals, and the rate of the present stage."""
        files, shuffles = len(self._job.new_files), self._job.settings.shuffle is not None
        # A list, because progress may look in two threads at its end.
        listed = list(self._blocks.values())
        sizes = {(b.file, b.index): b.bytes for blocks in listed for b in blocks}
        all_listed = len(listed) == files
        judged = self._judged() if all_listed else None
        done, shards = self._finished_blocks(), [*self._checkpoints.ledger.list(SHARDS).values()]
        tokens, shards_total = sum(count for count, _ in done.values()), None
        # Of the present stage: finished pieces as (time, amount), those of the rate, the total.
        pieces = [(time_, sizes.get(key, 0)) for key, (_, time_) in done.items()]
        rated, total = [(time_, count) for count, time_ in done.values()], sum(sizes.values())
        text, shuffled, expected = sum(amount for _, amount in pieces), 0, None
        if self._layout is not None:
            before = self._before and self._before.layout
            tokens = self._layout.tokens - (before.tokens if before else 0)
            shards_total = self._layout.windows - (before.windows if before else 0)
            stage, total, shuffled = "writing", shards_total, tokens
            pieces = [(time_, 1) for time_ in shards]
        elif judged is not None:
            stage = "judging"
            pieces = rated = [(time_, sizes.get(key, 0)) for key, time_ in judged.items()]
        elif all_listed and shuffles and 0 < len(done) == len(sizes):
            stage, total = "shuffling", tokens
            buckets = self._checkpoints.blocks.finished_blocks("buckets").values()
            pieces = rated = [(time_, count) for count, time_ in buckets]
            # Buckets of another size may be left from an earlier run.
            shuffled = min(tokens, sum(count for count, _ in buckets))
        elif all_listed:
            stage = "tokenizing"
            expected = tokens * total // text if 0 < text < total else None
        else:
            stage = "discovering"
        began = self._began(stage, [time_ for _, time_ in done.values()])
        speed = self._rate(pieces, began) if all_listed else None
        if stage == "judging" and len(pieces) == len(sizes):
            speed = None  # no rate says how long it takes to compare documents
        blocks = len(sizes) if all_listed else None
        amounts = {
            "read": (len(listed), files),
            "judge": (len(judged or ()), blocks),
            "tokenize": (len(done), blocks),
            "shuffle": (shuffled, tokens if stage in ("shuffling", "writing") else None),
            "write": (len(shards), shards_total),
        }
        stages = _stages(self._job, amounts, stage, self._compared)
        if speed:
            left = max(0, total - sum(amount for _, amount in pieces)) / speed
            rate = None if stage == "writing" else self._rate(rated, began)
            stages = tuple(
                replace(one, rate=rate, seconds_left=left) if one.state == "now" else one
                for one in stages
            )
        return Status(
            stage=stage,
            stages=stages,
            tokens=tokens,
            tokens_expected=expected,
            seconds_idle=self._idle(began, [*pieces, *((time_, 0) for _, time_ in done.values())]),
            generation=self._job.generation,
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
        return _recent_rate([entry for entry in finished if entry[0] > self._since], began)

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


def _finished(manifest: Manifest, before: Manifest | None = None) -> Status:
    """The status of a finished job. before: what the dataset held already, which does not count."""

    def added(count: Callable[[Manifest], int]) -> int:
        return count(manifest) - (count(before) if before else 0)

    blocks = added(lambda of: of.totals["blocks"])
    tokens = added(lambda of: of.totals["tokens"])
    files, shards = added(lambda of: len(of.files)), added(lambda of: len(of.shards))
    done = {"read": files, "judge": blocks, "tokenize": blocks, "shuffle": tokens, "write": shards}
    return Status(
        stage="finished",
        stages=_stages(manifest.job, {name: (count, count) for name, count in done.items()}),
        tokens=tokens,
        splits=manifest.splits,
        generation=manifest.generation,
    )


def _stages(
    job: Job,
    amounts: Mapping[str, tuple[int, int | None]],
    present: str = "finished",
    compared: int = 0,
) -> tuple[Stage, ...]:
    """The stages that a job passes, with what is done of each, and of how much.

    compared: the steps of the recipe that have compared documents, before the present one.
    """
    shuffle = [("shuffle", None)] if job.settings.shuffle is not None else []
    judge = [("judge", step) for step in _compared(job)]
    names = [("read", None), *judge, ("tokenize", None), *shuffle, ("write", None)]
    doing = [_STAGES[name][0] for name, _ in names] + ["finished"]
    now = doing.index(present) + (compared if present == "judging" else 0)
    stages = []
    for number, (name, step) in enumerate(names):
        done, total = amounts[name]
        if name == "judge" and number != now:
            done = (total or 0) if number < now else 0
        state = "done" if number < now else "now" if number == now else "later"
        stages.append(Stage(name, state, done, total, _STAGES[name][1], step))
    return tuple(stages)


def _compared(job: Job) -> tuple[str, ...]:
    """The names of the steps that compare documents."""
    recipe = job.settings.recipe
    return tuple(map(recipe.step_name, recipe.keyed)) if recipe else ()
