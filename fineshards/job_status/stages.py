"""The stages of a job in words: what each has done, and what the present one is doing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fineshards.job_status.recent_rate import LONG_IDLE
from fineshards.job_status.status import Status
from fineshards.job_status.workers import Writing
from fineshards.wording import approximately, counted, describe_splits, duration

# A file is buffered in memory at first, and has its creation's time.
_BUFFERED = 50_000
# As many lines about what workers are writing as a small screen has room for.
_WRITING_LINES = 8
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


def stages_of(status: Status) -> list[Stage]:
    """The stages that a job passes, in order.

    Example:
        >>> import fineshards
        >>> for stage in stages_of(fineshards.status(dataset_folder)):
        ...     print(stage.state, stage.name, stage.detail)
        done read 1 file, 1 block
        done tokenize 1 block, 665,971 tokens
        done write 7 shards
    """
    return list(_stages(status))


def _stages(status: Status) -> Iterator[Stage]:
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
        tokens = count_tokens(status)
        detail += f", {tokens} {'token' if tokens == '1' else 'tokens'}"
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


def of_what_is_left(status: Status) -> str:
    """What the time left is of: the job, or the present stage if others follow it.

    No rate is known of these. Where shards are written early, writing ends with tokenizing.
    """
    if status.stage == "writing" or (status.stage == "tokenizing" and status.shards):
        return "left"
    states = [stage.state for stage in _stages(status)]
    return f"left in stage {states.index('now') + 1} of {len(states)}"


def count_tokens(status: Status) -> str:
    """The tokens so far, of about how many."""
    tokens = f"{status.tokens:,}"
    if status.shards_estimated and status.text_bytes < (status.text_bytes_total or 0):
        total = status.tokens * (status.text_bytes_total or 0) // status.text_bytes
        tokens += f" of about {approximately(total)}"
    return tokens


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
        words.append(f"about {duration(status.seconds_left)} {of_what_is_left(status)}")
    words.append(f"last written {duration(status.seconds_idle)} ago")
    if status.seconds_running is not None:
        words.append(f"running for {duration(status.seconds_running)}")
    return ", ".join(words)


def describe_writing(writing: Writing) -> str:
    """How far a block or shard is that a worker is writing.

    Example:
        >>> describe_writing(Writing("shard train/3", 0, 2.0))
        'begun 2 s ago'
        >>> describe_writing(Writing("shard train/3", 48_300_000, 0.1))
        '48.3 MB, written 0 s ago'
    """
    age = f"{duration(writing.seconds)} ago"
    if writing.bytes < _BUFFERED:
        return f"begun {age}"
    return f"{writing.bytes / 1e6:,.1f} MB, written {age}"


def list_writing(status: Status) -> list[tuple[str, str]]:
    """What workers are writing: the names, and how far each is. Of many, the first, and a count."""
    first = status.writing[:_WRITING_LINES]
    more = len(status.writing) - len(first)
    lines = [(writing.name, describe_writing(writing)) for writing in first]
    return [*lines, (f"and {more:,} more", "")] if more else lines


def describe_finished(status: Status) -> list[str]:
    """What a finished dataset holds, and each of its splits."""
    generation = f"; generation {status.generation}" if status.generation > 1 else ""
    return [
        f"finished: {counted(status.tokens, 'token')} in {counted(status.shards, 'shard')} "
        f"from {counted(status.files, 'file')}{generation}",
        *describe_splits(status.splits or {}),
    ]


def describe_status(status: Status) -> list[str]:
    """The status in a few lines."""
    if status.stage == "finished":
        return describe_finished(status)
    lines = [status.stage + (f" generation {status.generation}" if status.generation > 1 else "")]
    lines += [f"  {stage.name:<10}{stage.detail}".rstrip() for stage in stages_of(status)]
    for name, how in list_writing(status):
        lines.append(f"  {'now':<10}{name}" + (f": {how}" if how else ""))
    lines.append(describe_pace(status))
    if status.console is not None:
        lines.append(f"Dataflow's job {status.job_id}: {status.console}")
    if status.running is None and stillness(status):
        lines.append(
            "This is judged by the times of files. A worker on gs:// or s3:// shows nothing before "
            "a file is complete."
        )
    return lines
