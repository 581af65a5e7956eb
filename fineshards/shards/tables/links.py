"""Documents that share keys: the pairs that are compared, and those that are linked in many steps.

Of the documents that have a key, each later one is compared with the first few, its candidates, so
a key that very many documents have takes a time that grows with their number, not with its square.
A pair is a record of `mark_dtype`: a document, and an earlier one as its witness if they are alike.

`edges` links the documents of a range of keys, and `components` joins the edges of all ranges: of
documents that are linked in any number of steps only the first is kept.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fineshards.errors import FineshardsError
from fineshards.shards.tables.marks import (
    MOST_ALIKE,
    Positions,
    Records,
    beyond,
    differs,
    file_of,
    in_order,
    is_external,
    lengths,
    mark_dtype,
    numbered,
    positions,
    repeated,
    with_first,
)

# Candidates per key. One fewer than the documents of a key that a block sends to be compared: the
# last of these wants the contents of all candidates, also for those that stay behind.
MOST_CANDIDATES = MOST_ALIKE - 1

# Edges that `components` takes: 43 GB with what they are made into. Each takes so many bytes.
MOST_EDGES = 400_000_000
EDGE_SIZE = 107

# A link between two documents that share a key, of which `smallest` is the first that has it.
EDGE = np.dtype([("smallest", "<u8"), ("member", "<u8")])


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


def edges(records: Records) -> Records:
    """Links each document to the first one that has one of its keys; edges sorted by member.

    records: as of `mark`, without spans. Entries of an index are members too: they may link
    documents. Memory is that of `mark`.
    """
    if "span" in (records.dtype.names or ()):
        raise ValueError("records of spans: components are those of documents")
    at, starts = repeated(records)
    member, smallest = with_first(records, at, starts)
    linked = member != smallest
    found = np.empty(np.count_nonzero(linked), EDGE)
    found["smallest"], found["member"] = smallest[linked], member[linked]
    found = found[np.lexsort((found["smallest"], found["member"]))]
    return found[differs(found["member"]) | differs(found["smallest"])]


def components(edges: Records, most: int = MOST_EDGES) -> Records:
    """Marks all documents of each connected component but the one with the smallest position.

    edges: of all ranges of keys, in any order; the same one may come twice. Marks are sorted by
    position; the witness is the smallest position of the component. Entries of an index are never
    marked. At the peak, 91 bytes per edge beside the edges.

    Raises FineshardsError, and never stops early, if there are more edges than `most`.
    """
    if len(edges) > most:
        raise FineshardsError(
            f"{len(edges):,} links between documents, and components are found among at most "
            f'{most:,}. Use rule = "earlier", which has no such limit, or deduplicate parts of the '
            "input in jobs of their own."
        )
    # A component is the same with its documents numbered without gaps, in the order of positions.
    nodes = np.concatenate([edges["smallest"], edges["member"]])
    nodes.sort()
    nodes = nodes[differs(nodes)]
    labels = _labels(len(nodes), *(_numbers(nodes, edges[name]) for name in ("smallest", "member")))
    # Of several values for one label, the one that is assigned last stays: that of the first node.
    smallest = np.empty(len(nodes), np.uint64)
    smallest[labels[::-1]] = nodes[::-1]
    witness = smallest[labels]
    marked = (nodes != witness) & ~is_external(nodes)
    marks = np.empty(np.count_nonzero(marked), mark_dtype())
    marks["position"], marks["witness"] = nodes[marked], witness[marked]
    return marks


def _numbers(nodes: Positions, positions: Positions) -> npt.NDArray[np.int32]:
    """The number of each position among all nodes."""
    return np.searchsorted(nodes, positions).astype(np.int32)


def _labels(
    nodes: int, left: npt.NDArray[np.int32], right: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """A number per node that is the same within a component; below the number of nodes."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # scipy would convert another type to this one.
    linked = coo_array((np.ones(len(left)), (left, right)), shape=(nodes, nodes))
    labels: npt.NDArray[np.int32] = connected_components(linked.tocsr(), directed=False)[1]
    return labels
