"""What a report of a dataset says: a function of the dataset, as plain values.

Lists have an end, so that a report of 150,000 files is as small as one of ten.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import load_reference
from fineshards.errors import FineshardsError, OutputError
from fineshards.inspection.inspect import summarize
from fineshards.inspection.stats import Stats, stats
from fineshards.reports.lengths import Lengths, lengths_of
from fineshards.shards.counts import Counts
from fineshards.shards.dataset_files import Dataset, Document
from fineshards.shards.job.generations import Generation
from fineshards.shards.job.job import load_redaction
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import SourceFile
from fineshards.shards.tables.hash_sample import splitmix64

MOST_FILES = 200
MOST_VALUES = 60
MOST_REASONS = 20
MOST_GENERATIONS = 100
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

    why: it is shown: `shortest`, `longest` or `chosen` by a hash. spans: its first tokens, without
    the EOT; each token by itself, without text, where the tokenizer cannot be loaded. decoded:
    whether it could be loaded.
    """

    why: str
    document: Document
    spans: tuple[TokenSpan, ...]
    decoded: bool

    @property
    def left_out(self) -> int:
        """The number of tokens that are not shown."""
        return len(self.document.tokens) - 1 - sum(len(span.ids) for span in self.spans)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a report says.

    manifest: for the numbers that it has. files: all, or some of many. stats: None without
    statistics, and so without a recipe. overwritten: documents of this dataset that were redacted.
    """

    manifest: Manifest
    summary: dict[str, Any]
    title: str
    files: tuple[tuple[SourceFile, Counts], ...]
    lengths: Lengths
    stats: Stats | None
    documents: tuple[ShownTokens, ...]
    overwritten: int


def contents_of(dataset: Dataset, generations: Sequence[Generation]) -> Contents:
    """What a report of a dataset says.

    generations: all, up to the latest, which may have redacted documents of this one.
    """
    manifest, lengths = dataset.manifest, lengths_of(dataset)
    found = None
    if manifest.settings.statistics:
        found = stats(dataset.storage.root, generation=manifest.generation)
    return Contents(
        manifest=manifest,
        # Where the dataset lies is not part of it.
        summary=summarize(dataset) | {"folder": ""},
        title=_title(dataset),
        files=_files(manifest),
        lengths=lengths,
        stats=found,
        documents=show_documents(dataset, lengths),
        overwritten=_overwritten(dataset, generations),
    )


def _title(dataset: Dataset) -> str:
    """The dataset of the hub that it was made of, or else the name of its folder."""
    origin = dataset.manifest.origin
    if "dataset" in origin:
        return " ".join(filter(None, (origin["dataset"], origin.get("config"))))
    root = dataset.storage.root
    return (root if "://" in root else os.path.abspath(root)).rstrip("/").rpartition("/")[2]


def _files(manifest: Manifest) -> tuple[tuple[SourceFile, Counts], ...]:
    """The files with the most tokens and what became of their rows, in the order of the input."""
    pairs = list(zip(manifest.files, manifest.reports, strict=True))
    largest = sorted(pairs, key=lambda pair: (-pair[1].counts.tokens, pair[0].index))
    chosen = sorted(largest[:MOST_FILES], key=lambda pair: pair[0].index)
    return tuple((file, report.counts) for file, report in chosen)


def _overwritten(dataset: Dataset, generations: Sequence[Generation]) -> int:
    """The documents of a dataset that were redacted, from the job records."""
    files, documents = len(dataset.manifest.files), 0
    for number, generation in enumerate(generations, 1):
        if generation.redacted:
            found = load_redaction(dataset.storage, number, generation)
            documents += sum(file < files for file, _ in found.documents)
    return documents


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
            # Those that are long enough as they come, then the others, the longest first.
            with_text = iter(sorted(with_text, key=lambda one: -min(len(one.tokens), LONG_ENOUGH)))
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
    documents = np.uint64(dataset.manifest.totals["documents"])
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


def _shown(why: str, document: Document, encoder: Encoder | None) -> ShownTokens:
    ids = document.tokens[1:MOST_TOKENS].tolist()
    plain = tuple(TokenSpan((token,), "") for token in ids)
    spans = token_spans(encoder, ids) if encoder else plain
    return ShownTokens(why, document, spans, encoder is not None)


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
