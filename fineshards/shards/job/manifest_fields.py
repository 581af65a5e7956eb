"""The fields of a manifest, read from its JSON and checked one by one."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from fineshards.errors import clipped, quoted
from fineshards.shards.counts import Counts, Sums
from fineshards.shards.job.curated_files import (
    DECISIONS_FOLDER,
    KEYS_FOLDER,
    SCORES_FOLDER,
    STATISTICS_FOLDER,
)
from fineshards.shards.job.generations import GENERATIONS_FOLDER, generations_from_json
from fineshards.shards.job.job import JOB_NAME
from fineshards.shards.job.records import (
    RARE,
    Leaks,
    MetadataFile,
    ShardRecord,
    as_text,
    from_fields,
)
from fineshards.shards.job.settings import STORED_FILES, settings_from_json
from fineshards.shards.job.source_counts import FileReport
from fineshards.shards.layout import SPLITS, Layout
from fineshards.shards.tables.rejected_rows import REJECTED_FOLDER

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
    layout = from_fields(Layout, content["layout"])
    if min(layout.tokens, layout.shard_tokens) < 1 or not content["shards"]:
        raise ValueError("it has no tokens")
    if min(layout.test_tokens, layout.train_tokens) < 0:
        raise ValueError("a split has fewer than 0 tokens")
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
