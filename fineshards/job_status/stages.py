"""The stages of a job in words: what each has done, and what the present one is doing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fineshards.job_status.status import LONG_IDLE, Status
from fineshards.wording import approximately, counted, describe_splits, duration

_ORDER = ("discovering", "judging", "tokenizing", "shuffling", "writing", "finished")


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a job, as a person sees it.

    name: what is done: read, judge, tokenize, shuffle, write. state: `done`, `now` or `later`.
    done, total: amounts of any unit, for a bar; total is None while it is not known. detail: how
    much is done, in words.
    """

    name: str
    state: str
    done: int
    total: int | None
    detail: str


def stages_of(status: Status) -> Iterator[Stage]:
    """The stages that a job passes, in order.

    Example:
        >>> import fineshards
        >>> for stage in stages_of(fineshards.status(dataset_folder)):
        ...     print(stage.state, stage.name, stage.detail)
        done read 1 file, 1 block
        done tokenize 1 block, 665,971 tokens
        done write 7 shards
    """

    def state(stage: str) -> str:
        difference = _ORDER.index(status.stage) - _ORDER.index(stage)
        return "now" if difference == 0 else "done" if difference > 0 else "later"

    files, blocks = status.files_total, status.blocks_total
    detail = _of(status.files, files, "file")
    if blocks is not None:
        detail += f", {counted(blocks, 'block')}"
    yield Stage("read", state("discovering"), status.files, files, detail)
    for step in status.compared:
        detail = f"{counted(blocks or 0, 'block')}, step {step}"
        yield Stage("judge", "done", blocks or 0, blocks, detail)
    if status.step is not None:
        detail = f"{_of(status.judged, blocks, 'block')}, step {status.step}"
        if status.judged == blocks:
            detail = f"comparing documents, step {status.step}"
        yield Stage("judge", state("judging"), status.judged, blocks, detail)
    for step in status.to_compare:
        yield Stage("judge", "later", 0, blocks, f"step {step}")
    # On some runners blocks are finished before all files are read.
    detail = _of(status.blocks, blocks, "block")
    if detail:
        detail += f", {counted(status.tokens, 'token')}"
        if status.shards_estimated and status.text_bytes < (status.text_bytes_total or 0):
            expected = status.tokens * (status.text_bytes_total or 0) // status.text_bytes
            detail = detail.rpartition(" ")[0] + f" of about {approximately(expected)} tokens"
    total = status.text_bytes_total
    yield Stage("tokenize", state("tokenizing"), status.text_bytes, total, detail)
    if status.shuffled is not None:
        when = state("shuffling")
        detail = "" if when == "later" else _of(status.shuffled, status.tokens, "token")
        yield Stage("shuffle", when, status.shuffled, status.tokens, detail)
    detail = _of(status.shards, status.shards_total, "shard")
    if status.shards_estimated:
        done = f"{status.shards:,} of " if status.shards else ""
        detail = f"{done}about {counted(status.shards_total or 0, 'shard')}"
    yield Stage("write", state("writing"), status.shards, status.shards_total, detail)


def _of(done: int, total: int | None, noun: str) -> str:
    """How much of a total is done; the total alone if it is all done."""
    if total is None:
        return counted(done, noun) if done else ""
    return counted(total, noun) if done == total else f"{done:,} of {counted(total, noun)}"


def stillness(status: Status, surely_runs: bool = False) -> str:
    """That a job is not running, in words; empty if it may run. surely_runs: see describe_pace."""
    if status.running is False:
        return "not running"
    is_idle = status.seconds_idle > LONG_IDLE and not surely_runs and not status.running
    return "probably not running" if is_idle else ""


def describe_pace(status: Status, surely_runs: bool = False) -> str:
    """How fast a running job is, how long its stage takes, and when it last wrote.

    If nothing was written for long, what that means instead. surely_runs: its workers are known to
    live, so a file only takes long.
    """
    if still := stillness(status, surely_runs):
        command = "append" if status.generation > 1 else "build"
        return (
            f"no worker has written for {duration(status.seconds_idle)}: it is {still}. The same "
            f"{command} command resumes it."
        )
    words = []
    if status.tokens_per_second and status.stage in ("tokenizing", "shuffling"):
        words.append(f"{approximately(round(status.tokens_per_second))} tokens/s")
    if status.bytes_per_second and status.stage == "judging":
        words.append(f"{status.bytes_per_second / 1e6:.1f} MB/s of text")
    if status.seconds_left is not None and status.stage != "finished":
        of_stage = ""
        # No rate is known of later stages. Where shards are written early, none is left.
        if status.stage != "writing" and not (status.stage == "tokenizing" and status.shards):
            states = [stage.state for stage in stages_of(status)]
            of_stage = f" in stage {states.index('now') + 1} of {len(states)}"
        words.append(f"about {duration(status.seconds_left)} left{of_stage}")
    words.append(f"last written {duration(status.seconds_idle)} ago")
    if status.seconds_running is not None:
        words.append(f"running for {duration(status.seconds_running)}")
    return ", ".join(words)


def describe_status(status: Status) -> list[str]:
    """The status in a few lines."""
    if status.stage == "finished":
        generation = f"; generation {status.generation}" if status.generation > 1 else ""
        return [
            f"finished: {counted(status.tokens, 'token')} in {counted(status.shards, 'shard')} "
            f"from {counted(status.files, 'file')}{generation}",
            *describe_splits(status.splits or {}),
        ]
    lines = [status.stage + (f" generation {status.generation}" if status.generation > 1 else "")]
    lines += [f"  {stage.name:<10}{stage.detail}".rstrip() for stage in stages_of(status)]
    lines.append(describe_pace(status))
    if status.console is not None:
        lines.append(f"Dataflow's job {status.job_id}: {status.console}")
    if status.running is None and stillness(status):
        lines.append(
            "This is judged by the times of files. A worker on gs:// or s3:// shows nothing before "
            "a file is complete."
        )
    return lines
