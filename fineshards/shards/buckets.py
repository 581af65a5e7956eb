"""Buckets: from sorted token blocks to token blocks in the order of the keys."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.shards.block_writer import Documents
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import BlockSummary, Counts
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.layout import Shuffle
from fineshards.shards.shuffle_order import Bucket, Fragment, Gathered, key_order, shuffle_keys

# Requests for fragments at the same time, where each takes tens of milliseconds.
_REQUESTS = 16


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
    finished = checkpoints.blocks.read_summary(name)
    if finished is not None:
        return finished
    gathered = _gather(fragments, bucket.bits, bucket.prefix, shuffle, checkpoints)
    table = gathered.table()
    order = key_order(_keys(table, shuffle))
    lengths = table["length"].to_numpy()
    documents = table.drop_columns(["length"])
    with checkpoints.blocks.create_block(name) as writer:
        for chosen, tokens in gathered.take(order):
            offsets = np.concatenate([[0], np.cumsum(lengths[chosen])])
            (sources,) = documents.take(pa.array(chosen)).combine_chunks().to_batches()
            writer.append(Documents(tokens, offsets, sources))
        counts = Counts(rows=len(order), documents=len(order), tokens=int(lengths[order].sum()))
        return writer.finish(index, 1, counts)


def _keys(sources: pa.Table | pa.RecordBatch, shuffle: Shuffle) -> npt.NDArray[np.uint64]:
    return shuffle_keys(shuffle.seed, sources["file"].to_numpy(), sources["row"].to_numpy())


def _gather(
    fragments: Iterable[Fragment],
    bits: int,
    prefix: int,
    shuffle: Shuffle,
    checkpoints: Checkpoints,
) -> Gathered:
    """The fragments' documents whose keys begin with the bits, in the order of token blocks."""
    gathered = Gathered(checkpoints.dtype)
    # So that documents with equal keys are in the order of file and row.
    ordered = sorted(fragments, key=lambda one: (one.block, one.start))

    def read(fragment: Fragment) -> Documents:
        documents = checkpoints.blocks.read_fragment(fragment)
        return _with_prefix(documents, bits, prefix, shuffle) if bits else documents

    with ThreadPoolExecutor(1 if checkpoints.storage.on_disk else _REQUESTS) as pool:
        for found in pool.map(read, ordered):
            gathered.append(found)
    return gathered


def _with_prefix(documents: Documents, bits: int, prefix: int, shuffle: Shuffle) -> Documents:
    """Those of a fragment's documents whose keys begin with `bits` bits that are a number.

    A fragment has others, too, where a cell is larger. Then they are a copy, to free the fragment.
    """
    tokens, offsets, sources = documents
    shift = np.uint64(64 - bits)
    # The documents of a fragment are in the order of their keys.
    ends = sources.take(pa.array([0, len(sources) - 1]))
    if np.all(_keys(ends, shuffle)[:, 0] >> shift == prefix):
        return documents
    prefixes = _keys(sources, shuffle)[:, 0] >> shift
    first, stop = np.searchsorted(prefixes, np.array([prefix, prefix + 1], np.uint64)).tolist()
    start, end = offsets[first], offsets[stop]
    own = sources.take(pa.array(range(first, stop), pa.int64()))
    return Documents(tokens[start:end].copy(), offsets[first : stop + 1] - start, own)
