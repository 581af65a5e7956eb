"""Rows of a source as the steps of a recipe left them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fineshards.curation.batch import Batch
from fineshards.shards.job.records import SourceFile
from fineshards.sources.rows import Rows


def batch_of(rows: Rows, file: SourceFile) -> Batch:
    """Rows, all with text, as the batch that steps take."""
    return Batch(file.index, rows.numbers, rows.texts, rows.others, rows.others_are_json, file.path)


def survivors(rows: Rows, kept: Batch) -> Rows:
    """The rows of the documents that steps have kept, with the texts that they made."""
    there = rows.filter(np.isin(rows.numbers, kept.rows), rows.bad)
    return replace(there, texts=kept.texts)
