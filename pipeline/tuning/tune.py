"""`fineshards tune`: which flags make a build of this input on this machine the quickest.

It copies a sample of the input and builds it again and again, each time with other settings, by
the command that it then advises, without its head start. In order: look at the input; build next
to nothing, for the time of start-up; build a little, for the rate; copy a sample that keeps a build
at work for some seconds; search.
"""

from __future__ import annotations

import glob
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console

from fineshards.config import DEFAULT_SHARD_TOKENS
from fineshards.errors import FineshardsError, UsageError
from fineshards.pipeline.launch import columns_of, default_block_bytes, find_input
from fineshards.pipeline.options import TuneOptions
from fineshards.pipeline.terminal import INTERRUPTED
from fineshards.pipeline.tuning.estimates import Costs, Expectation, Seen, expect
from fineshards.pipeline.tuning.report import Advice, Sampled, Tried, print_advice, print_json
from fineshards.pipeline.tuning.setting_search import BLOCK_SIZES, Room, Setting, advise, search
from fineshards.pipeline.tuning.trial_builds import Trial, run_trial
from fineshards.sources.probe import Probe, ProbeLimits, copy_probe, survey

# Parts of the time for looking at the input and for copying from it; the rest is for builds.
_LOOK_SHARE = 0.1
_COPY_SHARE = 0.2
# Inputs that are built in no time: so small, or with so little work besides the start-up.
_SMALL_BYTES = 8 << 20
_SMALL_SECONDS = 2.0
# A build of the sample should work for so many seconds. Less would not only drown in noise: an
# encoder that begins is slow until it has seen the common words (gigatoken begins anew every four
# seconds), so that a short build favours few workers and tells nothing of a long one.
_LEAST_WORK = 4.0
# How much quicker than at its beginning a build becomes, about.
_WARMING = 1.5
_MOST_WORK = 20.0
_TINY_BYTES = 64 << 10
# A worker's part of the first build with a rate.
_PROBE_BYTES = 8 << 20
_PROBE_MOST_BYTES = 256 << 20
# What a build of the sample leaves on the disk, in bytes a byte of text: the sample itself and its
# tokens twice. It must not be more than this share of what is free.
_DISK_BYTES = 4
_DISK_SHARE = 0.5


def tune(options: TuneOptions) -> int:
    """Tries settings, prints what to use and what to expect; returns the exit code.

    Raises FineshardsError for an input that cannot be read. Leaves nothing behind, also when it is
    interrupted or terminated.
    """
    console = Console(stderr=True)

    def tell(message: str) -> None:
        console.print(message, highlight=False, soft_wrap=True, markup=False)

    try:
        with _terminated_as_interrupted(), _work_folder(options.work) as folder:
            advice = _Tuning(options, folder, tell).advise()
    except KeyboardInterrupt:
        print("fineshards: interrupted; what was tried is removed.", file=sys.stderr)
        return INTERRUPTED
    (print_json if options.json else print_advice)(advice)
    return 0


@dataclass
class _Tuning:
    """One run of the command. Sizes are in the measure of `Block.bytes`, unless they say text."""

    options: TuneOptions
    folder: str
    tell: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)
    cores: int = os.cpu_count() or 1
    trials: dict[Setting, list[Trial]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    builds: int = 0

    def advise(self) -> Advice:
        """Does all of it."""
        load = os.getloadavg()[0]
        if load > self.cores / 2:
            self.notes.append(
                f"the machine does other work too (load {load:.1f} on {self.cores} cores), which "
                "makes rates lower and less certain"
            )
        files, _ = find_input(self.options.config)
        self.default_block = default_block_bytes(files)
        self.survey = survey(
            files, columns_of(self.options.config), self.options.seconds * _LOOK_SHARE
        )
        self.totals = {name: self.survey.total(name) for name in {file.format for file in files}}
        self.total = sum(self.totals.values())
        # Read in any case: it is where bad rows are found.
        tiny = self._copy("tiny", _TINY_BYTES, 0.0)
        if self.total <= _SMALL_BYTES:
            return self._small()
        self.tell("measuring the start-up …")
        self.nothing = self._build(self._flags(tiny), Setting())
        probe = self._copy(
            "probe",
            min(_PROBE_BYTES * self.cores, _PROBE_MOST_BYTES, self._room_on_disk()),
            self.options.seconds * _COPY_SHARE / 2,
        )
        # Small blocks, so that there is one for every worker.
        roughly = Setting(block_bytes=max(probe.bytes // (4 * self.cores), 1))
        self.tell("measuring the rate, roughly …")
        trial = self._build(self._flags(probe), roughly)
        rate = probe.bytes / self._work(trial)
        if self.total / rate < _SMALL_SECONDS:
            return self._small()
        left = self._left() - self.options.seconds * _COPY_SHARE
        if left < self.nothing.wall + _LEAST_WORK:
            self.trials[Setting()] = [trial]
            self.notes.append(
                f"{self.options.seconds:.0f} seconds were enough for a rough measurement of the "
                "defaults only, and of the slow beginning; a larger --seconds tells more"
            )
            return self._advice(probe, Setting(), small=False)
        return self._search(rate, left)

    def _small(self) -> Advice:
        """One build of the input itself, which takes little more than its start-up."""
        self.tell("the input is small: building it once …")
        trial = self._build(self.options.given, Setting())
        self.nothing = trial
        self.trials = {Setting(): [trial]}
        return self._advice(None, Setting(), small=True)

    def _search(self, rate: float, left: float) -> Advice:
        sizes = {*BLOCK_SIZES, self.default_block}
        room = Room(
            self.cores, self.default_block, {size: self.survey.blocks(size) for size in sizes}
        )
        builds = 3 + len(room.worker_counts()) + len(room.block_sizes(self.cores))
        work = min(max(left / builds - self.nothing.wall, _LEAST_WORK), _MOST_WORK)
        self.tell("copying a sample …")
        # A block for every worker at least, and for twice as many unless that takes too long.
        blocks = self.cores * self.default_block
        size = max(round(rate * _WARMING * work), blocks * 5 // 4)
        if blocks * 9 // 4 < 3 * size // 2:
            size = max(size, blocks * 9 // 4)
        sample = self._copy(
            "sample", min(size, self._room_on_disk()), self.options.seconds * _COPY_SHARE
        )
        rates = search(room, partial(self._measure, sample))
        return self._advice(sample, advise(rates), small=False)

    def _measure(self, sample: Probe, setting: Setting, runs: int) -> float | None:
        """Builds the sample with a setting; see `search.Measure`."""
        first = not self.trials
        what = self._describe(setting)
        deadline = float("inf")
        if not first:
            deadline = self.began + self.options.seconds
            usual = max(trial.wall for trial in self.trials[Setting()])
            if usual * runs > self._left():
                self._note_time()
                return None
            if self._sample_blocks(sample, setting) < self._useful_workers(setting):
                self.notes.append(
                    f"not tried: {what}, for which the sample of {sample.bytes / 1e6:,.0f} MB has "
                    "too few blocks; a larger --seconds makes it larger"
                )
                return None
        self.tell(f"trying {what} …")
        try:
            trial = self._build_until(self._flags(sample), setting, deadline)
        except FineshardsError as error:
            if first:
                raise
            self.notes.append(f"{what}: {error}")
            return None
        if trial is None:
            self._note_time()
            return None
        if trial.blocks < self._useful_workers(setting):
            self.notes.append(
                f"{what}: the sample of {sample.bytes / 1e6:,.0f} MB had only {trial.blocks} "
                f"blocks to work on; a larger --seconds makes it larger"
            )
            if not first:
                return None
        self.trials.setdefault(setting, []).append(trial)
        return self._rate(trial)

    def _build(self, flags: Sequence[str], setting: Setting) -> Trial:
        trial = self._build_until(flags, setting, float("inf"))
        assert trial is not None, "no deadline"
        return trial

    def _build_until(self, flags: Sequence[str], setting: Setting, deadline: float) -> Trial | None:
        self.builds += 1
        flags = [*flags, *setting.flags()]
        if not setting.block_bytes:
            # By itself, build would go by the size of the sample.
            flags.append(f"--block_bytes={self.default_block}")
        output = os.path.join(self.folder, f"build-{self.builds}")
        return run_trial(flags, output, self._workers(setting), deadline)

    def _copy(self, name: str, size: int, seconds: float) -> Probe:
        folder = os.path.join(self.folder, name)
        os.mkdir(folder)
        # Some blocks for each worker, even if the input's row groups are huge; and files of JSON
        # lines, which are blocks, as many as workers can be busy with, if there are so many.
        limits = ProbeLimits(
            size=size,
            group_bytes=max(size // (4 * self.cores), _TINY_BYTES),
            line_files=4 * self.cores,
            seconds=seconds,
            max_bad_rows=self.options.config.max_bad_rows,
        )
        return copy_probe(self.survey, columns_of(self.options.config), folder, limits)

    def _flags(self, sample: Probe) -> list[str]:
        """The flags that build a sample: as given, but another input, many shards, no head start.

        The whole input has many shards, so that all workers have some to write. A head start, which
        the number of workers prevents, would belong to the start-up with the defaults only.
        """
        pattern = os.path.join(glob.escape(os.path.dirname(sample.parts[0].path)), "*")
        rest = [
            flag for flag in self.options.given if not flag.startswith(("--input", "--dataset"))
        ]
        # Tokens have about four bytes.
        shard_tokens = min(max(sample.bytes // (16 * self.cores), 1), DEFAULT_SHARD_TOKENS)
        made = [f"--input={pattern}", f"--shard_tokens={shard_tokens}"]
        return [*rest, *made, f"--direct_num_workers={self.cores}"]

    def _workers(self, setting: Setting) -> int:
        return setting.workers or self.cores

    def _describe(self, setting: Setting) -> str:
        # Files of JSON lines are not divided, whatever the block size.
        divided = "parquet" in self.totals
        return setting.describe(self.cores, self.default_block if divided else None)

    def _useful_workers(self, setting: Setting) -> int:
        """Workers that the whole input keeps busy."""
        blocks = self.survey.blocks(setting.block_bytes or self.default_block)
        return min(self._workers(setting), blocks)

    def _sample_blocks(self, sample: Probe, setting: Setting) -> int:
        """Blocks of the sample, about."""
        size = setting.block_bytes or self.default_block
        in_parquet = sum(part.bytes for part in sample.parts if part.format == "parquet")
        return -(-in_parquet // size) + sum(part.format == "jsonl" for part in sample.parts)

    def _note_time(self) -> None:
        self.notes.append("there was not time for all settings; a larger --seconds has more")

    def _left(self) -> float:
        """Seconds left to try."""
        return self.began + self.options.seconds - time.monotonic()

    def _room_on_disk(self) -> int:
        """The largest sample that the work folder can take."""
        return int(shutil.disk_usage(self.folder).free * _DISK_SHARE / _DISK_BYTES)

    def _work(self, trial: Trial) -> float:
        """Seconds of a build's work, without what a build of nothing takes; never nothing."""
        return max(trial.work - self.nothing.work, trial.work / 10, 1e-3)

    def _rate(self, trial: Trial) -> float:
        return trial.tokens / self._work(trial)

    def _advice(self, sample: Probe | None, setting: Setting, small: bool) -> Advice:
        """What is printed; no sample stands for the input itself."""
        best = self.trials[setting]
        trial = best[0]
        expected = (
            Expectation.of_build(trial.text_bytes, trial.tokens, trial.token_bytes, trial.wall)
            if sample is None
            else self._expect(sample, setting, best)
        )
        flags = setting.flags()
        text_share = trial.text_bytes / max(trial.tokens, 1)
        return Advice(
            small=small,
            command=("fineshards", "build", *self.options.given, "--output=out", *flags),
            flags=tuple(flags),
            tried=tuple(
                Tried(
                    what=self._describe(tried),
                    flags=tuple(tried.flags()),
                    advised=tried == setting,
                    tokens_per_second=tuple(self._rate(run) for run in runs),
                    text_bytes_per_token=text_share,
                )
                for tried, runs in self.trials.items()
            ),
            start_up_seconds=self.nothing.wall,
            sample=Sampled(
                files=len(self.survey.files) if sample is None else sample.files,
                files_total=len(self.survey.files),
                text_bytes=trial.text_bytes,
                tokens=trial.tokens,
                copying_seconds=0.0 if sample is None else sample.seconds,
            ),
            input_known=self.survey.exact and "jsonl" not in self.totals,
            expected=expected,
            peak_memory_bytes=max(run.peak_bytes for run in best),
            notes=tuple(dict.fromkeys(self.notes)),
            seconds=time.monotonic() - self.began,
        )

    def _expect(self, sample: Probe, setting: Setting, runs: Sequence[Trial]) -> Expectation:
        trial = runs[0]
        seen = {
            name: Seen(
                bytes=sum(part.bytes for part in parts),
                text_bytes=sum(trial.by_file[part.path][0] for part in parts),
                tokens=sum(trial.by_file[part.path][1] for part in parts),
            )
            for name in self.totals
            if (parts := [part for part in sample.parts if part.format == name])
        }
        reading = None
        if any("://" in file.path for file in self.survey.files):
            reading = sample.bytes / max(sample.seconds, 1e-3)
            self.notes.append(
                f"the input is elsewhere, the sample was not: reading it at {reading / 1e6:,.1f} "
                "MB of text a second and worker, as copying the sample did, is part of what to "
                "expect, but not of the rates; more workers may help"
            )
        workers = self._workers(setting)
        largest = max(block.bytes for blocks in self.survey.seen.values() for block in blocks)
        if "parquet" in self.totals:
            largest = max(largest, setting.block_bytes or self.default_block)
        costs = Costs(
            start_up=self.nothing.wall,
            discovery=self.survey.seconds_per_file * len(self.survey.files) / workers,
            rate=sum(map(self._rate, runs)) / len(runs),
            # Fewer, if the input has not blocks enough to keep more of them busy.
            workers=min(workers, trial.blocks),
            reading=reading,
            largest=min(largest / max(self.total, 1), 1.0),
        )
        return expect(self.totals, seen, costs, trial.token_bytes)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Being told to end (by `timeout`, say) is an interruption, after which we clean up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _work_folder(inside: str | None) -> Iterator[str]:
    """A new folder that is removed in the end; raises UsageError if there cannot be one."""
    try:
        folder = tempfile.mkdtemp(prefix="fineshards-tune-", dir=inside)
    except OSError as error:
        raise UsageError(
            f"--work {inside or tempfile.gettempdir()}: no folder can be made there: "
            f"{error.strerror}. Name another folder with --work."
        ) from error
    try:
        yield os.path.abspath(folder)
    finally:
        # An impatient second Ctrl-C would leave the rest.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGINT, before)
