"""Checks of a manifest's records, one sentence per contradiction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from fineshards.errors import clipped, quoted
from fineshards.shards import npy
from fineshards.shards.counts import Counts, Sums
from fineshards.shards.job.curated_files import (
    DECISIONS_FOLDER,
    KEYS_FOLDER,
    SCORES_FOLDER,
    STATISTICS_FOLDER,
)
from fineshards.shards.job.generations import GENERATIONS_FOLDER, Generation, generations_from_json
from fineshards.shards.job.job import JOB_NAME, Job
from fineshards.shards.job.records import (
    RARE,
    Leaks,
    MetadataFile,
    ShardRecord,
    as_text,
    from_fields,
    layout_from_json,
)
from fineshards.shards.job.settings import STORED_FILES, Settings, settings_from_json
from fineshards.shards.job.source_counts import FileReport
from fineshards.shards.layout import SPLITS, Layout
from fineshards.shards.masks import mask_file_bytes
from fineshards.shards.tables.rejected_rows import REJECTED_FOLDER


def in_the_job(job: Job, recorded: str) -> Iterator[str]:
    """Checks the recorded fingerprint of a job."""
    if (fingerprint := job.fingerprint()) != recorded:
        yield (
            f"its fingerprint is {clipped(recorded)}, but its settings and files give {fingerprint}"
        )


def in_the_shards(
    layout: Layout, shards: Sequence[ShardRecord], dtype: np.dtype[Any]
) -> Iterator[str]:
    """Checks names and sizes of shards against their layout."""
    names = [shard.name for shard in shards]
    # Counted first, because a damaged layout may ask for more names than fit into memory.
    if len(names) != layout.windows:
        yield f"{len(names)} shards, expected {layout.windows}"
    elif names != (expected := [shard.name for shard in layout.shards()]):
        difference = sorted(set(names) ^ set(expected)) or "their order"
        yield f"the names of the shards are not those of the layout: {clipped(str(difference))}"
    else:
        for planned, shard in zip(layout.shards(), shards, strict=True):
            if (shard.split, shard.index) != (planned.key.split, planned.key.index):
                yield f"{shard.name} is recorded as {shard.split} {shard.index}"
            if shard.tokens != planned.tokens:
                yield f"{shard.name} has {shard.tokens} tokens, expected {planned.tokens}"
            if shard.bytes != npy.file_bytes(shard.tokens, dtype):
                yield f"{shard.name} has {shard.bytes} bytes for {shard.tokens} tokens"


def in_the_content(recorded: str, content: str) -> Iterator[str]:
    """Checks the recorded content fingerprint against that of the shards."""
    if recorded != content:
        yield f"its content fingerprint is {recorded}, but its shards give {content}"


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


def in_the_leaks(job: Job, leaks: Leaks | None, splits: dict[str, dict[str, int]]) -> Iterator[str]:
    """Checks the counts of documents whose text is in both splits."""
    if job.settings.split.may_leak != (leaks is not None):
        yield "it counts leaks where there can be none, or does not where there can be"
    elif leaks is not None:
        counts = leaks.test_documents, leaks.train_documents
        for split, leaking in zip(SPLITS, counts, strict=True):
            if leaking > splits[split]["documents"]:
                yield f"{leaking} documents of {split} leak, more than there are"
        if all(counts) != any(counts):
            yield "documents of one split leak, and none of the other"


def in_the_repeats(
    generations: Sequence[Generation], reports: Sequence[FileReport], repeats: int | None
) -> Iterator[str]:
    """Checks the count of appended documents whose text the dataset had before."""
    added = [generation.files for generation in generations if generation.files]
    if repeats is not None:
        new = sum(report.counts.documents for report in reports[sum(added[:-1]) :])
        if len(added) < 2 or repeats > new:
            yield f"{repeats} documents repeat earlier ones, more than were appended"


# What a manifest may name. Its names are opened, so no other name may lead out of the folder.
_SHARD_NAME = re.compile(r"(test|train)/\1_[0-9]{4,}\.npy")
_METADATA_NAME = re.compile(
    "|".join(map(re.escape, (JOB_NAME, *STORED_FILES)))
    + rf"|{REJECTED_FOLDER}/[0-9]+-[0-9]+\.jsonl"
    + rf"|({DECISIONS_FOLDER}|{SCORES_FOLDER}|{STATISTICS_FOLDER})/[0-9]+\.parquet"
    + rf"|{KEYS_FOLDER}/[0-9]+-[0-9]+\.keys"
    + rf"|{GENERATIONS_FOLDER}/[0-9]{{4,}}(\.job)?\.json"
)
_CRC32C = re.compile(r"[A-Za-z0-9+/]{6}==")

_NamedRecord = TypeVar("_NamedRecord", ShardRecord, MetadataFile)
_Optional = TypeVar("_Optional", Leaks, Sums)


def manifest_fields(content: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Manifest; raises one of JSON_ERRORS for content that cannot be one."""
    layout = layout_from_json(content["layout"])
    if min(layout.tokens, layout.shard_tokens) < 1 or not content["shards"]:
        raise ValueError("it has no tokens")
    settings = settings_from_json(content["settings"])
    for position, fields in enumerate(content["files"]):
        if fields["index"] != position:
            raise ValueError(f"file {position} has index {quoted(fields['index'])}")
        if (fields["test"] is not None) != settings.split.by_document:
            raise ValueError(f"{clipped(fields['name'])} is not split as the settings say")
    return {
        "fingerprint": as_text(content["fingerprint"]),
        "recorded_content": as_text(content["content_fingerprint"]),
        "origin": tuple((name, as_text(value)) for name, value in content["origin"].items()),
        "settings": settings,
        "reports": tuple(
            from_fields(
                FileReport,
                fields,
                file=fields["index"],
                counts=Counts.from_manifest(fields),
                test=_optional(Sums, fields["test"]),
            )
            for fields in content["files"]
        ),
        "layout": layout,
        "shards": tuple(
            _named(_SHARD_NAME, from_fields(ShardRecord, dict.fromkeys(RARE) | fields))
            for fields in content["shards"]
        ),
        "metadata": tuple(
            _named(_METADATA_NAME, from_fields(MetadataFile, fields))
            for fields in content["metadata"]
        ),
        "versions": {name: as_text(value) for name, value in content["versions"].items()},
        "leaks": _optional(Leaks, content["leaks"]),
        "repeats": _count(content.get("repeats")),
        **generations_from_json(content),
    }


def _named(pattern: re.Pattern[str], record: _NamedRecord) -> _NamedRecord:
    """The record, if it has the name of such a file; raises ValueError otherwise."""
    if isinstance(record, ShardRecord) and record.split not in SPLITS:
        raise ValueError(f"{record.name} is recorded in the split {quoted(record.split)}")
    if not pattern.fullmatch(record.name):
        raise ValueError(f"it names the file {quoted(record.name)}")
    before = record.unredacted_crc32c if isinstance(record, ShardRecord) else None
    if before is not None and not _CRC32C.fullmatch(before):
        raise ValueError(f"{record.name} has the checksum {quoted(before)} without redactions")
    return record


def _count(value: object) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError(f"it counts {quoted(value)} repeats")
    return value


def _optional(kind: type[_Optional], fields: dict[str, Any] | None) -> _Optional | None:
    return None if fields is None else from_fields(kind, fields)
