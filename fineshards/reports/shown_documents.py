"""Some documents of a dataset, with the text of each of their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import load_reference
from fineshards.errors import FineshardsError, OutputError
from fineshards.reports.lengths import Lengths
from fineshards.shards.dataset_files import Dataset, Document
from fineshards.shards.tables.hash_sample import splitmix64

# Tokens that are shown of a document.
MOST_TOKENS = 300
# Documents that a hash chooses, and those of them that are shown: preferably long ones.
TRIED, CHOSEN = 16, 3
LONG_ENOUGH = 32


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens and their text: one token, or several that are one character together."""

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class ShownTokens:
    """A document of a dataset.

    why: it is shown: `shortest`, `longest` or `chosen` by a hash.
    number: in the dataset. shard: where it begins, at token `offset`. file, row, id: its source.
    tokens: all of them, with the EOT. spans: the first, without the EOT; each token by itself,
    without text, where the tokenizer cannot be loaded. decoded: whether it could be loaded.
    """

    why: str
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


def show_documents(dataset: Dataset, lengths: Lengths) -> tuple[ShownTokens, ...]:
    """The shortest and the longest document, and those that the dataset's fingerprint chooses.

    Each once, and only those with text: a report of a damaged dataset shows what is there.
    """
    found: dict[int, tuple[str, Document]] = {}
    for why, numbers, count in (
        ("shortest", lengths.shortest_documents, 1),
        ("longest", lengths.longest_documents, 1),
        ("chosen", _chosen(dataset), CHOSEN),
    ):
        with_text = _with_text(dataset, (each for each in numbers if each not in found))
        if why == "chosen":
            with_text = _long_first(with_text)
        found |= {document.number: (why, document) for document in islice(with_text, count)}
    try:
        encoder = load_reference(dataset.manifest.settings.tokenizer, dataset.storage)
    except FineshardsError:
        encoder = None
    return tuple(_shown(why, document, encoder) for why, document in found.values())


def _chosen(dataset: Dataset) -> list[int]:
    """Numbers of documents, each once, in an order that the fingerprint decides."""
    seed = int(dataset.manifest.fingerprint[:16], 16)
    hashes = splitmix64(np.arange(TRIED, dtype=np.uint64) ^ np.uint64(seed))
    documents = np.uint64(dataset.manifest.totals()["documents"])
    return list(dict.fromkeys((hashes % documents).tolist()))


def _with_text(dataset: Dataset, numbers: Iterable[int]) -> Iterator[Document]:
    """Those that can be read, are not redacted and have text."""
    for number in numbers:
        try:
            document = dataset.document(number)
        except OutputError:
            continue
        if bool(np.any(document.tokens != document.tokens[0])):
            yield document


def _long_first(documents: Iterable[Document]) -> Iterator[Document]:
    """Those that are long enough as they come, then the others, the longest first."""
    short = []
    for document in documents:
        if len(document.tokens) >= LONG_ENOUGH:
            yield document
        else:
            short.append(document)
    yield from sorted(short, key=lambda each: -len(each.tokens))


def _shown(why: str, document: Document, encoder: Encoder | None) -> ShownTokens:
    ids = document.tokens[1:MOST_TOKENS].tolist()
    return ShownTokens(
        why=why,
        number=document.number,
        shard=document.shard.name,
        offset=document.offset,
        file=document.file,
        row=document.row,
        id=document.id,
        tokens=len(document.tokens),
        eot=int(document.tokens[0]),
        spans=token_spans(encoder, ids)
        if encoder
        else tuple(TokenSpan((token,), "") for token in ids),
        decoded=encoder is not None,
    )


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
