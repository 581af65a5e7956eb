"""Candidates: which earlier documents a document is compared with before it is dropped.

Of the documents that have a key, each later one is compared with the first few. So a key that very
many documents have takes a time that grows with their number, not with its square.

A pair is a record of `mark_dtype`: a document, and an earlier one as its witness if they are alike.
"""

from __future__ import annotations

import numpy as np

from fineshards.shards.tables.marks import (
    MOST_ALIKE,
    Records,
    beyond,
    differs,
    file_of,
    in_order,
    lengths,
    mark_dtype,
    numbered,
    positions,
    repeated,
)

# Candidates per key. One fewer than the documents of a key that a block sends to be compared: the
# last of these wants the contents of all candidates, also for those that stay behind.
MOST_CANDIDATES = MOST_ALIKE - 1


def candidates(records: Records, most: int) -> Records:
    """Pairs each document of a range of keys with the first `most` ones of each of its keys.

    records: as of `mark`, without spans. Each pair is there once, sorted by position and witness.
    """
    at, starts = repeated(records)
    group = np.repeat(np.arange(len(starts)), lengths(starts, len(at)))
    position, starts = in_order(records["position"][at], group)
    # In each group, the n-th document is paired with min(n, most) earlier ones.
    sizes = lengths(starts, len(position))
    number = numbered(sizes)
    counts = np.minimum(number, most)
    first = np.repeat(np.repeat(starts, sizes), counts)
    return _pairs(np.repeat(position, counts), position[first + numbered(counts)])


def more_candidates(records: Records, firsts: Records) -> Records:
    """The pairs of what `without_repeats` left out of sorted records, as `candidates` gives them.

    firsts: of all keys of which some were left out.
    """
    others = records[beyond(records, MOST_ALIKE)]
    known = np.unique(firsts[["key", "witness"]])
    begins = np.searchsorted(known["key"], others["key"], side="left")
    counts = np.searchsorted(known["key"], others["key"], side="right") - begins
    witness = known["witness"][np.repeat(begins, counts) + numbered(counts)]
    return _pairs(np.repeat(others["position"], counts), witness)


def join_pairs(*parts: Records) -> Records:
    """Pairs of several parts, each once, sorted."""
    joined = np.concatenate([np.empty(0, mark_dtype()), *parts])
    return _pairs(joined["position"], joined["witness"])


def wanted_by(pairs: Records) -> Records:
    """The candidates that files want: pairs of a candidate and the first position of a file."""
    files = file_of(pairs["position"]).astype(np.uint64) << np.uint64(40)
    return _pairs(pairs["witness"], files | positions(0, np.zeros(1, np.int64)))


def _pairs(position: np.ndarray, witness: np.ndarray) -> Records:
    order = np.lexsort((witness, position))
    position, witness = position[order], witness[order]
    once = differs(position) | differs(witness)
    pairs = np.empty(np.count_nonzero(once), mark_dtype())
    pairs["position"], pairs["witness"] = position[once], witness[once]
    return pairs
