"""The contents of a report: a function of the dataset, as plain values.

Lists have an end, so that a report of 150,000 files is as small as one of ten.
"""

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import load_reference
from fineshards.errors import FineshardsError, OutputError
from fineshards.inspection.inspect import summarize
from fineshards.inspection.stats import Stats, stats
from fineshards.shards.counts import Counts
from fineshards.shards.dataset_files import Dataset, Document
from fineshards.shards.job.job import load_redaction
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import Generation, SourceFile
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
# What is read of a large dataset: some hundred requests, and 80 MB of lengths.
MOST_TABLES = 1_024
MOST_PIECES = 10_000_000
# Tables that are read at the same time.
_THREADS = 8
# Documents that are named as the shortest and the longest: some may have no text.
_NAMED = 8
# Sequence lengths that models are trained with.
SEQUENCE_LENGTHS = tuple(1024 << power for power in range(8))


@dataclass(frozen=True, slots=True)
class LengthBin:
    """Documents of `at_least` to `below - 1` tokens, and their tokens."""

    at_least: int
    below: int
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of documents in tokens, with their EOT.

    tables: document tables that were read, of `of_tables`. documents, tokens: in these. A document
    counts in the shard that it ends in. bins: from that of the shortest document to that of the
    longest, two per power of two. fits: each sequence length, up to the one that fits all, with the
    documents that are no longer, and the tokens of these. median: half of them are no longer.
    shortest_documents, longest_documents: numbers in the dataset of some, the shortest of two
    tokens or more first, and the longest first.
    """

    tables: int
    of_tables: int
    documents: int
    tokens: int
    shortest: int
    median: int
    longest: int
    bins: tuple[LengthBin, ...]
    fits: tuple[tuple[int, int, int], ...]
    shortest_documents: tuple[int, ...] = ()
    longest_documents: tuple[int, ...] = ()


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
    """The contents of a report.

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
    """Returns the contents of a dataset's report.

    generations: all, up to the latest, which may have redacted documents of this one.
    """
    manifest, lengths = dataset.manifest, lengths_of(dataset)
    statistics = None
    if manifest.settings.statistics:
        statistics = stats(dataset.storage.root, generation=manifest.generation)
    return Contents(
        manifest=manifest,
        # Where the dataset lies is not part of it.
        summary=summarize(dataset) | {"folder": ""},
        title=_title(dataset),
        files=_files(manifest),
        lengths=lengths,
        stats=statistics,
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
            redaction = load_redaction(dataset.storage, number, generation)
            documents += sum(file < files for file, _ in redaction.documents)
    return documents


def show_documents(dataset: Dataset, lengths: Lengths) -> tuple[ShownTokens, ...]:
    """The shortest and the longest document, and those that the dataset's fingerprint chooses.

    Each once, and only those with text: a report of a damaged dataset shows what is there.
    """
    shown: dict[int, tuple[str, Document]] = {}
    for why, numbers, count in (
        ("shortest", lengths.shortest_documents, 1),
        ("longest", lengths.longest_documents, 1),
        ("chosen", _chosen(dataset), CHOSEN),
    ):
        with_text = _with_text(dataset, (number for number in numbers if number not in shown))
        if why == "chosen":
            # Those that are long enough as they come, then the others, the longest first.
            with_text = iter(sorted(with_text, key=lambda one: -min(len(one.tokens), LONG_ENOUGH)))
        shown |= {document.number: (why, document) for document in islice(with_text, count)}
    try:
        encoder = load_reference(dataset.manifest.settings.tokenizer, dataset.storage)
    except FineshardsError:
        encoder = None
    return tuple(_shown(why, document, encoder) for why, document in shown.values())


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


def lengths_of(dataset: Dataset) -> Lengths:
    """The lengths of all documents, or of those in a sample of the shards.

    A hash of their positions chooses the shards, so the sample is always the same.
    """
    shards = dataset.manifest.shards
    positions = _measured(dataset)
    with ThreadPoolExecutor(_THREADS) as pool:
        measured = list(pool.map(lambda position: _ended(dataset, position), positions))
    numbers, lengths = np.concatenate(measured, axis=1)
    order = np.argsort(lengths, kind="stable")
    numbers, lengths = numbers[order], lengths[order]
    if not len(lengths):  # a sample of shards in which no document ends
        return Lengths(len(positions), len(shards), 0, 0, 0, 0, 0, (), ())
    # Sums up to each length; int64 holds those of any dataset.
    sums = np.concatenate([[0], np.cumsum(lengths)])

    def up_to(length: int) -> tuple[int, int]:
        count = int(np.searchsorted(lengths, length, side="right"))
        return count, int(sums[count])

    return Lengths(
        tables=len(positions),
        of_tables=len(shards),
        documents=len(lengths),
        tokens=int(sums[-1]),
        shortest=int(lengths[0]),
        median=int(lengths[(len(lengths) - 1) // 2]),
        longest=int(lengths[-1]),
        bins=tuple(
            LengthBin(begin, end, *np.subtract(up_to(end - 1), up_to(begin - 1)).tolist())
            for begin, end in _edges(int(lengths[0]), int(lengths[-1]))
        ),
        fits=tuple(
            (length, *up_to(length))
            for before, length in pairwise((0, *SEQUENCE_LENGTHS))
            if before < lengths[-1]
        ),
        shortest_documents=tuple(numbers[lengths > 1][:_NAMED].tolist()),
        longest_documents=tuple(numbers[::-1][:_NAMED].tolist()),
    )


def _measured(dataset: Dataset) -> list[int]:
    """The positions of the shards whose tables are read, ascending."""
    shards = dataset.manifest.shards
    order = np.argsort(splitmix64(np.arange(len(shards), dtype=np.uint64)), kind="stable")
    pieces = np.cumsum([shards[position].pieces for position in order.tolist()])
    count = max(1, min(bisect_right(pieces.tolist(), MOST_PIECES), MOST_TABLES))
    return sorted(order[:count].tolist())


def _ended(dataset: Dataset, position: int) -> npt.NDArray[np.int64]:
    """Numbers in the dataset and lengths of the documents that end in a shard, shape (2, n)."""
    table = dataset.columns(position, ["document", "start", "length"])
    documents = table["document"].to_numpy()
    first = dataset.manifest.first_number(dataset.manifest.shards[position].split)
    lengths = table["start"].to_numpy() + table["length"].to_numpy()
    ended = len(lengths) - _goes_on(dataset, position, int(documents[-1]))
    return np.stack([documents[:ended] + first, lengths[:ended]])


def _goes_on(dataset: Dataset, position: int, document: int) -> bool:
    """Whether the last document of a shard is also in the next one, which its record says."""
    manifest = dataset.manifest
    if position + 1 == len(manifest.shards):
        return False
    this, following = manifest.shards[position : position + 2]
    apart = manifest.settings.split.by_document and this.split != following.split
    return not apart and following.first_document == document


def _edges(shortest: int, longest: int) -> Iterator[tuple[int, int]]:
    """Bins whose ends are 1, 2, 3, 4, 6, 8, 12, …, from one length to another."""
    ends = [1, *(end for power in range(1, 62) for end in (1 << power, 3 << (power - 1)))]
    first = bisect_right(ends, shortest) - 1
    begins = list(takewhile(lambda end: end <= longest, ends[first:]))
    return zip(begins, ends[first + 1 : first + 1 + len(begins)], strict=True)
