"""Documents that are tokens already: lists of ids, which become bytes in place of texts."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.shards.job.settings import TokenIds

# The column of formats that hold nothing but tokens, as most tools call theirs.
TOKENS_COLUMN = "input_ids"
_LISTS = (
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    *(pa.types.is_list_view, pa.types.is_large_list_view),
)


def is_ids(kind: pa.DataType) -> bool:
    """Whether a type is one of lists of integers."""
    return any(fits(kind) for fits in _LISTS) and bool(pa.types.is_integer(kind.value_type))


def token_bytes(lists: pa.Array, ids: TokenIds) -> tuple[pa.Array, dict[int, str]]:
    """The tokens of rows as little-endian uint32, without the EOTs at either end.

    Padding with EOTs goes with them; those between other tokens stay.

    Args:
        lists: A list of ids per row, or null.
        ids: Those of the tokenizer.

    Returns:
        large_binary, null where the list is; and why a row is none, by its index.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    values = lists.flatten().cast(pa.int64(), safe=False)  # beyond 63 bits they are negative
    tokens = pc.fill_null(values, -1).to_numpy()
    stops = np.cumsum(lengths)
    starts = stops - lengths
    wrong = np.flatnonzero((tokens < 0) | (tokens >= ids.size))
    rows, first_wrong = np.unique(np.searchsorted(stops, wrong, side="right"), return_index=True)
    reasons = {
        row: f"its token {at} is null, or not an id of the tokenizer, which has {ids.size:,}"
        for row, at in zip(rows.tolist(), (wrong[first_wrong] - starts[rows]).tolist(), strict=True)
    }
    others = np.flatnonzero(tokens != ids.eot)
    next_other, last_other = np.append(others, len(tokens)), np.append(-1, others)
    begins = np.minimum(next_other[np.searchsorted(others, starts)], stops)
    ends = np.maximum(last_other[np.searchsorted(others, stops)] + 1, begins)
    if (ends - begins).sum() < len(tokens):
        depth = np.bincount(begins, minlength=len(tokens) + 1)
        depth -= np.bincount(ends, minlength=len(tokens) + 1)
        tokens = tokens[np.cumsum(depth)[:-1] > 0]
    offsets = 4 * np.append(0, np.cumsum(ends - begins))
    content = pa.py_buffer(tokens.astype("<u4"))
    documents = pa.Array.from_buffers(
        pa.large_binary(), len(lists), [None, pa.py_buffer(offsets), content]
    )
    if lists.null_count:
        documents = pc.if_else(lists.is_valid(), documents, pa.scalar(None, pa.large_binary()))
    return documents, reasons
