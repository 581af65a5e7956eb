"""Tokenizing documents again, from the sources, and comparing them with what the shards hold."""

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
from fineshards.shards.hash_sample import sampled
from fineshards.shards.job import Settings
from fineshards.shards.records import SourceFile
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.sources.rows import Rows


def compare_with_sources(dataset: Dataset, percent: float) -> tuple[int, list[str]]:
    """Tokenizes about `percent` percent of the documents again.

    Returns how many were compared, and a sentence for each difference: a source that has changed
    or cannot be read, a document whose tokens, row or number differ.
    """
    settings = dataset.manifest.settings
    encoder = load_reference(settings.tokenizer, dataset.storage)
    compared, problems = 0, []
    document = 0
    for file, report in zip(dataset.manifest.files, dataset.manifest.reports, strict=True):
        try:
            number = document
            counts = Counter[str]()
            for batch in _batches(file, settings):
                rows = batch.with_text()
                numbers = np.arange(number, number + len(rows.numbers))
                chosen = sampled(numbers, percent / 100)
                problems += _compare(dataset, file, rows, number, chosen, encoder)
                compared += int(chosen.sum())
                number += len(rows.numbers)
                counts["documents"] += len(rows.numbers)
                counts["nulls"] += batch.texts.null_count
                counts["rejected"] += len(batch.bad)
                counts["text_bytes"] += pc.sum(pc.binary_length(rows.texts)).as_py() or 0
            for what in ("documents", "nulls", "rejected", "text_bytes"):
                said = getattr(report.counts, what)
                if counts[what] != said:
                    problems.append(f"{file.path} has {counts[what]} {what}, not {said}")
        except FineshardsError as error:
            problems.append(str(error))
        document += report.counts.documents
    return compared, problems


def _batches(file: SourceFile, settings: Settings) -> Iterator[Rows]:
    for block in discover_blocks(file, settings.columns, settings.block_bytes):
        yield from read_block(file, settings.columns, block)


def _compare(
    dataset: Dataset,
    file: SourceFile,
    rows: Rows,
    first: int,
    chosen: npt.NDArray[np.bool_],
    encoder: Encoder,
) -> list[str]:
    problems = []
    batch = encoder.encode(rows.texts.filter(pa.array(chosen)))
    for index, place in enumerate(np.flatnonzero(chosen).tolist()):
        expected = batch.document(index)
        row, id_ = int(rows.numbers[place]), rows.ids[place].as_py()
        try:
            document = dataset.document(first + place)
        except (IndexError, KeyError):
            problems.append(f"{file.path}, row {row}: is in no shard")
            continue
        where = f"{document.shard.name}, document {document.number}"
        if (document.file, document.row, document.id) != (file.path, row, id_):
            problems.append(
                f"{where} is said to be row {document.row} of {document.file} with the id "
                f"{document.id}, but it is row {row} of {file.path} with the id {id_}"
            )
        elif not np.array_equal(document.tokens, expected):
            problems.append(f"{where}: its tokens are not those of {file.path}, row {row}")
    return problems
