"""Trials: a whole `fineshards build` in its own process, timed by the files that it writes.

Start-up takes seconds, and varies by as much as settings differ, so it does not count. A trial
counts the time from the end of discovery to the manifest, by the files' modification times.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fineshards.errors import FineshardsError, InputError, UsageError
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job import Job
from fineshards.shards.manifest import MANIFEST_NAME, Manifest
from fineshards.storage.base import open_storage

_POLL_SECONDS = 0.05
# To read the memory of all processes takes milliseconds.
_MEMORY_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Trial:
    """The cost of one build.

    wall: seconds for the whole command. work: seconds from the end of discovery to the manifest, as
    if all workers had been busy until all blocks were tokenized (see `work_seconds`). token_bytes:
    bytes of one token in the shards. by_file: (bytes of text, tokens) of each input file.
    peak_bytes: peak memory of all processes.
    """

    wall: float
    work: float
    blocks: int
    text_bytes: int
    tokens: int
    token_bytes: int
    by_file: dict[str, tuple[int, int]]
    peak_bytes: int


def run_trial(flags: Sequence[str], output: str, workers: int, deadline: float) -> Trial | None:
    """Builds into the folder `output` and removes it again.

    flags: those of `build`, without --output. deadline: a time of `time.monotonic`; a build that
    has not finished by then is ended, and the result is None. Raises FineshardsError if it fails.
    """
    log = Path(f"{output}.log")
    # -P: the user's working directory may have a folder that is named like a library.
    command = [sys.executable, "-P", "-m", "fineshards", "build", *flags]
    command += [f"--output={output}", "--keep_checkpoints"]
    try:
        with log.open("wb") as printed:
            began = time.monotonic()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                # So that Ctrl-C reaches only this process, and all workers can be ended.
                start_new_session=True,
            )
            try:
                peak = _wait(process, deadline)
                wall = time.monotonic() - began
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if peak is None:
            return None
        if process.returncode != 0:
            raise _failure(log, process.returncode)
        return _read_trial(output, wall, workers, peak)
    finally:
        shutil.rmtree(output, ignore_errors=True)
        log.unlink(missing_ok=True)


def work_seconds(started: float, finished: Sequence[float], ended: float, workers: int) -> float:
    """Seconds of work of a build, from the times at which its blocks were finished.

    started: the end of discovery. ended: the time of the manifest. A probe has few blocks, so some
    workers are idle for much of its time while others finish the last blocks. In a large input that
    is negligible. So each worker counts until its own last block, as if more had followed.
    """
    times = sorted(finished)
    last = times[-min(workers, len(times)) :]
    tokenizing = sum(last) / len(last) - min(started, times[0])
    return tokenizing + max(ended - times[-1], 0.0)


def _wait(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """Waits for a build; returns its peak memory in bytes, or None if the deadline came first."""
    peak = 0
    last_read = 0.0
    while process.poll() is None:
        now = time.monotonic()
        if now > deadline:
            return None
        if now - last_read > _MEMORY_SECONDS:
            last_read = now
            peak = max(peak, _session_memory(process.pid))
        time.sleep(_POLL_SECONDS)
    return peak


def _session_memory(session: int) -> int:
    """Memory of a session's processes in bytes, shared pages counted once; 0 if unknown."""
    total = 0
    with suppress(OSError):  # only Linux has /proc
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with suppress(OSError, ValueError):
                    if os.getsid(int(entry.name)) == session:
                        total += _proportional_bytes(entry.path)
    return total


def _proportional_bytes(process: str) -> int:
    for line in Path(process, "smaps_rollup").read_bytes().splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _failure(log: Path, exit_code: int) -> FineshardsError:
    """The error of a build: the sentence that it printed last."""
    lines = log.read_text(errors="replace").splitlines()
    if lines and lines[-1].startswith("fineshards: "):
        kind = UsageError if exit_code == UsageError.exit_code else InputError
        return kind(lines[-1].removeprefix("fineshards: "))
    end = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return FineshardsError(f"a trial build ended with {end}" + (f": {lines[-1]}" if lines else "."))


def _read_trial(output: str, wall: float, workers: int, peak: int) -> Trial:
    storage = open_storage(output)
    job, manifest = Job.load(storage), Manifest.load(storage)
    if job is None or manifest is None:
        raise FineshardsError(f"a trial build in {output} ended without a manifest.")
    checkpoints = Checkpoints.of(storage, job)
    discovered = [entry.modified for entry in storage.entries(f"{checkpoints.folder}/files")]
    finished = [moment for _, moment in checkpoints.finished_blocks().values()]
    (ended,) = (e.modified for e in storage.entries("metadata") if e.name == MANIFEST_NAME)
    totals = manifest.totals()
    return Trial(
        wall=wall,
        work=work_seconds(max(discovered), finished, ended, workers),
        blocks=len(finished),
        text_bytes=totals["text_bytes"],
        tokens=totals["tokens"],
        token_bytes=job.settings.token_dtype.itemsize,
        by_file={
            file.path: (report.counts.text_bytes, report.counts.tokens)
            for file, report in zip(manifest.files, manifest.reports, strict=True)
        },
        peak_bytes=peak,
    )
