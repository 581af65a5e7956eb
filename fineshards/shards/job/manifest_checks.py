"""Checks of a manifest's records, one sentence per contradiction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fineshards.errors import clipped
from fineshards.shards import npy
from fineshards.shards.job.job import Job
from fineshards.shards.job.records import Leaks, MetadataFile, ShardRecord
from fineshards.shards.job.settings import Settings
from fineshards.shards.job.source_counts import FileReport
from fineshards.shards.layout import Layout
from fineshards.shards.masks import mask_file_bytes


def in_the_sums(what: str, recorded: object, found: object) -> Iterator[str]:
    """Checks what is recorded of all records against what they give."""
    if recorded != found:
        yield f"its {what} {clipped(str(recorded))}, but its records give {found}"


def in_the_shards(
    layout: Layout, shards: Sequence[ShardRecord], dtype: np.dtype[Any]
) -> Iterator[str]:
    """Checks names and sizes of shards against their layout."""
    # Counted first, because a damaged layout may ask for more names than fit into memory.
    if len(shards) != layout.windows:
        yield f"{len(shards)} shards, expected {layout.windows}"
        return
    for planned, shard in zip(layout.shards(), shards, strict=True):
        if shard.name != planned.name:
            yield (
                f"the names of the shards are not those of the layout: {shard.name} is in the "
                f"place of {planned.name}"
            )
            return
        if (shard.split, shard.index) != (planned.key.split, planned.key.index):
            yield f"{shard.name} is recorded as {shard.split} {shard.index}"
        if shard.tokens != planned.tokens:
            yield f"{shard.name} has {shard.tokens} tokens, expected {planned.tokens}"
        if shard.bytes != npy.file_bytes(shard.tokens, dtype):
            yield f"{shard.name} has {shard.bytes} bytes for {shard.tokens} tokens"


def in_the_metadata(job: Job, metadata: Sequence[MetadataFile]) -> Iterator[str]:
    """Checks that the files that every dataset has are listed."""
    listed = {file.name for file in metadata}
    wanted = {job.record_name, *job.settings.stored_files}
    if not listed >= wanted:
        yield "it has no checksum of the job record, or of the tokenizer's file"


def in_the_counts(
    job: Job, reports: Sequence[FileReport], shards: Sequence[ShardRecord], totals: dict[str, int]
) -> Iterator[str]:
    """Checks the counts of the source files against those of the splits."""
    for report, file in zip(reports, job.files, strict=True):
        if not report.counts.balances():
            yield f"{file.path} does not balance: {report.counts.imbalance()}"
    for what in ("tokens", "documents"):
        in_shards = sum(getattr(shard, what) for shard in shards)
        if totals[what] != in_shards:
            yield f"the files have {totals[what]} {what}, the shards {in_shards}"
    if job.settings.split.by_document:
        for what in ("documents", "tokens"):
            in_files = sum(getattr(report.test, what) for report in reports)
            in_shards = sum(getattr(shard, what) for shard in shards if shard.split == "test")
            if in_files != in_shards:
                yield f"the files have {in_files} test {what}, the test shards {in_shards}"


def in_the_masks(
    settings: Settings, shards: Sequence[ShardRecord], learned: int | None
) -> Iterator[str]:
    """Checks that shards of conversations have loss masks of their size, and no others do.

    learned: by the counts of the source files; None where documents were redacted since.
    """
    in_shards = sum(shard.learned or 0 for shard in shards)
    if learned not in (None, in_shards):
        yield f"the files have {learned} learned tokens, the shards {in_shards}"
    for shard in shards:
        found = (shard.mask_bytes, shard.mask_crc32c is None, shard.learned is None)
        expected = (mask_file_bytes(shard.tokens), False, False)
        if found != (expected if settings.chat else (None, True, True)):
            yield f"{shard.name} has {shard.mask_bytes or 'no'} bytes of loss mask"
        elif (shard.learned or 0) > shard.tokens:
            yield f"{shard.learned} tokens of {shard.name} are learned, more than there are"


def in_the_leaks(job: Job, leaks: Leaks | None) -> Iterator[str]:
    """Checks that documents whose text is in both splits are counted where there can be any."""
    if job.settings.split.may_leak != (leaks is not None):
        yield "it counts leaks where there can be none, or does not where there can be"
