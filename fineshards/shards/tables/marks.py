"""Which documents repeat a key of an earlier one: arithmetic on packed records, without Beam.

Every kind of deduplication asks one question. Given (key, position) of all documents, which
positions are not the smallest of their key, and what is the smallest one, the witness?

- `key_records` sorts the keys of a part of the input, and `split` cuts them by ranges of keys.
- `mark` answers for all records of a range of keys, in any order.
- `merge_marks` joins the answers of all ranges, in any order.

Where texts are compared, `candidates` pairs each later document of a key with the first few: so a
key that very many documents have takes a time that grows with their number, not with its square.
A pair is a mark: a document, and an earlier one as its witness if they are alike. `edges` links the
documents of a range of keys, and `components` joins the edges of all ranges: of documents that are
linked in any number of steps only the first is kept.

A position is a place in the stream, in 64 bits:

    000   an entry of an index, for example of another dataset: its number is in the last 40 bits,
          that of the index in the 21 before
    001   a document of a test file that the recipe spares: its row in the 40, its file in the 21
    01    a document of another test file: the same
    1     a document of train: its file is in 23 bits

So the witness of a document of train is one of test, if there is any, wherever their files are.
Entries of an index and spared documents are never marked.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fineshards.errors import FineshardsError

FILES, TEST_FILES = 1 << 23, 1 << 21
ROWS = 1 << 40
_ROW_BITS = np.uint64(40)
# Kinds of documents, as above.
SPARED, TEST, TRAIN = (np.uint64(1 << bit) for bit in (61, 62, 63))

# Candidates per document and key.
MOST_CANDIDATES = 3
# Edges that `components` takes: 43 GB with what they are made into, 107 bytes each.
MOST_EDGES = 400_000_000

Positions = npt.NDArray[np.uint64]
# A structured array: of `key_dtype`, `mark_dtype` or `EDGE`.
Records = npt.NDArray[np.void]
Mask = npt.NDArray[np.bool_]

# A link between two documents that share a key, of which `smallest` is the first that has it.
EDGE = np.dtype([("smallest", "<u8"), ("member", "<u8")])


def key_dtype(bits: int, spans: bool = False) -> np.dtype[np.void]:
    """The type of a record: a key of 64 or 128 bits, a position, and the number of a span.

    Records are packed: 16 bytes, or 24 with 128 bits, and 4 more with spans.
    """
    key = ("key", "<u8") if bits == 64 else ("key", "<u8", (2,))
    return np.dtype([key, ("position", "<u8"), *([("span", "<u4")] if spans else [])])


def mark_dtype(spans: bool = False, similarity: bool = False) -> np.dtype[np.void]:
    """The type of a mark: a position, the number of a span if there are spans, and the witness.

    similarity: whether it says how alike the two are, where their texts were compared.
    """
    span = [("span", "<u4")] if spans else []
    alike = [("similarity", "<f4")] if similarity else []
    return np.dtype([("position", "<u8"), *span, ("witness", "<u8"), *alike])


def positions(file: int, rows: npt.NDArray[np.int64], kind: np.uint64 = TRAIN) -> Positions:
    """The positions of documents of the job; raises FineshardsError for too high a number."""
    return _numbered("file", file, FILES if kind == TRAIN else TEST_FILES, "row", rows) | kind


def external_positions(index: int, entries: npt.NDArray[np.int64]) -> Positions:
    """As `positions`, of entries of an index: before all documents of the job."""
    return _numbered("index", index, TEST_FILES, "entry", entries)


def _numbered(
    group: str, number: int, groups: int, item: str, items: npt.NDArray[np.int64]
) -> Positions:
    """Positions without the bits of their kind."""
    for name, highest, most in ((group, number, groups), (item, int(items.max(initial=0)), ROWS)):
        if highest >= most:
            raise FineshardsError(
                f"{name} number {highest:,} is too high for deduplication, which can number "
                f"{most:,} of them, from 0. Split the input into several jobs."
            )
    return items.astype(np.uint64) | np.uint64(number << 40)


def file_of(positions: Positions) -> npt.NDArray[np.int64]:
    """The file of each position; of an entry of an index, the number of the index."""
    most = np.where(positions < TRAIN, np.uint64(TEST_FILES - 1), np.uint64(FILES - 1))
    return ((positions >> _ROW_BITS) & most).astype(np.int64)


def row_of(positions: Positions) -> npt.NDArray[np.int64]:
    """The row of each position in its file; of an entry of an index, its number there."""
    return (positions & np.uint64(ROWS - 1)).astype(np.int64)


def is_external(positions: Positions) -> Mask:
    """Whether each position is an entry of an index."""
    return positions < SPARED


def may_be_marked(positions: Positions) -> Mask:
    """Whether each position is a document that may be dropped."""
    return positions >= TEST


def key_records(
    keys: npt.NDArray[np.uint64], positions: Positions, spans: npt.NDArray[np.uint32] | None = None
) -> Records:
    """Records of keys, sorted by key, position and span.

    keys: shape (n,), or (n, 2) for keys of 128 bits: the leading half first. At the peak, sorting
    takes 40 bytes per record, plus twice the size of the records.
    """
    records = np.empty(len(keys), key_dtype(64 * (1 if keys.ndim == 1 else 2), spans is not None))
    records["key"], records["position"] = keys, positions
    least_first: list[npt.NDArray[np.unsignedinteger]] = [positions, *_halves(keys)[::-1]]
    if spans is not None:
        records["span"] = spans
        least_first.insert(0, spans)
    return records[np.lexsort(least_first)]


def _halves(keys: npt.NDArray[np.uint64]) -> list[npt.NDArray[np.uint64]]:
    """The 64-bit numbers of keys, leading ones first."""
    return [keys] if keys.ndim == 1 else [keys[:, 0], keys[:, 1]]


def split(records: Records, partitions: int) -> list[Records]:
    """Cuts sorted records by the leading bits of their keys, into views of equal ranges of keys.

    partitions: a power of two.
    """
    bits = partitions.bit_length() - 1
    leading = _halves(records["key"])[0]
    first = [number << (64 - bits) for number in range(1, partitions)]
    cuts = np.searchsorted(leading, np.array(first, np.uint64)).tolist()
    bounds = [0, *cuts, len(records)]
    return [records[bounds[i] : bounds[i + 1]] for i in range(partitions)]


def mark(records: Records, only_external: bool = False) -> Records:
    """Marks the records that are not the first of their key.

    The first is the one with the smallest position and, in one document, the smallest span: a line
    that a document repeats is marked, with the document itself as its witness.

    records: all of a range of keys, or a part and the `first_records` of all; in any order; the
    same one may come twice. only_external: mark only what an entry of an index has the key of.

    Returns each mark once, with the smallest witness of its keys, sorted by position and span. At
    the peak it takes 40 bytes per record in addition to the records, and at most 70 more per record
    that shares its key.
    """
    spans = "span" in (records.dtype.names or ())
    at, starts = repeated(records)
    position, witness = with_first(records, at, starts)
    marked = position != witness
    if spans:
        # Of the records at the first position, the one with the smallest span is the first.
        span = records["span"][at]
        first_span = np.where(marked, np.uint32(2**32 - 1), span)
        first_span = np.repeat(_least(first_span, starts), lengths(starts, len(at)))
        marked |= span != first_span
    marked &= may_be_marked(position)
    if only_external:
        marked &= is_external(witness)
    marks = np.empty(np.count_nonzero(marked), mark_dtype(spans))
    marks["position"], marks["witness"] = position[marked], witness[marked]
    if spans:
        marks["span"] = span[marked]
    return _each_once(marks)


def first_records(records: Records, most: int) -> Records:
    """The first `most` records of each key, each once, sorted.

    With them, any part of the records gives its own marks, links or pairs: see `mark`.
    """
    spans = records["span"] if "span" in (records.dtype.names or ()) else None
    records = key_records(records["key"], records["position"], spans)
    new = np.logical_or.reduce([differs(half) for half in _halves(records["key"])])
    once = new | differs(records["position"])
    if spans is not None:
        once |= differs(records["span"])
    at = np.flatnonzero(once)
    sizes = lengths(np.flatnonzero(new[at]), len(at))
    return records[at[_numbered_from_0(sizes) < most]]


def merge_marks(marks: Sequence[Records], dtype: np.dtype[np.void]) -> Records:
    """Joins marks of one type, of several ranges of keys or of several steps, in any order.

    Each is there once, with its smallest witness, sorted as by `mark`. At the peak, 40
    bytes per mark, plus twice the size of the marks.
    """
    return _each_once(np.concatenate([np.empty(0, dtype), *marks]))


def by_file(marks: Records) -> Iterator[tuple[int, Records]]:
    """Cuts sorted marks by file: each file that has marks, and a view of them."""
    files = file_of(marks["position"])
    starts = np.flatnonzero(np.diff(files, prepend=-1))
    ends = [*starts[1:].tolist(), len(marks)]
    for start, end in zip(starts.tolist(), ends, strict=False):
        yield int(files[start]), marks[start:end]


def repeated(records: Records) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Indices of the records that share their key with others, grouped by key, and group starts."""
    halves = _halves(records["key"])
    leading = np.ascontiguousarray(halves[0])
    order = np.argsort(leading)
    leading = leading[order]
    new = differs(leading)
    del leading
    if len(halves) == 2:
        # Almost never are only the leading halves equal. Then, one sort is not enough.
        trailing = halves[1][order]
        if np.any(differs(trailing) & ~new):
            order = np.lexsort((halves[1], halves[0]))
            new = differs(halves[0][order]) | differs(halves[1][order])
    # A record is alone with its key where it differs from the record before and the next one does.
    alone = new.copy()
    alone[:-1] &= new[1:]
    return order[~alone], np.flatnonzero(new[~alone])


def with_first(
    records: Records, at: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
) -> tuple[Positions, Positions]:
    """The positions of grouped records, and the smallest position of each one's group."""
    position = records["position"][at]
    return position, np.repeat(_least(position, starts), lengths(starts, len(at)))


def _least(
    values: npt.NDArray[np.unsignedinteger], starts: npt.NDArray[np.int64]
) -> npt.NDArray[np.unsignedinteger]:
    """The smallest value of each group."""
    return np.minimum.reduceat(values, starts) if len(starts) else values[:0]


def lengths(starts: npt.NDArray[np.int64], end: int) -> npt.NDArray[np.int64]:
    """The number of records in each group."""
    return np.diff(starts, append=end)


def differs(values: npt.NDArray[np.integer]) -> Mask:
    """Whether each value differs from the one before; the first does."""
    changes = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=changes[1:])
    return changes


def _each_once(marks: Records) -> Records:
    """Sorts marks by position and span, and keeps the smallest witness of each."""
    names = [name for name in ("span", "position") if name in (marks.dtype.names or ())]
    marks = marks[np.lexsort([marks["witness"], *(marks[name] for name in names)])]
    first = np.zeros(len(marks), np.bool_)
    for name in names:
        first |= differs(marks[name])
    return marks[first]


def candidates(records: Records, most: int) -> Records:
    """Pairs each document of a range of keys with the first `most` ones of each of its keys.

    records: as of `mark`, without spans. Each pair is there once, sorted by position and witness.
    """
    at, starts = repeated(records)
    group = np.repeat(np.arange(len(starts)), lengths(starts, len(at)))
    position = records["position"][at]
    order = np.lexsort((position, group))
    position, group = position[order], group[order]
    new = differs(group)
    once = new | differs(position)
    position, starts = position[once], np.flatnonzero(new[once])
    # In each group, the n-th document is paired with min(n, most) earlier ones.
    sizes = lengths(starts, len(position))
    number = _numbered_from_0(sizes)
    counts = np.minimum(number, most)
    first = np.repeat(np.repeat(starts, sizes), counts)
    return _pairs(np.repeat(position, counts), position[first + _numbered_from_0(counts)])


def _numbered_from_0(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The numbers 0 to count - 1 for each count, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


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
    at, starts = repeated(records)
    member, smallest = with_first(records, at, starts)
    linked = member != smallest
    links = np.empty(np.count_nonzero(linked), EDGE)
    links["smallest"], links["member"] = smallest[linked], member[linked]
    links = links[np.lexsort((links["smallest"], links["member"]))]
    return links[differs(links["member"]) | differs(links["smallest"])]


def components(edges: Records, most: int = MOST_EDGES) -> Records:
    """Marks all documents of each connected component but the one with the smallest position.

    edges: of all ranges of keys, in any order; the same one may come twice. Marks are sorted by
    position; the witness is the smallest position of the component. At the peak it takes 91 bytes
    per edge in addition to the edges.

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
    numbers = (np.searchsorted(nodes, edges[n]).astype(np.int32) for n in ("smallest", "member"))
    labels = _labels(len(nodes), *numbers)
    # Of several values for one label, the one that is assigned last stays: that of the first node.
    smallest = np.empty(len(nodes), np.uint64)
    smallest[labels[::-1]] = nodes[::-1]
    witness = smallest[labels]
    marked = (nodes != witness) & may_be_marked(nodes)
    marks = np.empty(np.count_nonzero(marked), mark_dtype())
    marks["position"], marks["witness"] = nodes[marked], witness[marked]
    return marks


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
