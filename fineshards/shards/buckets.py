"""Buckets: from sorted token blocks to token blocks in the order of the keys."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from fineshards.shards.block_writer import Documents
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import Counts
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.job.source_counts import BlockSummary
from fineshards.shards.layout import Shuffle
from fineshards.shards.runs import Gathered
from fineshards.shards.shuffle_order import Bucket, Fragment, Group, key_order, shuffle_keys

# Requests for fragments at the same time, where each takes tens of milliseconds.
_REQUESTS = 16


def merge_runs(
    group: Group, fragments: Iterable[Fragment], shuffle: Shuffle, checkpoints: Checkpoints
) -> BlockSummary:
    """Makes one sorted token block of several runs, unless it is there."""
    name = group.place
    finished = checkpoints.read_runs(name)
    if finished is not None:
        return finished
    gathered = _gather(fragments, checkpoints)
    with checkpoints.create_runs(name, shuffle, gathered.bytes + 1, group.bits) as writer:
        for documents in gathered.batches:
            writer.append(documents)
        return writer.finish(name.index, 1, gathered.counts())


def write_bucket(
    bucket: Bucket,
    fragments: Iterable[Fragment],
    shuffle: Shuffle,
    checkpoints: Checkpoints,
    index: int = 0,
) -> BlockSummary:
    """Writes a token block of all documents of a bucket, unless it is there.

    Its summary is that of block `index` of file `bucket.number`, so that buckets are planned as
    files are.
    """
    name = TokenBlock("buckets", bucket.number, index)
    finished = checkpoints.read_summary(name)
    if finished is not None:
        return finished
    gathered = _gather(fragments, checkpoints)
    table = gathered.table()
    keys = shuffle_keys(shuffle.seed, table["file"].to_numpy(), table["row"].to_numpy())
    order = key_order(keys)
    if bucket.bits:
        # A fragment may have documents of neighbouring buckets.
        order = order[keys[order, 0] >> np.uint64(64 - bucket.bits) == bucket.prefix]
    lengths = table["length"].to_numpy()
    documents = table.drop_columns(["length"])
    with checkpoints.create_block(name) as writer:
        for chosen, tokens in gathered.take(order):
            offsets = np.concatenate([[0], np.cumsum(lengths[chosen])])
            (sources,) = documents.take(pa.array(chosen)).combine_chunks().to_batches()
            writer.append(Documents(tokens, offsets, sources))
        counts = Counts(rows=len(order), documents=len(order), tokens=int(lengths[order].sum()))
        return writer.finish(0, 1, counts)


def _gather(fragments: Iterable[Fragment], checkpoints: Checkpoints) -> Gathered:
    """The documents of all fragments, in the order of their token blocks."""
    gathered = Gathered(checkpoints.dtype)
    # So that documents with equal keys are in the order of file and row.
    ordered = sorted(fragments, key=lambda one: (one.block, one.start))
    if checkpoints.storage.supports_mmap:
        for fragment in ordered:
            gathered.append(checkpoints.read_fragment(fragment))
        return gathered
    with ThreadPoolExecutor(_REQUESTS) as pool:
        for found in pool.map(checkpoints.read_fragment, ordered):
            gathered.append(found)
    return gathered
