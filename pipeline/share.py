"""Shares of a job: what one of several machines does of it, and what is left then.

Machines that share the output folder need nothing else: each does those blocks, and later those
shards, that fall to its number. Every task is idempotent, so shares may die, be repeated, overlap
or be too few. The plain command does what is left, and it alone finishes the dataset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fineshards.config import BuildConfig
from fineshards.errors import UsageError, quoted
from fineshards.pipeline.runners.choice import runs_here
from fineshards.wording import counted

if TYPE_CHECKING:
    from fineshards.job_status.status import Status

_SHARE = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")
_PARTS_OF_ALL = ("judge", "tokenize", "write")


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a job: the `number`th of `count`, from 1."""

    number: int
    count: int

    def has(self, index: int) -> bool:
        """Whether the block or shard of an index falls to this share."""
        return index % self.count == self.number - 1

    def does(self, part: str) -> bool:
        """Whether this share has anything to do in a part of a job."""
        return part in _PARTS_OF_ALL or (part == "compare" and self.number == 1)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def share_of(config: BuildConfig) -> Share | None:
    """The share that a configuration asks for; None for all of the job.

    Raises UsageError for one that is not understood, and where there are no shares.
    """
    if config.share is None:
        return None
    if not runs_here(config):
        raise UsageError(
            "--share is for local runs: a runner such as Flink or Dataflow distributes the whole "
            "job itself. Leave out --share or --runner."
        )
    if config.append:
        raise UsageError("--share is for a build; an append has no shares. Leave it out.")
    if config.overwrite:
        raise UsageError(
            "--overwrite with --share: each share would delete what the others have done. Delete "
            "the output folder first, then run the shares without --overwrite."
        )
    match = _SHARE.fullmatch(config.share)
    if match is None or int(match[1]) > int(match[2]):
        raise UsageError(
            f"--share must be K/N, with K from 1 to N, such as 3/64, got {quoted(config.share)}."
        )
    return Share(int(match[1]), int(match[2]))


def part_of(status: Status) -> str:
    """What comes next in a job: `judge`, `compare`, `tokenize`, `shuffle`, `write` or `commit`."""
    now, tokenize = status.now, status.of("tokenize")
    if now is None:
        return "commit"
    if now.name == "read":
        return status.stages[1].name
    if now.name == "judge":
        return "judge" if now.done != now.total else "compare"
    if tokenize.done != tokenize.total:
        return "tokenize"
    if now.name == "write" and now.done == (now.total or 0):
        return "commit"
    return status.stages[status.stages.index(tokenize) + 1].name


def describe_left(share: Share, status: Status) -> str:
    """What is left of a job when a share of it has ended, and who does it."""
    part, now, blocks = part_of(status), status.now, status.of("tokenize").total
    whom, finishes = "shares that run next", "the command without --share"
    if now is None:
        return f"share {share} ends: the dataset is finished"
    if part == "commit":
        return f"share {share} ends: all shards are written, and {finishes} finishes the dataset"
    if part == "shuffle":
        return f"share {share} ends: {finishes} shuffles all documents, and finishes the dataset"
    if part == "compare":
        left, whom = f"documents are left to compare, step {now.step}", f"share 1/{share.count}"
    elif blocks is None:
        left = "not all files are read"
    else:
        of = now if part == "judge" else status.of(part)
        left = f"all {of.unit}s are left to {part}"
        if of.total is not None:
            left = f"{of.total - of.done:,} of {counted(of.total, of.unit)} are left to {part}"
        left += f", step {of.step}" if of.step is not None else ""
    return f"share {share} ends: {left}, for {whom}, or for {finishes}, which finishes the dataset"
