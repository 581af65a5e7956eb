"""Documents tokenized again from their sources, and compared with the shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import load_reference
from fineshards.errors import FineshardsError
from fineshards.shards.dataset import Dataset
from fineshards.shards.hash_sample import sampled, splitmix64
from fineshards.shards.job import Settings
from fineshards.shards.layout import SplitRule
from fineshards.shards.manifest import Manifest
from fineshards.shards.plan import exclusive_sums
from fineshards.shards.records import SourceFile
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.sources.rows import Rows


def compare_with_sources(dataset: Dataset, percent: float) -> tuple[int, list[str]]:
    """Tokenizes about `percent` percent of the documents again, and at least one.

    Returns how many were compared, and one sentence per difference: a source that has changed or
    cannot be read, a document whose tokens, row or number differ.
    """
    settings = dataset.manifest.settings
    encoder = load_reference(settings.tokenizer, dataset.storage)
    compared, problems = 0, []
    documents_in_all = dataset.manifest.totals()["documents"]
    # A small share of few documents may be none of them.
    always = int(splitmix64(np.array([documents_in_all], np.uint64))[0]) % documents_in_all
    firsts = _first_numbers(dataset.manifest)
    for file, report, first in zip(
        dataset.manifest.files, dataset.manifest.reports, firsts, strict=True
    ):
        try:
            numbering = _Numbering(settings.split, first)
            counts = Counter[str]()
            for rows in _read(file, settings):
                documents = rows.with_text()
                hashes = _split_hashes(documents, settings.split, file)
                numbers = numbering.next(len(documents.numbers), hashes)
                chosen = sampled(numbers, percent / 100) | (numbers == always)
                problems += _compare(dataset, file, documents, numbers, hashes, chosen, encoder)
                compared += int(chosen.sum())
                counts["documents"] += len(numbers)
                counts["nulls"] += rows.texts.null_count
                counts["rejected"] += len(rows.bad)
                counts["text_bytes"] += pc.sum(pc.binary_length(documents.texts)).as_py() or 0
            for what in ("documents", "nulls", "rejected", "text_bytes"):
                recorded = getattr(report.counts, what)
                if counts[what] != recorded:
                    problems.append(
                        f"{file.path}: {what} is {counts[what]}; the manifest says {recorded}"
                    )
        except FineshardsError as error:
            problems.append(str(error))
    return compared, problems


def _first_numbers(manifest: Manifest) -> npt.NDArray[np.int64]:
    """The numbers of each file's first document of each stream, shape (files, streams)."""
    counts = np.array([[one.documents for one in each.streams()] for each in manifest.reports])
    return exclusive_sums(counts.T).T


class _Numbering:
    """Numbers a file's documents as the job did: within their streams."""

    def __init__(self, rule: SplitRule, first: npt.NDArray[np.int64]) -> None:
        self._rule = rule
        self._next: list[int] = first.tolist()

    def next(self, count: int, hashes: npt.NDArray[np.uint32] | None) -> npt.NDArray[np.int64]:
        """The numbers of the next `count` documents in the dataset."""
        numbers = np.empty(count, np.int64)
        streams = np.zeros(count, np.bool_) if hashes is None else ~self._rule.in_test(hashes)
        for stream, first in enumerate(self._next):
            own = np.flatnonzero(streams == stream)
            numbers[own] = first + np.arange(len(own))
            self._next[stream] += len(own)
        return numbers


def _split_hashes(
    documents: Rows, rule: SplitRule, file: SourceFile
) -> npt.NDArray[np.uint32] | None:
    return None if rule.key is None else documents.split_hashes(rule.key, file.index)


def _read(file: SourceFile, settings: Settings) -> Iterator[Rows]:
    for block in discover_blocks(file, settings.columns, settings.block_bytes):
        yield from read_block(file, settings.columns, block)


def _compare(
    dataset: Dataset,
    file: SourceFile,
    documents: Rows,
    numbers: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint32] | None,
    chosen: npt.NDArray[np.bool_],
    encoder: Encoder,
) -> list[str]:
    """The differences of the chosen documents. numbers: in the dataset. hashes: of split keys."""
    problems = []
    encoded = encoder.encode(documents.texts.filter(pa.array(chosen)))
    for index, place in enumerate(np.flatnonzero(chosen).tolist()):
        expected = encoded.document(index)
        row, id_ = int(documents.numbers[place]), documents.ids[place].as_py()
        try:
            document = dataset.document(int(numbers[place]))
        except (IndexError, KeyError):
            problems.append(f"{file.path}, row {row} is in no shard")
            continue
        where = f"{document.shard.name}, document {document.number}"
        if (document.file, document.row, document.id) != (file.path, row, id_):
            problems.append(
                f"{where} is recorded as row {document.row} of {document.file} with id "
                f"{document.id}, but it is row {row} of {file.path} with id {id_}"
            )
        elif not np.array_equal(document.tokens, expected):
            problems.append(f"{where}: its tokens differ from those of {file.path}, row {row}")
        elif hashes is not None and document.split_hash != hashes[place]:
            problems.append(
                f"{where}: its split_hash is {document.split_hash}, but that of {file.path}, row "
                f"{row} is {hashes[place]}"
            )
    return problems
