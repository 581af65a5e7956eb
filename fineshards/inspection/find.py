"""Find: the shards that hold a document, by its id, and the document that holds a token."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from fineshards.errors import UsageError, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.shards.dataset_files import Dataset
from fineshards.storage.open import open_storage
from fineshards.wording import counted


@dataclass(frozen=True, slots=True)
class PieceFound:
    """Tokens `[offset, end)` of a shard, which belong to its document `document`, from 0."""

    shard: str
    document: int
    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class Match:
    """A document that was found.

    number: its number in the stream. file, row: its source. root: where that is, to be put before
    its name. pieces: its tokens, by shard. redacted: whether all of them are EOT by now.
    """

    number: int
    file: str
    row: int
    id: str | None
    pieces: list[PieceFound]
    redacted: bool
    root: str


@dataclass(frozen=True, slots=True)
class Found:
    """The documents with an id.

    ids: ids that were compared, one per document and shard. tables: document tables that were
    read: all of the dataset.
    """

    id: str
    ids: int
    tables: int
    matches: list[Match]


@dataclass(frozen=True, slots=True)
class TokenFound:
    """A token of the dataset.

    token: its number in the dataset, of `tokens`. shard, offset: where it is. token_id: the token
    itself. match: its document, with the piece in this shard.
    """

    token: int
    tokens: int
    shard: str
    offset: int
    token_id: int
    match: Match


def find(
    folder: str | os.PathLike[str],
    *,
    id: str | None = None,
    token: int | None = None,
    generation: int | None = None,
) -> Found | TokenFound:
    """Finds documents by their id, or the document that a token belongs to.

    Args:
        folder: The dataset's folder, local, `gs://` or `s3://`.
        id: The id. Give this or `token`.
        token: The number of a token, from 0, in all test shards and then all train shards.
        generation: The dataset as it was then, from 1. Default: the latest.

    Returns:
        For an id a Found, whose `matches` may be empty; for a token a TokenFound.

    Raises:
        UsageError: If there is no such token, or if not one of both is given.
        OutputError: If the dataset is not finished or is damaged.

    Example:
        >>> import fineshards
        >>> place = fineshards.find(dataset_folder, token=250_000)
        >>> place.shard, place.offset, place.match.row
        ('train/train_0001.npy', 50000, 451)
        >>> [match.row for match in fineshards.find(dataset_folder, id=place.match.id).matches]
        [451]
    """
    if (id is None) == (token is None):
        raise UsageError("give an id or a token, and not both.")
    dataset = Dataset.open(open_storage(folder), generation)
    if id is not None:
        return find_id(dataset, id)
    assert token is not None
    return find_token(dataset, checked_integer("--token", token))


def find_id(dataset: Dataset, id_: str) -> Found:
    """The documents whose id is `id_`. Of the document tables only the ids are read.

    A table in which the id is found is then read whole.
    """
    if not isinstance(id_, str):
        raise UsageError(f"--id is {quoted(id_)}; give text.")
    shards = dataset.manifest.shards
    matches: dict[tuple[str, int], Match] = {}
    compared = 0
    for position in range(len(shards)):
        ids = dataset.ids(position)
        compared += len(ids) - ids.null_count
        for index in np.flatnonzero(pc.fill_null(pc.equal(ids, id_), False).to_numpy()):
            match = _match(dataset, position, int(index))
            # A document that straddles shards is in the table of each.
            earlier = matches.setdefault((match.file, match.row), match)
            if earlier is not match:
                earlier.pieces.extend(match.pieces)
    return Found(id_, compared, len(shards), list(matches.values()))


def numbers_of_id(dataset: Dataset, id_: str) -> list[int]:
    """The numbers of the documents with an id; raises UsageError if there is none."""
    numbers = [match.number for match in find_id(dataset, id_).matches]
    if not numbers:
        raise UsageError(f"--id {id_}: no document has this id.")
    return numbers


def check_number(flag: str, value: int, where: str, unit: str, count: int) -> None:
    """Raises UsageError unless a number is one of `count` documents or tokens, the unit."""
    if not 0 <= value < count:
        raise UsageError(f"{flag} {value}: {where} has {counted(count, unit)}, numbered from 0.")


def find_token(dataset: Dataset, token: int) -> TokenFound:
    """Token `token` of the dataset, in the order of the manifest's shards: test, then train.

    Raises UsageError if there is no such token.
    """
    shards = dataset.manifest.shards
    tokens = sum(shard.tokens for shard in shards)
    check_number("--token", token, "the dataset", "token", tokens)
    offset, position = token, 0
    while offset >= shards[position].tokens:
        offset -= shards[position].tokens
        position += 1
    (token_id,) = dataset.tokens(shards[position], offset, offset + 1)
    match = _match(dataset, position, dataset.table(position).index_of_token(offset))
    return TokenFound(token, tokens, shards[position].name, offset, int(token_id), match)


def _match(dataset: Dataset, position: int, index: int) -> Match:
    """The document of row `index` of a document table, with that piece alone."""
    piece = dataset.table(position).piece(index)
    shard = dataset.manifest.shards[position].name
    found = PieceFound(shard, index, piece.offset, piece.offset + piece.length)
    redacted, root = piece.redacted > 0, dataset.root_of(piece.file)
    return Match(piece.document, piece.file, piece.row, piece.id, [found], redacted, root)


def describe_found(found: Found) -> list[str]:
    """All matches, and how much was searched."""
    searched = f"searched {counted(found.ids, 'id')} in {counted(found.tables, 'document table')}"
    if not found.ids:
        return [f"no document of this dataset has an id ({searched})"]
    if not found.matches:
        return [f"no document has the id {found.id} ({searched})"]
    lines = [line for match in found.matches for line in _describe(match)]
    return [*lines, f"found {counted(len(found.matches), 'document')} ({searched})"]


def describe_place(found: TokenFound) -> list[str]:
    """Where a token is, and whose it is."""
    return [
        f"token {found.token:,} of {found.tokens:,} is {found.token_id}, "
        f"at {found.offset:,} in {found.shard}",
        *_describe(found.match),
    ]


def _describe(match: Match) -> list[str]:
    return [
        f"document {match.number:,}",
        f"  source  {match.root}{match.file}, row {match.row}",
        f"  id      {match.id}",
        *(
            f"  tokens  {piece.offset:,} to {piece.end:,} of {piece.shard}, "
            f"its document {piece.document:,}"
            for piece in match.pieces
        ),
        *["  redacted: its tokens are EOT"] * match.redacted,
    ]
