"""The files that a recipe, and statistics, add to a dataset.

    metadata/decisions/00003.parquet    the decisions about the rows of source file 3; none if there
                                        are none (`decisions.py`)
    metadata/scores/00003.parquet       what the steps `score` gave the documents of source file 3
                                        (`scores.py`); none if none has reached such a step
    metadata/keys/00003-00001.keys      with `--keep_keys`, the keys of source file 3 for step 1 of
                                        the recipe
    metadata/statistics/00003.parquet   what was counted of source file 3 (`statistics.py`)

A file of keys holds those of all documents that reached the step, sorted: packed records, as
`marks.key_dtype` describes them, without a header. Later documents are compared with them.
"""

from __future__ import annotations

DECISIONS_FOLDER = "metadata/decisions"
KEYS_FOLDER = "metadata/keys"
SCORES_FOLDER = "metadata/scores"
STATISTICS_FOLDER = "metadata/statistics"
CURATED_FOLDERS = (DECISIONS_FOLDER, KEYS_FOLDER, SCORES_FOLDER, STATISTICS_FOLDER)


def decisions_name(file: int) -> str:
    """The file of the decisions about a source file."""
    return f"{DECISIONS_FOLDER}/{file:05d}.parquet"


def scores_name(file: int) -> str:
    """The file of the scores of a source file."""
    return f"{SCORES_FOLDER}/{file:05d}.parquet"


def keys_name(file: int, step: int) -> str:
    """The file of the keys of a source file for a step of the recipe, both numbered from 0."""
    return f"{KEYS_FOLDER}/{file:05d}-{step:05d}.keys"


def statistics_name(file: int) -> str:
    """The file of the statistics of a source file."""
    return f"{STATISTICS_FOLDER}/{file:05d}.parquet"
