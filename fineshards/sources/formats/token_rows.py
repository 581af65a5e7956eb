"""Documents of tokens as rows: a row's text is its tokens without EOT, as little-endian uint32.

So a token file passes through the same steps as text: rows are filtered, hashed and put on a side
by the bytes of their texts, which depend on nothing but the tokens. They become tokens again in
`encoders/token_documents.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.errors import InputError
from fineshards.shards.job.import_record import BEGIN, Imported
from fineshards.shards.job.records import Block, SourceFile
from fineshards.sources.rows import Rows

# Tokens read at a time, unless a document has more.
BATCH_TOKENS = 1 << 20

Tokens = npt.NDArray[np.integer]


def rows_of_tokens(
    file: SourceFile,
    imported: Imported,
    tokens: Tokens,
    borders: npt.NDArray[np.int64],
    first_row: int,
) -> Rows:
    """Rows of n documents.

    tokens: of the documents, as the file has them, EOTs included. borders: where each begins, and
    the end of the last, shape (n+1,). first_row: number of the first document in the file. A
    document without any token, as Megatron's preprocessing writes of an empty text, has a null for
    its text. Raises InputError for an id that is not in the vocabulary, and for a document that has
    not exactly one EOT, at its side.
    """
    ids = _ids(file, imported, tokens, borders, first_row)
    is_eot = ids == imported.eot
    is_there = borders[1:] > borders[:-1]
    sides = (borders[:-1] if imported.eot_side == BEGIN else borders[1:] - 1)[is_there]
    if not np.array_equal(np.flatnonzero(is_eot), sides):
        _refuse_eots(file, imported, ids, borders, first_row)
    documents = len(borders) - 1
    offsets = (borders - np.append(0, np.cumsum(is_there))) * ids.itemsize
    content = pa.py_buffer(np.ascontiguousarray(ids[~is_eot]))
    valid = None if is_there.all() else pa.array(is_there).buffers()[1]
    texts = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), documents, [valid, pa.py_buffer(offsets), content]
    )
    numbers = np.arange(first_row, first_row + documents, dtype=np.int64)
    none = pa.nulls(documents, pa.string())
    return Rows(numbers, texts, none, none, {})


def cut_blocks(
    borders: Iterator[tuple[int, npt.NDArray[np.int64]]], block_tokens: int
) -> list[tuple[int, int]]:
    """The first document and the first token of each block, and of the end of the file.

    borders: runs of documents in order: the number of the first one, and where each begins and the
    last one ends. A block ends with the document that reaches `block_tokens`.
    """
    cuts = [(0, 0)]
    end = (0, 0)
    for first, places in borders:
        if not cuts[1:] and first == 0:
            cuts = [(0, int(places[0]))]
        while True:
            at = int(np.searchsorted(places, cuts[-1][1] + block_tokens))
            if at >= len(places):
                break
            cuts.append((first + at, int(places[at])))
        end = (first + len(places) - 1, int(places[-1]))
    return cuts if cuts[-1] == end and len(cuts) > 1 else [*cuts, end]


def blocks_of(
    file: SourceFile, cuts: list[tuple[int, int]], itemsize: int, by_document: bool
) -> list[Block]:
    """The blocks between the cuts of `cut_blocks`; by_document: what their groups number."""
    which = 0 if by_document else 1
    return [
        Block(
            file=file.index,
            index=index,
            blocks=len(cuts) - 1,
            first_group=cut[which],
            stop_group=following[which],
            first_row=cut[0],
            bytes=(following[1] - cut[1]) * itemsize,
        )
        for index, (cut, following) in enumerate(pairwise(cuts))
    ]


def _ids(
    file: SourceFile,
    imported: Imported,
    tokens: Tokens,
    borders: npt.NDArray[np.int64],
    first_row: int,
) -> npt.NDArray[np.uint32]:
    """Tokens as uint32; raises InputError for one that is not in the vocabulary."""
    if len(tokens):
        wrong = None
        if int(tokens.max()) >= imported.vocabulary:
            wrong = int(np.argmax(tokens >= imported.vocabulary))
        elif int(tokens.min()) < 0:
            wrong = int(np.argmax(tokens < 0))
        if wrong is not None:
            document = int(np.searchsorted(borders, wrong, side="right")) - 1
            raise InputError(
                f"{file.path}, document {first_row + document}: its token "
                f"{wrong - borders[document]} is {tokens[wrong]}, expected an id from 0 to "
                f"{imported.vocabulary - 1}, as --tokenizer has. Give the tokenizer that the file "
                "was made with."
            )
    return tokens.astype("<u4", copy=False)


def _refuse_eots(
    file: SourceFile,
    imported: Imported,
    ids: npt.NDArray[np.uint32],
    borders: npt.NDArray[np.int64],
    first_row: int,
) -> None:
    """Raises InputError for the first document whose EOT is not where it should be."""
    for index in range(len(borders) - 1):
        document = ids[borders[index] : borders[index + 1]]
        where = f"{file.path}, document {first_row + index}"
        at, side = (0, "first") if imported.eot_side == BEGIN else (len(document) - 1, "last")
        if not len(document):
            continue
        if document[at] != imported.eot:
            raise InputError(
                f"{where}: its {side} token is {document[at]}, expected the EOT {imported.eot} "
                f"(--eot_side {imported.eot_side}). Give the side and the tokenizer that the file "
                "was made with; of a dataset with --test_shards, export all shards as one split."
            )
        others = np.flatnonzero(document == imported.eot)
        if len(others) > 1:
            inside = others[1] if imported.eot_side == BEGIN else others[0]
            raise InputError(
                f"{where}: its token {inside} is the EOT {imported.eot}, which only its {side} "
                "token may be. A document that was redacted has EOTs in place of its tokens: "
                "export with --skip redacted."
            )
