"""Counts leaks again from the document tables, as part of verify."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from fineshards.cores import usable_cores
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.job.records import Leaks
from fineshards.shards.job.source_counts import sums_by_stream
from fineshards.shards.layout import SPLITS, SplitRule
from fineshards.shards.tables.leaks import (
    RANGE_DOCUMENTS,
    KnownTexts,
    Texts,
    cut,
    number_of_ranges,
    read_texts,
)
from fineshards.shards.tables.repeats import Sides, count_repeats
from fineshards.storage.base import Storage
from fineshards.wording import counted, describe_leaks


def check_leaks(storage: Storage, manifest: Manifest, most: int = RANGE_DOCUMENTS) -> Iterator[str]:
    """The manifest counts as many leaks as there are, where there can be any.

    Only texts of test are held in memory, about `most` of them. If there are more, the tables are
    read as many times as that takes, each time for another range of hashes.
    """
    if manifest.leaks is None:
        return
    shards = {
        split: [shard.name for shard in manifest.shards if shard.split == split] for split in SPLITS
    }
    passes = number_of_ranges(manifest.splits()["test"]["documents"], most)
    test_documents = train_documents = 0
    with ThreadPoolExecutor(usable_cores()) as pool:
        for number in range(passes):
            read = partial(_read_range, storage, manifest.settings.split, number, passes)
            in_test = KnownTexts(pool.map(read, shards["test"]))
            compare = partial(_compare, in_test, read)
            train_documents += sum(pool.map(compare, shards["train"]))
            test_documents += in_test.met()
    found = Leaks(test_documents, train_documents)
    if found != manifest.leaks:
        yield (
            f"by text_hash in the document tables {describe_leaks(found)}; {MANIFEST_NAME} says "
            f"{manifest.leaks.test_documents:,} and {manifest.leaks.train_documents:,}"
        )


def check_repeats(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """The manifest counts as many documents of the latest append that repeat earlier ones."""
    if manifest.repeats is None:
        return
    rule = manifest.settings.split
    # Before the latest generation that added files.
    files = [generation.files for generation in manifest.generations if generation.files]
    earlier = sums_by_stream(manifest.reports[: sum(files[:-1])], rule)
    sides = Sides.of(manifest.shards, earlier, rule)
    found = sum(
        count_repeats(storage, rule, sides, number, usable_cores()).documents
        for number in range(sides.ranges)
    )
    if found != manifest.repeats:
        yield (
            f"by the hashes in the document tables {counted(found, 'new document')} repeat earlier "
            f"ones; {MANIFEST_NAME} says {manifest.repeats:,}"
        )


def _read_range(storage: Storage, rule: SplitRule, number: int, ranges: int, shard: str) -> Texts:
    texts = read_texts(storage, shard, rule)
    # A copy, so that the other ranges are not kept.
    return cut(texts, ranges)[number].copy()


def _compare(in_test: KnownTexts, read: Callable[[str], Texts], shard: str) -> int:
    return in_test.compare(read(shard))
