"""Checks a manifest: its numbers against each other, and whether its version can be changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fineshards.errors import OutputError, clipped
from fineshards.shards import npy
from fineshards.shards.job.job import FORMAT_VERSION
from fineshards.storage.base import Storage

if TYPE_CHECKING:
    from fineshards.shards.job.manifest import Manifest


def contradictions(manifest: Manifest) -> list[str]:
    """One sentence per contradiction; empty if the numbers add up."""
    return [
        *_in_the_job(manifest),
        *_in_the_shards(manifest),
        *_in_the_content(manifest),
        *_in_the_metadata(manifest),
        *_in_the_counts(manifest),
        *_in_the_leaks(manifest),
        *_in_the_repeats(manifest),
    ]


def refuse_earlier_version(manifest: Manifest, storage: Storage, advice: str) -> None:
    """Raises OutputError for a dataset of an earlier version. advice: the end of the message."""
    if manifest.version != FORMAT_VERSION:
        raise OutputError(
            f"{storage.root} was built by an earlier version of fineshards (format version "
            f"{manifest.version}, now {FORMAT_VERSION}), {advice}"
        )


def _in_the_job(manifest: Manifest) -> Iterator[str]:
    fingerprint = manifest.job.fingerprint()
    if fingerprint != manifest.fingerprint:
        yield (
            f"its fingerprint is {clipped(manifest.fingerprint)}, but its settings and files give "
            f"{fingerprint}"
        )


def _in_the_shards(manifest: Manifest) -> Iterator[str]:
    layout, shards = manifest.layout, manifest.shards
    names = [shard.name for shard in shards]
    # Counted first, because a damaged layout may ask for more names than fit into memory.
    if len(names) != layout.windows:
        yield f"{len(names)} shards, expected {layout.windows}"
    elif names != (expected := list(map(layout.shard_name, layout.shard_keys()))):
        difference = sorted(set(names) ^ set(expected)) or "their order"
        yield f"the names of the shards are not those of the layout: {clipped(str(difference))}"
    else:
        for key, shard in zip(layout.shard_keys(), shards, strict=True):
            length = layout.shard_length(key)
            if (shard.split, shard.index) != (key.split, key.index):
                yield f"{shard.name} is recorded as {shard.split} {shard.index}"
            if shard.tokens != length:
                yield f"{shard.name} has {shard.tokens} tokens, expected {length}"
            if shard.bytes != npy.file_bytes(shard.tokens, manifest.settings.token_dtype):
                yield f"{shard.name} has {shard.bytes} bytes for {shard.tokens} tokens"


def _in_the_content(manifest: Manifest) -> Iterator[str]:
    content = manifest.content_fingerprint
    if manifest.recorded_content not in (None, content):
        yield (
            f"its content fingerprint is {manifest.recorded_content}, but its shards give {content}"
        )


def _in_the_metadata(manifest: Manifest) -> Iterator[str]:
    listed = {file.name for file in manifest.metadata}
    wanted = {manifest.job.record_name, manifest.settings.tokenizer.file}
    if manifest.version != 1 and not listed >= wanted:
        yield "it has no checksum of the job record, or of the tokenizer's file"


def _in_the_counts(manifest: Manifest) -> Iterator[str]:
    for report, file in zip(manifest.reports, manifest.files, strict=True):
        if not report.counts.balances():
            yield f"{file.path} does not balance: {report.counts.imbalance()}"
    totals = manifest.totals()
    for what, in_shards in (
        ("tokens", sum(shard.tokens for shard in manifest.shards)),
        ("documents", sum(shard.documents for shard in manifest.shards)),
    ):
        if totals[what] != in_shards:
            yield f"the files have {totals[what]} {what}, the shards {in_shards}"
    if manifest.settings.split.by_document:
        test = manifest.splits()["test"]
        for what in ("documents", "tokens"):
            in_files = sum(getattr(report.test, what) for report in manifest.reports)
            if in_files != test[what]:
                yield f"the files have {in_files} test {what}, the test shards {test[what]}"


def _in_the_leaks(manifest: Manifest) -> Iterator[str]:
    counts_leaks = manifest.version > 2 and manifest.settings.split.may_leak
    if counts_leaks != (manifest.leaks is not None):
        yield "it counts leaks where there can be none, or does not where there can be"
    elif manifest.leaks is not None:
        splits = manifest.splits()
        for split, leaking in (
            ("test", manifest.leaks.test_documents),
            ("train", manifest.leaks.train_documents),
        ):
            if leaking > splits[split]["documents"]:
                yield f"{leaking} documents of {split} leak, more than there are"
        if bool(manifest.leaks.test_documents) != bool(manifest.leaks.train_documents):
            yield "documents of one split leak, and none of the other"


def _in_the_repeats(manifest: Manifest) -> Iterator[str]:
    added = [generation.files for generation in manifest.generations if generation.files]
    if manifest.repeats is not None:
        new = sum(report.counts.documents for report in manifest.reports[sum(added[:-1]) :])
        if len(added) < 2 or manifest.repeats > new:
            yield f"{manifest.repeats} documents repeat earlier ones, more than were appended"
