"""Inspect: what a finished dataset holds, where its documents are, and the text of tokens."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import load_reference
from fineshards.errors import UsageError, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.shards.counts import Counts
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.job import of_generation
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage
from fineshards.wording import counted, describe_leaks, describe_splits, share, shortened

# Token ids that are shown of a document.
_FIRST_IDS = 12


@dataclass(frozen=True, slots=True)
class MatchedPiece:
    """Tokens `[offset, end)` of a shard, which belong to its document `document`, from 0."""

    shard: str
    document: int
    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class Match:
    """A document with an id or a token.

    number: its number in the stream. file, row: its source. root: where that is, to be put before
    its name. pieces: its tokens, by shard. redacted: whether all of them are EOT by now.
    """

    number: int
    file: str
    row: int
    id: str | None
    pieces: list[MatchedPiece]
    redacted: bool
    root: str


@dataclass(frozen=True, slots=True)
class Matches:
    """All documents with an id."""

    id: str
    matches: list[Match]


@dataclass(frozen=True, slots=True)
class TokenPlace:
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


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A document of a shard.

    document: its number in the shard, of `documents`. number: in the dataset. tokens: all of them,
    of which `[offset, end)` of this shard are in this shard. begins_in, begins_at: the shard and
    the offset of the first. root: where its file is. first_ids: the first token ids. redacted: the
    generation that replaced its tokens by EOT, or 0. learned: of a conversation, the begin and the
    end of each range of its tokens that is learned; None of a text. marked: its text with these in
    brackets.
    """

    shard: str
    document: int
    documents: int
    number: int
    root: str
    file: str
    row: int
    id: str | None
    tokens: int
    offset: int
    end: int
    begins_in: str
    begins_at: int
    first_ids: list[int]
    text: str
    redacted: int = 0
    learned: list[int] | None = None
    marked: str | None = None


def summarize(dataset: Dataset) -> dict[str, Any]:
    """A dataset in a few numbers, for `--json` and reports.

    ids: one more than the tokenizer's largest id. unextracted: pages whose text cannot be
    extracted, by reason. learned: tokens that are learned; None unless documents are conversations.
    inner_eots: EOTs inside of documents, which were tokens already.
    """
    manifest = dataset.manifest
    settings, layout, totals = manifest.settings, manifest.layout, manifest.totals
    tokenizer, shuffle = settings.tokenizer, settings.shuffle
    counted_too = ("tokens", "documents", "nulls", "rejected", "text_bytes")
    return {
        "folder": dataset.storage.root,
        "shards": layout.windows,
        "shard_tokens": layout.shard_tokens,
        "shuffle_seed": None if shuffle is None else shuffle.seed,
        "split": settings.split.described(),
        "splits": manifest.splits,
        "leaks": manifest.leaks,
        **{name: totals[name] for name in counted_too},
        "dtype": settings.dtype,
        "tokenizer": tokenizer.name,
        "ids": tokenizer.size,
        "eot": tokenizer.eot,
        "files": len(manifest.files),
        "files_left_out": len(manifest.job.left_out),
        "origin": {name: value for name, value in manifest.origin.items() if value},
        "fingerprint": manifest.fingerprint,
        "content_fingerprint": manifest.content_fingerprint,
        "generations": [*_generations(manifest)],
        "unextracted": {page.reason: page.rows for page in manifest.counts().unextracted},
        "learned": manifest.learned,
        "inner_eots": totals.get("inner_eots", 0),
    }


def _generations(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """What each generation added, from where, and how many documents it redacted."""
    reports = iter(manifest.reports)
    for number, generation in enumerate(manifest.job.generations, 1):
        counts = Counts.total(report.counts for report in islice(reports, generation.files))
        yield {
            "number": number,
            "files": generation.files,
            "documents": counts.documents,
            "tokens": counts.tokens,
            "redacted": generation.redacted,
            "root": generation.root,
        }


def describe_summary(summary: Mapping[str, Any]) -> list[str]:
    """A dataset in a few lines."""
    root, origin, tokens = summary["generations"][0]["root"], summary["origin"], summary["tokens"]
    lines = [
        summary["folder"],
        f"  shards     {summary['shards']:,}, {counted(summary['shard_tokens'], 'token')} each; "
        "the last of a split, and of an append, may have fewer",
    ]
    if summary["shuffle_seed"] is not None:
        lines.append(f"  order      --shuffle_seed {summary['shuffle_seed']}")
    lines += [f"  split      {summary['split']}", *describe_splits(summary["splits"])]
    if summary["leaks"]:
        lines.append(f"  leaks      {describe_leaks(summary['leaks'])}")
    lines.append(
        f"  tokens     {tokens:,}, {summary['dtype']}, {summary['tokenizer']} with "
        f"{summary['ids']:,} ids, EOT {summary['eot']} before each document"
    )
    if (learned := summary["learned"]) is not None:
        lines.append(f"  learned    {counted(learned, 'token')} ({share(learned, tokens)})")
    if eots := summary["inner_eots"]:
        lines.append(f"  EOTs       {eots:,} inside of documents, which were tokens already")
    lines.append(
        f"  documents  {summary['documents']:,} ({counted(summary['nulls'], 'row')} without text, "
        f"{summary['rejected']:,} rejected)"
    )
    if unextracted := summary["unextracted"]:
        reasons = ", ".join(f"{rows:,} {reason}" for reason, rows in unextracted.items())
        pages = counted(sum(unextracted.values()), "page")
        lines.append(f"  no text    of {pages}, whose text cannot be extracted ({reasons})")
    files = counted(summary["files"], "file")
    if left_out := summary["files_left_out"]:
        files += f", without {left_out:,} that cannot be read (metadata/rejected/)"
    lines.append(f"  text       {summary['text_bytes'] / 1e6:,.1f} MB from {files}")
    if root and "input" not in origin:
        lines.append(f"  input      {shortened(root)}")
    named = [(name, value) for name, value in origin.items() if " " not in name]
    named += [("content", summary["content_fingerprint"]), ("job", summary["fingerprint"])]
    lines += [f"  {name:<10} {shortened(value)}" for name, value in named]
    return [*lines, *_describe_generations(summary["generations"], origin)]


def _describe_generations(
    generations: Sequence[Mapping[str, Any]], origin: Mapping[str, str]
) -> Iterator[str]:
    """One line per generation of a dataset that has grown."""
    if len(generations) == 1:
        return
    yield "  generations"
    for generation in generations:
        number, root, redacted = (generation[name] for name in ("number", "root", "redacted"))
        did = ", ".join(counted(generation[f"{of}s"], of) for of in ("file", "document", "token"))
        if redacted:
            did = f"{counted(redacted, 'document')} redacted"
        places = [value for name, value in origin.items() if name.endswith(of_generation(number))]
        if root and number > 1 and not places:
            places = [root]
        yield f"    {number:<8} {did}" + "".join(f"; {shortened(place)}" for place in places)


def show_document(
    dataset: Dataset, shard_name: str | None, document: int | None, token: int | None
) -> ShownDocument:
    """A document of a shard, or of the dataset: by its number or a token of it, or the first.

    Raises UsageError for a shard, document or token that does not exist.
    """
    if shard_name is None:
        return _first_piece(dataset, document, token)
    position = _shard_position(dataset, shard_name)
    shard = dataset.manifest.shards[position]
    table = dataset.table(position)
    if token is not None:
        _check_number("--token", token, shard.name, "token", shard.tokens)
        return _show_piece(dataset, position, table.index_of_token(token))
    index = document or 0
    _check_number("--document", index, shard.name, "document", len(table))
    return _show_piece(dataset, position, index)


def show_documents(dataset: Dataset, id_: str) -> list[ShownDocument]:
    """The documents with an id; raises UsageError if there is none."""
    return [_first_piece(dataset, number, None) for number in numbers_of_id(dataset, id_)]


def _first_piece(dataset: Dataset, document: int | None, token: int | None) -> ShownDocument:
    """A document by its number in the dataset, or by a token's, where it begins."""
    if token is not None:
        number = find_token(dataset, token).match.number
    else:
        number = checked_document(dataset, document or 0)
    position = dataset.manifest.shards.index(dataset.document(number).shard)
    return _show_piece(dataset, position, dataset.table(position).index_of_document(number))


def _show_piece(dataset: Dataset, position: int, index: int) -> ShownDocument:
    """The document at a place in the table of a shard."""
    shard, table = dataset.manifest.shards[position], dataset.table(position)
    piece = table.piece(index)
    whole = dataset.document(piece.document)
    encoder = load_reference(dataset.manifest.settings.tokenizer, dataset.storage)
    marked = None if piece.learned is None else _marked(encoder, whole.tokens, piece.learned)
    return ShownDocument(
        shard=shard.name,
        document=index,
        documents=len(table),
        number=whole.number,
        root=dataset.root_of(whole.file),
        file=whole.file,
        row=whole.row,
        id=whole.id,
        tokens=len(whole.tokens),
        offset=piece.offset,
        end=piece.offset + piece.length,
        begins_in=whole.shard.name,
        begins_at=whole.offset,
        first_ids=whole.tokens[:_FIRST_IDS].tolist(),
        text=encoder.decode(whole.tokens),
        redacted=piece.redacted,
        learned=piece.learned,
        marked=marked,
    )


def _marked(encoder: Encoder, tokens: npt.NDArray[np.uint32], learned: list[int]) -> str:
    """The text of tokens, with what is learned in brackets."""
    parts = enumerate(map(encoder.decode, np.split(tokens, learned)))
    return "".join(f"⟦{text}⟧" if number % 2 else text for number, text in parts)


def describe_document(shown: ShownDocument) -> list[str]:
    """A document in some lines: where it comes from, where its tokens are, and its text."""
    more = " ..." if shown.tokens > len(shown.first_ids) else ""
    lines = [
        f"{shown.shard}, document {shown.document:,} of {shown.documents:,}; "
        f"number {shown.number:,} in the dataset",
        f"  source  {shown.root}{shown.file}, row {shown.row}",
        f"  id      {shown.id}",
        f"  tokens  {shown.tokens:,}; {shown.offset:,} to {shown.end:,} of this shard",
    ]
    if shown.end - shown.offset != shown.tokens:
        lines.append(f"  begins  in {shown.begins_in} at token {shown.begins_at:,}")
    lines.append(f"  ids     {' '.join(map(str, shown.first_ids))}{more}")
    if shown.redacted:
        return [*lines, f"  redacted in generation {shown.redacted}: its tokens are EOT"]
    if shown.learned is not None:
        learned = sum(shown.learned[1::2]) - sum(shown.learned[::2])
        lines.append(f"  learned {learned:,}, between ⟦ and ⟧")
    return [*lines, "", *(shown.marked or shown.text).split("\n")]


def _shard_position(dataset: Dataset, name: str) -> int:
    """The shard's position in the manifest, from `train/17` or its file name."""
    shards = dataset.manifest.shards
    for position, shard in enumerate(shards):
        if name in (f"{shard.split}/{shard.index}", shard.name):
            return position
    last = {shard.split: shard.index for shard in shards}
    ranges = [f"{split}/0" + f" to {split}/{at}" * (at > 0) for split, at in last.items()]
    raise UsageError(f"--shard {name}: no such shard. This dataset has {' and '.join(ranges)}.")


def find(
    folder: str | os.PathLike[str],
    *,
    id: str | None = None,
    token: int | None = None,
    generation: int | None = None,
) -> Matches | TokenPlace:
    """Finds documents by their id, or the document that a token belongs to.

    Args:
        folder: The dataset's folder, local, `gs://` or `s3://`.
        id: The id. Give this or `token`.
        token: The number of a token, from 0, in all test shards and then all train shards.
        generation: The dataset as it was then, from 1. Default: the latest.

    Returns:
        For an id its Matches, which may be none; for a token its TokenPlace.

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


def find_id(dataset: Dataset, id_: str) -> Matches:
    """The documents whose id is `id_`. Of the document tables only the ids are read.

    A table in which the id is found is then read whole.
    """
    if not isinstance(id_, str):
        raise UsageError(f"--id is {quoted(id_)}; give text.")
    matches: dict[tuple[str, int], Match] = {}
    for position in range(len(dataset.manifest.shards)):
        same = pc.fill_null(pc.equal(dataset.columns(position, ["id"])["id"], id_), False)
        for index in np.flatnonzero(same.to_numpy()):
            match = _match(dataset, position, int(index))
            # A document that straddles shards is in the table of each.
            earlier = matches.setdefault((match.file, match.row), match)
            if earlier is not match:
                earlier.pieces.extend(match.pieces)
    return Matches(id_, list(matches.values()))


def numbers_of_id(dataset: Dataset, id_: str) -> list[int]:
    """The numbers of the documents with an id; raises UsageError if there is none."""
    numbers = [match.number for match in find_id(dataset, id_).matches]
    if not numbers:
        raise UsageError(f"--id {id_}: no document has this id.")
    return numbers


def checked_document(dataset: Dataset, number: int) -> int:
    """The number of a document of the dataset; raises UsageError if there is no such document."""
    documents = dataset.manifest.totals["documents"]
    _check_number("--document", number, "the dataset", "document", documents)
    return number


def _check_number(flag: str, value: int, where: str, unit: str, count: int) -> None:
    if not 0 <= value < count:
        raise UsageError(f"{flag} {value}: {where} has {counted(count, unit)}, numbered from 0.")


def find_token(dataset: Dataset, token: int) -> TokenPlace:
    """Token `token` of the dataset, in the order of the manifest's shards: test, then train.

    Raises UsageError if there is no such token.
    """
    shards = dataset.manifest.shards
    tokens = sum(shard.tokens for shard in shards)
    _check_number("--token", token, "the dataset", "token", tokens)
    offset, position = token, 0
    while offset >= shards[position].tokens:
        offset -= shards[position].tokens
        position += 1
    (token_id,) = dataset.tokens(shards[position], offset, offset + 1)
    match = _match(dataset, position, dataset.table(position).index_of_token(offset))
    return TokenPlace(token, tokens, shards[position].name, offset, int(token_id), match)


def _match(dataset: Dataset, position: int, index: int) -> Match:
    """The document of row `index` of a document table, with that piece alone."""
    piece = dataset.table(position).piece(index)
    shard = dataset.manifest.shards[position].name
    located = MatchedPiece(shard, index, piece.offset, piece.offset + piece.length)
    redacted, root = piece.redacted > 0, dataset.root_of(piece.file)
    return Match(piece.document, piece.file, piece.row, piece.id, [located], redacted, root)


def describe_matches(result: Matches) -> list[str]:
    """All matches, each in some lines."""
    lines = [line for match in result.matches for line in _describe_match(match)]
    return lines or [f"no document has the id {result.id}"]


def describe_place(place: TokenPlace) -> list[str]:
    """Where a token is, and whose it is."""
    return [
        f"token {place.token:,} of {place.tokens:,} is {place.token_id}, "
        f"at {place.offset:,} in {place.shard}",
        *_describe_match(place.match),
    ]


def _describe_match(match: Match) -> list[str]:
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
