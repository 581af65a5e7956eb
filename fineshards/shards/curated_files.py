"""The files that a recipe adds to a dataset.

    metadata/decisions/00003.parquet    the decisions about the rows of source file 3; none if there
                                        are none (`decisions.py`)
    metadata/keys/00003-00001.keys      with `--keep_keys`, the keys of source file 3 for step 1 of
                                        the recipe

A file of keys holds those of all documents that reached the step, sorted: packed records, as
`marks.key_dtype` describes them, without a header. Later documents are compared with them.
"""

from __future__ import annotations

DECISIONS_FOLDER = "metadata/decisions"
KEYS_FOLDER = "metadata/keys"


def decisions_name(file: int) -> str:
    """The file of the decisions about a source file."""
    return f"{DECISIONS_FOLDER}/{file:05d}.parquet"


def keys_name(file: int, step: int) -> str:
    """The file of the keys of a source file for a step of the recipe, both numbered from 0."""
    return f"{KEYS_FOLDER}/{file:05d}-{step:05d}.keys"
