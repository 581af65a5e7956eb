"""Keys that stay with a dataset (`--keep_keys`), so that later documents can be compared with them.

    metadata/keys/00003-00001.keys      the keys of source file 3 for step 1 of the recipe

A file holds the keys of all documents that reached the step, sorted: packed records, as
`marks.key_dtype` describes them, without a header.
"""

from __future__ import annotations

KEYS_FOLDER = "metadata/keys"


def keys_name(file: int, step: int) -> str:
    """The file of the keys of a source file for a step of the recipe, both numbered from 0."""
    return f"{KEYS_FOLDER}/{file:05d}-{step:05d}.keys"
