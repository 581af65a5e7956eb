"""`fineshards tune`: finds the fastest flags for a build of this input on this machine.

It copies a probe of the input and builds it repeatedly with different settings, by the command that
it advises in the end, without its head start. The order: read the input's metadata; build a tiny
input, to time start-up; build a small one, for a rough rate; copy a probe that takes some seconds
to build; search.
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

from fineshards.commands.wording import counted
from fineshards.config import DEFAULT_SHARD_TOKENS
from fineshards.errors import FineshardsError, UsageError
from fineshards.pipeline.launch import columns_of, default_block_bytes, find_input
from fineshards.pipeline.options import TuneOptions
from fineshards.pipeline.terminal import INTERRUPTED
from fineshards.pipeline.tuning.estimates import Costs, Expectation, FormatTotals, expect
from fineshards.pipeline.tuning.report import Advice, Sampled, Tried, print_advice, print_json
from fineshards.pipeline.tuning.setting_search import BLOCK_SIZES, Room, Setting, advise, search
from fineshards.pipeline.tuning.trial_builds import Trial, run_trial
from fineshards.sources.probe import Probe, ProbeLimits, copy_probe, survey

# Shares of the time for reading the metadata and for copying; the rest is for builds.
_LOOK_SHARE = 0.1
_COPY_SHARE = 0.2
# An input is small if it has less text than this, or less work besides start-up.
_SMALL_BYTES = 8 << 20
_SMALL_SECONDS = 2.0
# A build of the probe should work for at least this many seconds. Shorter builds are noisy. They
# also favour few workers: a new encoder is slow until it has seen the common words, and gigatoken
# starts again every four seconds.
_LEAST_WORK = 4.0
_MOST_WORK = 20.0
# About how much faster a build becomes after its first seconds.
_WARMING = 1.5
_TINY_BYTES = 64 << 10
# Text per worker in the build for the rough rate, and in all.
_ROUGH_BYTES = 8 << 20
_ROUGH_MOST_BYTES = 256 << 20
# Disk space of a trial, in bytes per byte of text: the probe itself and its tokens twice. It must
# not be more than this share of the free space.
_DISK_BYTES = 4
_DISK_SHARE = 0.5


def tune(options: TuneOptions) -> int:
    """Tries settings, prints what to use and what to expect; returns the exit code.

    Raises FineshardsError for an input that cannot be read. Removes all its files, even if it is
    interrupted or terminated.
    """
    console = Console(stderr=True)

    def show(message: str) -> None:
        console.print(message, highlight=False, soft_wrap=True, markup=False)

    try:
        with _terminated_as_interrupted(), _work_folder(options.work) as folder:
            advice = _Tuning(options, folder, show).advise()
    except KeyboardInterrupt:
        print("fineshards: interrupted. All files of the trials are removed.", file=sys.stderr)
        return INTERRUPTED
    (print_json if options.json else print_advice)(advice)
    return 0


@dataclass
class _Tuning:
    """One run of the command. Sizes are in the measure of `Block.bytes`, unless they say text."""

    options: TuneOptions
    folder: str
    show: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)
    cores: int = os.cpu_count() or 1
    trials: dict[Setting, list[Trial]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    builds: int = 0

    def advise(self) -> Advice:
        """Runs all steps."""
        load = os.getloadavg()[0]
        if load > self.cores / 2:
            self.notes.append(
                f"the machine is busy with other work (load {load:.1f} on "
                f"{counted(self.cores, 'core')}), which makes rates lower and less certain"
            )
        files, _ = find_input(self.options.config)
        self.default_block = default_block_bytes(files)
        self.survey = survey(
            files, columns_of(self.options.config), self.options.seconds * _LOOK_SHARE
        )
        self.totals = {name: self.survey.total(name) for name in {file.format for file in files}}
        self.total = sum(self.totals.values())
        # Copied in any case, because bad rows are found here.
        tiny = self._copy("tiny", _TINY_BYTES, 0.0)
        if self.total <= _SMALL_BYTES:
            return self._small()
        self.show("measuring start-up …")
        self.start_up = self._build(self._flags(tiny), Setting())
        rough = self._copy(
            "rough",
            min(_ROUGH_BYTES * self.cores, _ROUGH_MOST_BYTES, self._room_on_disk()),
            self.options.seconds * _COPY_SHARE / 2,
        )
        # Small blocks, so that there is one for every worker.
        small_blocks = Setting(block_bytes=max(rough.bytes // (4 * self.cores), 1))
        self.show("measuring a rough rate …")
        trial = self._build(self._flags(rough), small_blocks)
        rate = rough.bytes / self._work(trial)
        if self.total / rate < _SMALL_SECONDS:
            return self._small()
        left = self._left() - self.options.seconds * _COPY_SHARE
        if left < self.start_up.wall + _LEAST_WORK:
            self.trials[Setting()] = [trial]
            self.notes.append(
                f"{self.options.seconds:.0f} s were only enough for a rough rate of the defaults, "
                "from the slow start of a build; give more --seconds to try settings"
            )
            return self._advice(rough, Setting(), small=False)
        return self._search(rate, left)

    def _small(self) -> Advice:
        """Builds the input itself once, which takes little more than start-up."""
        self.show("the input is small: building it once …")
        trial = self._build(self.options.given, Setting())
        self.start_up = trial
        self.trials = {Setting(): [trial]}
        return self._advice(None, Setting(), small=True)

    def _search(self, rate: float, left: float) -> Advice:
        sizes = {*BLOCK_SIZES, self.default_block}
        room = Room(
            self.cores, self.default_block, {size: self.survey.blocks(size) for size in sizes}
        )
        builds = 3 + len(room.worker_counts()) + len(room.block_sizes(self.cores))
        work = min(max(left / builds - self.start_up.wall, _LEAST_WORK), _MOST_WORK)
        self.show("copying a probe …")
        # At least one block per worker, and two unless that takes too long.
        blocks = self.cores * self.default_block
        size = max(round(rate * _WARMING * work), blocks * 5 // 4)
        if blocks * 9 // 4 < 3 * size // 2:
            size = max(size, blocks * 9 // 4)
        probe = self._copy(
            "probe", min(size, self._room_on_disk()), self.options.seconds * _COPY_SHARE
        )
        rates = search(room, partial(self._measure, probe))
        return self._advice(probe, advise(rates), small=False)

    def _measure(self, probe: Probe, setting: Setting, runs: int) -> float | None:
        """Builds the probe with a setting; see `setting_search.Measure`."""
        first = not self.trials
        what = self._describe(setting)
        deadline = float("inf")
        if not first:
            deadline = self.began + self.options.seconds
            usual = max(trial.wall for trial in self.trials[Setting()])
            if usual * runs > self._left():
                self._note_time()
                return None
            if self._probe_blocks(probe, setting) < self._useful_workers(setting):
                self.notes.append(
                    f"not tried: {what}, because the probe of {probe.bytes / 1e6:,.0f} MB has too "
                    "few blocks for it; give more --seconds for a larger probe"
                )
                return None
        self.show(f"trying {what} …")
        try:
            trial = self._build_until(self._flags(probe), setting, deadline)
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
                f"{what}: the probe of {probe.bytes / 1e6:,.0f} MB had only "
                f"{counted(trial.blocks, 'block')}; give more --seconds for a larger probe"
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
            # The default of build would depend on the size of the probe.
            flags.append(f"--block_bytes={self.default_block}")
        output = os.path.join(self.folder, f"build-{self.builds}")
        return run_trial(flags, output, self._workers(setting), deadline)

    def _copy(self, name: str, size: int, seconds: float) -> Probe:
        folder = os.path.join(self.folder, name)
        os.mkdir(folder)
        # Some blocks for each worker, even if the input's row groups are huge. Files of JSON lines
        # are blocks themselves, so as many as keep all workers busy, if there are as many.
        limits = ProbeLimits(
            size=size,
            group_bytes=max(size // (4 * self.cores), _TINY_BYTES),
            line_files=4 * self.cores,
            seconds=seconds,
            max_bad_rows=self.options.config.max_bad_rows,
        )
        return copy_probe(self.survey, columns_of(self.options.config), folder, limits)

    def _flags(self, probe: Probe) -> list[str]:
        """The flags to build a probe: those given, but another input, many shards, no head start.

        The whole input has many shards, so all workers have shards to write. A head start would be
        part of start-up with the defaults only; giving a number of workers prevents it.
        """
        pattern = os.path.join(glob.escape(os.path.dirname(probe.parts[0].path)), "*")
        rest = [
            flag for flag in self.options.given if not flag.startswith(("--input", "--dataset"))
        ]
        # A token is about four bytes of text.
        shard_tokens = min(max(probe.bytes // (16 * self.cores), 1), DEFAULT_SHARD_TOKENS)
        made = [f"--input={pattern}", f"--shard_tokens={shard_tokens}"]
        return [*rest, *made, f"--direct_num_workers={self.cores}"]

    def _workers(self, setting: Setting) -> int:
        return setting.workers or self.cores

    def _describe(self, setting: Setting) -> str:
        # Files of JSON lines are not divided into blocks.
        divided = "parquet" in self.totals
        return setting.describe(self.cores, self.default_block if divided else None)

    def _useful_workers(self, setting: Setting) -> int:
        """How many workers the whole input keeps busy."""
        blocks = self.survey.blocks(setting.block_bytes or self.default_block)
        return min(self._workers(setting), blocks)

    def _probe_blocks(self, probe: Probe, setting: Setting) -> int:
        """Blocks of the probe, estimated."""
        size = setting.block_bytes or self.default_block
        in_parquet = sum(part.bytes for part in probe.parts if part.format == "parquet")
        return -(-in_parquet // size) + sum(part.format == "jsonl" for part in probe.parts)

    def _note_time(self) -> None:
        self.notes.append(
            "there was not enough time for all settings; give more --seconds to try them"
        )

    def _left(self) -> float:
        """Seconds left for trials."""
        return self.began + self.options.seconds - time.monotonic()

    def _room_on_disk(self) -> int:
        """The largest probe, in bytes, that fits on the disk of the work folder."""
        return int(shutil.disk_usage(self.folder).free * _DISK_SHARE / _DISK_BYTES)

    def _work(self, trial: Trial) -> float:
        """Seconds of a build's work, less those of a tiny build; always positive."""
        return max(trial.work - self.start_up.work, trial.work / 10, 1e-3)

    def _rate(self, trial: Trial) -> float:
        return trial.tokens / self._work(trial)

    def _advice(self, probe: Probe | None, setting: Setting, small: bool) -> Advice:
        """The result; probe is None if the input itself was built."""
        best = self.trials[setting]
        trial = best[0]
        expected = (
            Expectation.of_build(trial.text_bytes, trial.tokens, trial.token_bytes, trial.wall)
            if probe is None
            else self._expect(probe, setting, best)
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
            start_up_seconds=self.start_up.wall,
            sample=Sampled(
                files=len(self.survey.files) if probe is None else probe.files,
                files_total=len(self.survey.files),
                text_bytes=trial.text_bytes,
                tokens=trial.tokens,
                copying_seconds=0.0 if probe is None else probe.seconds,
            ),
            input_known=self.survey.exact and "jsonl" not in self.totals,
            expected=expected,
            peak_memory_bytes=max(run.peak_bytes for run in best),
            notes=tuple(dict.fromkeys(self.notes)),
            seconds=time.monotonic() - self.began,
        )

    def _expect(self, probe: Probe, setting: Setting, runs: Sequence[Trial]) -> Expectation:
        trial = runs[0]
        by_format = {
            name: FormatTotals(
                bytes=sum(part.bytes for part in parts),
                text_bytes=sum(trial.by_file[part.path][0] for part in parts),
                tokens=sum(trial.by_file[part.path][1] for part in parts),
            )
            for name in self.totals
            if (parts := [part for part in probe.parts if part.format == name])
        }
        reading = None
        if any("://" in file.path for file in self.survey.files):
            reading = probe.bytes / max(probe.seconds, 1e-3)
            self.notes.append(
                "the input is remote and the probe was local. The expected time includes reading "
                f"the input at {reading / 1e6:,.1f} MB/s of text per worker, the rate at which the "
                "probe was copied; the rates above do not. More workers may help"
            )
        workers = self._workers(setting)
        largest = max(block.bytes for blocks in self.survey.seen.values() for block in blocks)
        if "parquet" in self.totals:
            largest = max(largest, setting.block_bytes or self.default_block)
        costs = Costs(
            start_up=self.start_up.wall,
            discovery=self.survey.seconds_per_file * len(self.survey.files) / workers,
            rate=sum(map(self._rate, runs)) / len(runs),
            # Fewer if the input has too few blocks to keep all of them busy.
            workers=min(workers, trial.blocks),
            reading=reading,
            largest=min(largest / max(self.total, 1), 1.0),
        )
        return expect(self.totals, by_format, costs, trial.token_bytes)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Handles SIGTERM (of `timeout`, for example) as an interrupt, so that files are removed."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _work_folder(inside: str | None) -> Iterator[str]:
    """A new folder that is removed at the end; raises UsageError if it cannot be created."""
    try:
        folder = tempfile.mkdtemp(prefix="fineshards-tune-", dir=inside)
    except OSError as error:
        raise UsageError(
            f"--work {inside or tempfile.gettempdir()}: cannot create a folder there: "
            f"{error.strerror}. Give another folder with --work."
        ) from error
    try:
        yield os.path.abspath(folder)
    finally:
        # A second Ctrl-C would leave files behind.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGINT, before)
