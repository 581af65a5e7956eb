"""Which documents the tokens of a sample belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from fineshards.shards.tables.documents import DocumentPiece, DocumentTable


@dataclass(frozen=True, slots=True)
class SampleDocument:
    """The part of a document that lies in a sample.

    Attributes:
        number: The document's number in the dataset; documents of the test split come first.
        file: The source file of its text.
        row: The row in that file.
        id: The value of the id column; None if there is none.
        begin: Where the part starts in the sample, in tokens.
        end: Where it ends, exclusive.
        position: Tokens of the document before `begin`; 0 if its EOT is at `begin`.
    """

    number: int
    file: str
    row: int
    id: str | None
    begin: int
    end: int
    position: int


@dataclass(frozen=True, slots=True)
class WholeDocument:
    """A document of a dataset.

    Attributes:
        number: Its number in the dataset; documents of the test split come first.
        file: The source file of its text.
        row: The row in that file.
        id: The value of the id column; None if there is none.
        text: Its text, from its tokens; empty if it was redacted.
        tokens: Its tokens, uint32, shape (n,), EOT first; all EOT if it was redacted.
        redacted: Whether it was redacted.
    """

    number: int
    file: str
    row: int
    id: str | None
    text: str
    tokens: npt.NDArray[np.uint32]
    redacted: bool


def pieces_between(
    tables: Iterable[tuple[int, DocumentTable]], begin: int, end: int
) -> Iterator[tuple[int, DocumentPiece]]:
    """The pieces of documents in tokens [begin, end), each with the token where it begins.

    tables: consecutive document tables, each with the first token of its shard.
    """
    for at, table in tables:
        number = table.index_of_token(max(begin - at, 0))
        while number < len(table) and at + table.offset[number] < end:
            piece = table.piece(number)
            yield at + piece.offset, piece
            number += 1


def documents_of(
    pieces: Iterable[tuple[int, DocumentPiece]], begin: int, end: int
) -> list[SampleDocument]:
    """The documents of consecutive pieces, as far as they lie in tokens [begin, end).

    A document that goes on in the next shard has a piece in each, and is one document here.
    """
    found: list[SampleDocument] = []
    for at, piece in pieces:
        first, last = max(at, begin), min(at + piece.length, end)
        position = first - at + piece.start
        if found and found[-1].number == piece.document:
            before = found.pop()
            first, position = begin + before.begin, before.position
        found.append(
            SampleDocument(
                number=piece.document,
                file=piece.file,
                row=piece.row,
                id=piece.id,
                begin=first - begin,
                end=last - begin,
                position=position,
            )
        )
    return found
