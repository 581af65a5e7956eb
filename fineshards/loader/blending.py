"""The index arrays of Megatron's BlendableDataset and nanotron's Nanosets.

Both choose, sample by sample, the source that is furthest behind its weight. They are for runs that
were started with such arrays; new runs need none with `fineshards.Mixture`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.loader.arguments import checked_integer
from fineshards.loader.sample_sources import Numbers

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.signedinteger]

# Lanes advance together, and their counts must fit in a core's cache.
_LANE_CELLS = 1 << 16
_MAX_LANES = 1 << 13
_MIN_LANE_ROWS = 512
# Steps whose results are written back together.
_ROWS = 64


def greedy(
    weights: Sequence[float], size: int, lengths: Sequence[int] | None = None
) -> tuple[Indices, Numbers]:
    """Megatron's index arrays: the source of each sample, and its number within the source.

    Sample i comes from the source with the largest w * (i + 1) - count, the first of equals. Here w
    is the source's share of the weights and count its samples so far, in doubles, as in
    `build_blending_indices` of Megatron-LM (megatron/core/datasets/helpers.cpp). That helper uses
    max(i, 1) for i + 1: its first two samples have the same target, and every later sample has
    the target of the one before. Weights whose sum is 1 up to rounding are not divided by it again.

    Args:
        weights: One number of at least 0 per source, at least one positive.
        size: The number of samples.
        lengths: The number of samples of each source; numbers wrap to 0 there. None lets them
            grow without a limit.

    Returns:
        (sources, numbers), both of shape (size,). Sources are int16 as in Megatron, or int32 if
        there are more than 2^15 sources. Numbers are int64.

    Raises:
        UsageError: The weights, the size or the lengths are not valid.

    Example:
        >>> sources, numbers = greedy([0.6, 0.4], size=5)
        >>> sources.tolist(), numbers.tolist()
        ([0, 1, 0, 1, 0], [0, 0, 1, 1, 2])
    """
    shares = _normalized(weights)
    size = checked_integer("size", size, 0)
    sources, numbers = _sequence(shares, size, first_target=1)
    if lengths is not None:
        numbers %= _checked_lengths(lengths, shares)[sources]
    return sources, numbers


def nanoset(
    lengths: Sequence[int],
    samples: int,
    weights: Sequence[float] | None = None,
    seed: int = 1234,
) -> tuple[Indices, Numbers]:
    """Nanosets' dataset_index and dataset_sample_index (nanotron, docs/nanoset.md).

    An epoch has as many samples as all datasets together. Its rows follow the rule of Megatron's
    helper, with max(i, 1), wrap at each dataset's length, and are shuffled by `RandomState(seed)`.
    The result is copies of this epoch, cut at `samples`.

    As in `greedy`, weights are not divided by a sum that is 1 up to rounding. This reproduces the
    documented example. nanotron's code always divides, which breaks some ties of its weights
    (0.1, 0.5, 0.3, 0.1) differently; pass the quotients to reproduce the code.

    Args:
        lengths: The number of samples of each dataset, at least 1.
        samples: The length of the arrays.
        weights: One number of at least 0 per dataset; None for the lengths.
        seed: An integer from 0 to 2^32 - 1.

    Returns:
        (sources, numbers), both of shape (samples,). Sources are int16 or int32, numbers int64.

    Raises:
        UsageError: The weights, the lengths, `samples` or the seed are not valid.

    Example:
        >>> sources, numbers = nanoset([2, 1], samples=6)
        >>> sources.tolist(), numbers.tolist()
        ([0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 1])
    """
    shares = _normalized(lengths if weights is None else weights)
    wraps = _checked_lengths(lengths, shares)
    samples, seed = checked_integer("samples", samples, 0), checked_integer("seed", seed)
    if not 0 <= seed < 2**32:
        raise UsageError(f"seed is {seed}; Nanosets need one from 0 to 2^32 - 1.")
    epoch = int(wraps.sum())
    sources, numbers = _sequence(shares, epoch, first_target=0)
    numbers %= wraps[sources]
    order = np.random.RandomState(seed).permutation(epoch)
    return np.resize(sources[order], samples), np.resize(numbers[order], samples)


def _normalized(weights: Sequence[float]) -> Floats:
    given = np.array(weights, dtype=np.float64)
    if given.ndim != 1 or not len(given):
        raise UsageError("blending needs a list of weights, one per source.")
    if not np.isfinite(given).all() or (given < 0).any() or not given.any():
        raise UsageError(
            f"the weights {list(weights)} cannot be blended: give numbers of at least 0, at least "
            "one positive."
        )
    total = np.sum(given)
    is_rounding = abs(total - 1) <= len(given) * np.finfo(np.float64).eps
    shares: Floats = given if is_rounding else given / total
    return shares


def _checked_lengths(lengths: Sequence[int], shares: Floats) -> Numbers:
    wraps = np.array(lengths, dtype=np.int64)
    if wraps.shape != shares.shape or (wraps < 1).any():
        raise UsageError(
            f"{len(shares)} sources need {len(shares)} lengths of at least 1, not {list(lengths)}."
        )
    return wraps


def _sequence(shares: Floats, size: int, first_target: int) -> tuple[Indices, Numbers]:
    """Each row's source and number; the target of row i is max(i + first_target, 1).

    The rows are cut into lanes that run in parallel, distributed over the cores. A lane starts from
    the counts that the sources should have by then, rounded to integers. From there the rule
    usually converges to the true sequence within a few steps: it is error diffusion by the nearest
    vertex of a regular simplex. This is checked: if a lane's start differs from the end of the
    lane before it, the lane is run again from there. So the result always equals a plain loop's.
    """
    kind = np.int16 if len(shares) <= 1 << 15 else np.int32
    if (shares == shares[0]).all():
        # The source with the fewest samples, the first of equals: round robin.
        rows = np.arange(size)
        return (rows % len(shares)).astype(kind), rows // len(shares)
    cores = os.cpu_count() or 1
    most = cores * max(1, min(_LANE_CELLS // len(shares), _MAX_LANES))
    lanes = max(1, min(most, size // _MIN_LANE_ROWS))
    length = -(-size // lanes)
    rows = np.arange(lanes) * length
    into = (np.empty((lanes, length), kind), np.empty((lanes, length), np.int64))
    run_up = min(4 * len(shares) + 24, length)
    counts = np.zeros((len(shares), lanes))
    before = rows[1:] - run_up
    counts[:, 1:] = _run(shares, before + first_target, _nearest(shares, before), run_up)
    ends = np.empty_like(counts)
    wrong = np.arange(lanes)
    with ThreadPoolExecutor(cores) as pool:
        while len(wrong):

            def run(lanes: Numbers) -> None:
                targets = rows[lanes] + first_target
                ends[:, lanes] = _run(shares, targets, counts[:, lanes], length, into, lanes)

            list(pool.map(run, np.array_split(wrong, min(cores, len(wrong)))))
            # Lane 0 is right, and so is each lane that starts where a right one ends.
            wrong = 1 + np.flatnonzero((ends[:, :-1] != counts[:, 1:]).any(axis=0))
            counts[:, wrong] = ends[:, wrong - 1]
    return into[0].reshape(-1)[:size], into[1].reshape(-1)[:size]


def _nearest(shares: Floats, rows: Numbers) -> Floats:
    """For each row a column of integers with the sum `row`, nearest to the shares of it."""
    quotas = shares[:, None] * rows
    counts: Floats = np.floor(quotas)
    missing = rows - counts.sum(axis=0)
    # By largest remainders: the rank of each source within its column.
    ranks = np.argsort(np.argsort(counts - quotas, axis=0, kind="stable"), axis=0, kind="stable")
    counts += ranks < missing
    return counts


def _run(
    shares: Floats,
    targets: Numbers,
    starts: Floats,
    steps: int,
    into: tuple[Indices, Numbers] | None = None,
    lanes: Numbers | None = None,
) -> Floats:
    """Advances lanes from their first targets and counts, one column per lane; returns the counts.

    into: arrays for the sources and numbers, written to the rows `lanes`.
    """
    counts = np.array(starts, order="C")
    sources, width = counts.shape
    weights, target = shares[:, None], np.empty(width)
    flat = counts.reshape(-1)
    errors, largest = np.empty_like(counts), np.empty(width)
    # Ranks from K for the first source down to 1, so that the largest is the first of equals.
    kind = np.min_scalar_type(sources)
    ranks = np.arange(sources, 0, -1, dtype=kind)[:, None]
    offsets = (sources - np.arange(sources + 1)) * width
    is_largest = np.empty(counts.shape, dtype=bool)
    candidates = np.empty(counts.shape, dtype=kind)
    at, columns = np.empty(width, dtype=np.int64), np.arange(width)
    chosen = np.empty((_ROWS, width), dtype=kind)
    given = np.empty((_ROWS, width))
    for step in range(steps):
        row = step % _ROWS
        np.add(targets, step, out=target)
        if step == 0:
            # In Megatron, row 0 has the target of row 1.
            np.maximum(target, 1, out=target)
        np.multiply(weights, target, out=errors)
        np.subtract(errors, counts, out=errors)
        np.maximum.reduce(errors, axis=0, out=largest)
        np.equal(errors, largest, out=is_largest)
        np.multiply(is_largest, ranks, out=candidates)
        np.maximum.reduce(candidates, axis=0, out=chosen[row])
        # `clip` skips a bounds check; no index is out of bounds.
        offsets.take(chosen[row], out=at, mode="clip")
        at += columns
        flat.take(at, out=given[row], mode="clip")
        flat[at] = given[row] + 1
        if into and (row == _ROWS - 1 or step == steps - 1):
            rows = slice(step - row, step + 1)
            into[0][lanes, rows] = sources - chosen[: row + 1].T.astype(into[0].dtype)
            into[1][lanes, rows] = given[: row + 1].T
    return counts
