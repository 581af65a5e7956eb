"""One document of a dataset with the text of each of its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import load_reference
from fineshards.errors import FineshardsError, OutputError
from fineshards.shards.dataset_files import Dataset, Document
from fineshards.shards.tables.hash_sample import splitmix64

# Tokens that are shown of the document.
MOST_TOKENS = 300
# Documents that are tried, until one is long enough to show something.
TRIED = 16
LONG_ENOUGH = 32


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens and their text: one token, or several that are one character together."""

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class ShownTokens:
    """A document of a dataset.

    number: in the dataset. shard: where it begins, at token `offset`. file, row, id: its source.
    tokens: all of them, with the EOT. spans: the first, without the EOT; each token by itself,
    without text, where the tokenizer cannot be loaded. decoded: whether it could be loaded.
    """

    number: int
    shard: str
    offset: int
    file: str
    row: int
    id: str | None
    tokens: int
    eot: int
    spans: tuple[TokenSpan, ...]
    decoded: bool

    @property
    def shown(self) -> int:
        """The number of tokens that are shown, with the EOT."""
        return 1 + sum(len(span.ids) for span in self.spans)


def show_tokens(dataset: Dataset) -> ShownTokens | None:
    """A document that the dataset's fingerprint chooses; None if none of those tried has text."""
    manifest = dataset.manifest
    document = _chosen(dataset)
    if document is None:
        return None
    ids = document.tokens[1:MOST_TOKENS].tolist()
    try:
        encoder = load_reference(manifest.settings.tokenizer, dataset.storage)
        spans, decoded = token_spans(encoder, ids), True
    except FineshardsError:
        spans, decoded = tuple(TokenSpan((token,), "") for token in ids), False
    return ShownTokens(
        number=document.number,
        shard=document.shard.name,
        offset=document.offset,
        file=document.file,
        row=document.row,
        id=document.id,
        tokens=len(document.tokens),
        eot=int(document.tokens[0]),
        spans=spans,
        decoded=decoded,
    )


def _chosen(dataset: Dataset) -> Document | None:
    """The first long one of some documents, or else the longest of them.

    Those that cannot be read are left out: a report of a damaged dataset shows what is there.
    """
    manifest = dataset.manifest
    seed = int(manifest.fingerprint[:16], 16)
    hashes = splitmix64(np.arange(TRIED, dtype=np.uint64) ^ np.uint64(seed))
    numbers = (hashes % np.uint64(manifest.totals()["documents"])).tolist()
    longest = None
    for number in numbers:
        try:
            document = dataset.document(number)
        except OutputError:
            continue
        if bool(np.all(document.tokens == document.tokens[0])):
            continue  # redacted, or without text
        if longest is None or len(document.tokens) > len(longest.tokens):
            longest = document
        if len(longest.tokens) >= LONG_ENOUGH:
            break
    return longest


def token_spans(encoder: Encoder, ids: list[int]) -> tuple[TokenSpan, ...]:
    """The text of each token, in the context of those before it.

    A character may take several tokens, and some tokenizers decode a token by itself to another
    text than among others. So a span ends where the text so far is the beginning of the whole.
    """
    whole = encoder.decode(np.array(ids, np.uint32))
    spans: list[TokenSpan] = []
    begin, shown = 0, 0
    for end in range(1, len(ids) + 1):
        text = encoder.decode(np.array(ids[:end], np.uint32))
        if end == len(ids) or (len(text) > shown and whole.startswith(text)):
            spans.append(TokenSpan(tuple(ids[begin:end]), text[shown:]))
            begin, shown = end, len(text)
    return tuple(spans)
