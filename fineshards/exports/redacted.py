"""The tokens of redacted documents, which an export leaves out with `--skip redacted`.

A redacted document is a run of EOTs in its shard. A reader that finds documents by their EOT takes
it for many documents without text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from fineshards.errors import OutputError
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.job import job_name, load_redaction
from fineshards.storage.checksums import checksum_to_base64, crc32c

# Tokens `[begin, end)` of a shard, ascending and apart: int64, shape (n, 2).
Ranges = npt.NDArray[np.int64]
NONE: Mapping[str, Ranges] = MappingProxyType({})


def redacted_ranges(dataset: Dataset) -> dict[str, Ranges]:
    """The tokens of redacted documents, by the names of the shards that have any.

    Raises OutputError if a record of what was redacted is damaged.
    """
    manifest = dataset.manifest
    found: dict[str, list[tuple[int, int]]] = {}
    shards = {(shard.split, shard.index): shard for shard in manifest.shards}
    for split, begin, end in _ranges(dataset):
        while begin < end:
            index, at = manifest.layout.place(split, begin)
            shard = shards[split, index]
            last = min(at + end - begin, shard.tokens)
            found.setdefault(shard.name, []).append((at, last))
            begin += last - at
    return {name: np.array(sorted(ranges), np.int64) for name, ranges in found.items()}


def _ranges(dataset: Dataset) -> Iterator[tuple[str, int, int]]:
    """The tokens of redacted documents, as (split, begin, end) within the split."""
    storage, manifest = dataset.storage, dataset.manifest
    checksums = {file.name: file.crc32c for file in manifest.metadata}
    for number, generation in enumerate(manifest.generations, 1):
        if generation.redacted:
            redaction, name = load_redaction(storage, number, generation), job_name(number)
            found = checksum_to_base64(crc32c(storage.read(name)))
            if found != checksums.get(name, found):
                raise OutputError(
                    f"{storage.path(name)} is damaged: its crc32c is {found}, expected "
                    f"{checksums[name]}. Run fineshards repair, then export again."
                )
            yield from redaction.ranges


def length_of(ranges: Ranges | None) -> int:
    """The number of tokens in ranges."""
    return 0 if ranges is None else int((ranges[:, 1] - ranges[:, 0]).sum())


def kept(ranges: Ranges | None, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Tokens `[first, end)` among those outside of ranges, as ranges of the shard."""
    edges = [0, *(() if ranges is None else ranges.ravel().tolist()), 1 << 63]
    passed = 0  # tokens outside of ranges before `begin`
    for begin, stop in zip(edges[::2], edges[1::2], strict=True):
        low, high = begin + max(first - passed, 0), min(begin + end - passed, stop)
        if low < high:
            yield low, high
        passed += stop - begin


def outside(
    ranges: Ranges, offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which offsets are in no range, and what each is without the tokens in ranges before it."""
    before = np.searchsorted(ranges[:, 1], offsets, side="right")
    left_out = np.append(0, np.cumsum(ranges[:, 1] - ranges[:, 0]))
    inside = before < len(ranges)
    inside[inside] = ranges[before[inside], 0] <= offsets[inside]
    rows = np.flatnonzero(~inside)
    return rows, offsets[rows] - left_out[before[rows]]
