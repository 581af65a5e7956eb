"""Refuses an input and an output that overlap.

`--overwrite` would delete input that lies in the output folder, and a job whose output matches its
own input could not be resumed: its files would have become input.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

from fineshards.errors import UsageError
from fineshards.shards.job.job import JOB_NAME
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.job.records import SourceFile
from fineshards.sources.patterns import matches
from fineshards.sources.places.schemes import is_url, without_scheme
from fineshards.storage.base import Storage

# Names as a job writes them, of every kind of which an input pattern may match one.
_WRITTEN = (
    *(JOB_NAME, MANIFEST_NAME, "train/train_0000.npy", "metadata/rejected/00000-00000.jsonl"),
    *("metadata/documents/train_0000.parquet", "metadata/statistics/00000.parquet"),
    *("checkpoints/0/blocks/00000-00000.parquet", "checkpoints/0/blocks/00000-00000.tokens"),
)


def refuse_overlap(storage: Storage, files: Sequence[SourceFile], named: Sequence[str]) -> None:
    """Raises UsageError if an input file lies in the output folder, or would match input there.

    named: the patterns and folders that name the input. Links are resolved.
    """
    output = _place(storage.root)
    for file in files:
        if _place(file.path).startswith(f"{output}/"):
            raise UsageError(
                f"{file.path} is input and lies in --output {storage.root}. Choose an --output "
                "that does not hold the input."
            )
    for pattern in named:
        if _would_match(output, without_scheme(pattern)):
            raise UsageError(
                f"--output {storage.root} lies where --input or --dataset {pattern} would find "
                "its files, so the job could not be resumed. Choose an --output outside of it."
            )


def _would_match(output: str, pattern: str) -> bool:
    """Whether what a job writes into a folder would be found by a pattern or in a folder."""
    wanted = _place(pattern)
    if os.path.isdir(pattern) or not glob.has_magic(pattern):
        return f"{output}/".startswith(f"{wanted}/")
    # A folder that matches is input too, unless its files match: then the pattern is refused.
    found = [f"{output}/{name}".split("/") for name in _WRITTEN]
    prefixes = {tuple(parts[:length]) for parts in found for length in range(1, len(parts) + 1)}
    return any(matches(list(parts), wanted.split("/")) for parts in prefixes)


def _place(path: str) -> str:
    """A local path without links, as far as it has no wildcards; a URL without a last slash."""
    path = without_scheme(path)
    if is_url(path):
        return path.rstrip("/")
    absolute = os.path.abspath(path)
    fixed = absolute
    while any(sign in fixed for sign in "*?[") and not os.path.lexists(fixed):
        fixed = os.path.dirname(fixed)
    return os.path.realpath(fixed) + absolute[len(fixed) :]
