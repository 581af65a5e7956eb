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
    first_of_file = 0
    for file, report in zip(dataset.manifest.files, dataset.manifest.reports, strict=True):
        try:
            number = first_of_file
            counts = Counter[str]()
            for rows in _read(file, settings):
                documents = rows.with_text()
                count = len(documents.numbers)
                numbers = np.arange(number, number + count)
                chosen = sampled(numbers, percent / 100) | (numbers == always)
                problems += _compare(dataset, file, documents, number, chosen, encoder)
                compared += int(chosen.sum())
                number += count
                counts["documents"] += count
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
        first_of_file += report.counts.documents
    return compared, problems


def _read(file: SourceFile, settings: Settings) -> Iterator[Rows]:
    for block in discover_blocks(file, settings.columns, settings.block_bytes):
        yield from read_block(file, settings.columns, block)


def _compare(
    dataset: Dataset,
    file: SourceFile,
    documents: Rows,
    first: int,
    chosen: npt.NDArray[np.bool_],
    encoder: Encoder,
) -> list[str]:
    """The differences of the chosen documents; first: the number of the first in the dataset."""
    problems = []
    encoded = encoder.encode(documents.texts.filter(pa.array(chosen)))
    for index, place in enumerate(np.flatnonzero(chosen).tolist()):
        expected = encoded.document(index)
        row, id_ = int(documents.numbers[place]), documents.ids[place].as_py()
        try:
            document = dataset.document(first + place)
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
    return problems
