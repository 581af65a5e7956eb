"""Tests of plug-ins for their authors: what every format, step, export and encoder must hold.

Each raises AssertionError with a sentence. The package must be installed.
"""

import os
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fineshards.curation.batch import Batch
from fineshards.curation.recipe import make_step, named_step
from fineshards.curation.step import Judge, Keyed, Step
from fineshards.encoders.checked_encoder import GOLDEN_TEXTS
from fineshards.encoders.loading import encoder_of_vocabulary
from fineshards.encoders.vocabulary import resolve_vocabulary
from fineshards.pipeline.export_run import export
from fineshards.shards.job.settings import Columns
from fineshards.sources.files import describe_files
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.storage.open import open_storage

_BLOCK_BYTES = (1 << 40, 1, 1000, 1 << 40)


def check_format(path: str | os.PathLike[str], text_column: str = "text") -> list[Any]:
    """Checks that a file gives the same rows again, and in blocks of any size.

    Returns:
        (row, text) of each row in order, and (row, "", reason) of bad ones.
    """
    (file,) = describe_files([os.fspath(path)])
    columns = Columns(text_column, "id", id_required=False)
    readings = []
    for size in _BLOCK_BYTES:
        blocks = discover_blocks(file, columns, size)
        _same(pickle.loads(pickle.dumps(blocks)), blocks, "blocks after pickling")
        _same([block.blocks for block in blocks], [len(blocks)] * len(blocks), "counts of blocks")
        reading: list[Any] = []
        for block in blocks:
            for batch in read_block(file, columns, block):
                rows = [*zip(batch.numbers.tolist(), batch.texts.to_pylist(), strict=True)]
                bad = [(each.row, "", each.reason) for each in batch.bad]
                _same(rows, sorted(rows, key=lambda row: row[0]), "the order of rows")
                reading += sorted([*rows, *bad], key=lambda row: row[0])
        readings.append(reading)
    for size, again in zip(_BLOCK_BYTES, readings, strict=True):
        _same(again, readings[0], f"rows in blocks of {size} bytes")
    return readings[0]


def check_step(step: Step, texts: Sequence[str] = GOLDEN_TEXTS) -> list[Any]:
    """Checks that a step can be stored, and depends on each document alone.

    Returns:
        Of each text, why it is dropped or None, and what is left of it; or its keys.
    """
    record = named_step(step).record()
    _same(make_step(record.use, record.parameters, record.use).step, step, "the recorded step")
    _same(pickle.loads(pickle.dumps(step)), step, "the step after pickling")
    together = _decided(step, texts)
    _same([each for text in texts for each in _decided(step, [text])], together, "documents alone")
    _same(_decided(step, texts[::-1])[::-1], together, "documents in another order")
    return together


def _decided(step: Step, texts: Sequence[str]) -> list[Any]:
    batch = Batch.of_texts(texts)
    if isinstance(step, Keyed):
        keys = step.keys(batch)
        return [keys.keys[keys.owners == owner].tolist() for owner in range(len(texts))]
    assert isinstance(step, Judge), "a step is a Judge, a Scorer or Keyed"
    outcome = step.apply(batch)
    if outcome.scores is not None:
        return list(outcome.scores.to_pylist())
    reasons = [*(outcome.reasons or [None] * len(texts))]
    left = zip(reasons, outcome.texts or texts, strict=True)
    return [(reason, text if reason is None else None) for reason, text in left]


def check_export(
    dataset: str | os.PathLike[str], output: str | os.PathLike[str], to: str, **options: Any
) -> dict[str, bytes]:
    """Checks that an export has the same bytes by one thread and by four, and if it goes on.

    Args:
        dataset: A dataset's folder.
        output: An empty folder.
        to: The name of the format.
        options: Other options of `fineshards.export`.

    Returns:
        The content of each file, by name.
    """
    exports = []
    for workers in (1, 4):
        folder = os.path.join(output, str(workers))
        done = export(dataset, folder, to, workers=workers, **options)
        _same(export(dataset, folder, to, workers=workers, **options), done, "a finished export")
        storage = open_storage(folder)
        exports.append({file.name: storage.read(file.name) for file in done.files})
    _same(exports[1], exports[0], "files written by four threads")
    return exports[0]


def check_encoder(
    name: str, texts: Sequence[str] = GOLDEN_TEXTS, tokenizer: str = "cl100k_base"
) -> None:
    """Checks that an encoder has the tokens of the reference, whatever is encoded together."""
    vocabulary = resolve_vocabulary(tokenizer, None)
    encoder, reference = encoder_of_vocabulary(vocabulary, name), encoder_of_vocabulary(vocabulary)
    array = pa.array(texts, pa.large_string())
    batches = [array, *(array[index : index + 1] for index in range(len(texts))), array[:0]]
    for batch in batches:
        encoded, expected = encoder.encode(batch), reference.encode(batch)
        _same(encoded.offsets.tolist(), expected.offsets.tolist(), "offsets")
        same = np.array_equal(encoded.tokens, expected.tokens)
        _same(same, True, f"that the tokens of {str(batch)[:200]} are those of {reference.name}")


def _same(actual: object, expected: object, what: str) -> None:
    if actual != expected:
        raise AssertionError(f"{what}: {str(actual)[:1000]}, expected {str(expected)[:1000]}")
