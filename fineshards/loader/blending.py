"""The index arrays of Megatron's BlendableDataset and of nanotron's Nanosets.

Both choose, for each sample in turn, the source that is furthest behind its weight. For training,
`loader.mixture.Mixture` does the same without arrays; these are for runs that were begun with them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.loader.arguments import whole_number
from fineshards.loader.sample_sources import Numbers

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.signedinteger]

# Lanes are stepped together; what they have given must stay in a core's cache.
_LANE_CELLS = 1 << 16
_MOST_LANES = 1 << 13
_LEAST_LANE = 512
# Steps whose results are copied to their places at a time.
_ROWS = 64


def greedy(
    weights: Sequence[float], size: int, lengths: Sequence[int] | None = None
) -> tuple[Indices, Numbers]:
    """(source of each sample, number within the source), by Megatron's rule.

    Sources are int16, as Megatron's, or int32 where there are more than that holds.

    Sample i comes from the source with the largest w * (i + 1) - count, the first of equals, where
    w is its share of the weights and count what it has given before; in doubles, as
    `build_blending_indices` of Megatron-LM (megatron/core/datasets/helpers.cpp) calculates. That
    helper has max(i, 1) for i + 1, so that its first two samples go by the same target and all
    others by that of the sample before. Weights that add up to 1 but for rounding are shares
    already, and not divided by their sum again.

    lengths: samples of each source; numbers begin again at 0 there. Without, they just go on.
    Raises UsageError for weights that are not numbers from 0 on with a positive sum.
    """
    shares = _normalized(weights)
    size = whole_number("size", size, 0)
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

    An epoch has as many samples as all datasets together. Its rows go by the rule of Megatron's
    helper, with max(i, 1), wrapped at each dataset's length, and are shuffled by
    `RandomState(seed)`; the epochs are copies of it, one after the other, cut at `samples`.
    weights: None for the lengths themselves. As in `greedy`, they are not divided by a sum that is
    1 but for rounding: so the documented example comes out. The code of nanotron divides always,
    which for these weights, 0.1, 0.5, 0.3, 0.1, turns some ties; give the quotients to have that.

    Raises UsageError for bad weights or lengths, or a seed outside of 0 to 2^32 - 1.
    """
    shares = _normalized(lengths if weights is None else weights)
    wraps = _checked_lengths(lengths, shares)
    samples, seed = whole_number("samples", samples, 0), whole_number("seed", seed)
    if not 0 <= seed < 2**32:
        raise UsageError(f"seed {seed}: Nanosets take one from 0 to 2^32 - 1.")
    epoch = int(wraps.sum())
    sources, numbers = _sequence(shares, epoch, first_target=0)
    numbers %= wraps[sources]
    order = np.random.RandomState(seed).permutation(epoch)
    return np.resize(sources[order], samples), np.resize(numbers[order], samples)


def _normalized(weights: Sequence[float]) -> Floats:
    given = np.array(weights, dtype=np.float64)
    if given.ndim != 1 or not len(given):
        raise UsageError("blending needs a list of weights, one a source.")
    if not np.isfinite(given).all() or (given < 0).any() or not given.any():
        raise UsageError(
            f"the weights {list(weights)} cannot be blended: they must be numbers from 0 on, "
            "one at least positive."
        )
    total = np.sum(given)
    is_rounding = abs(total - 1) <= len(given) * np.finfo(np.float64).eps
    shares: Floats = given if is_rounding else given / total
    return shares


def _checked_lengths(lengths: Sequence[int], shares: Floats) -> Numbers:
    wraps = np.array(lengths, dtype=np.int64)
    if wraps.shape != shares.shape or (wraps < 1).any():
        raise UsageError(
            f"{len(shares)} sources need {len(shares)} lengths from 1 on, not {list(lengths)}."
        )
    return wraps


def _sequence(shares: Floats, size: int, first_target: int) -> tuple[Indices, Numbers]:
    """Each row's source and number; row i's target is max(i + first_target, 1).

    The rows are cut into lanes that run side by side, shared out to the cores. A lane begins with
    what each source should have given by then, to the nearest whole numbers: the rule pulls such a
    start to the sequence that began with nothing, mostly within a few steps (it is error diffusion
    by the nearest vertex of a regular simplex). That it did is checked: a lane must begin as the
    one before has ended, or is run again from there. So the result is always the plain loop's.
    """
    kind = np.int16 if len(shares) <= 1 << 15 else np.int32
    if (shares == shares[0]).all():
        # The source that has given least, the first of equals: in turn.
        rows = np.arange(size)
        return (rows % len(shares)).astype(kind), rows // len(shares)
    cores = os.cpu_count() or 1
    most = cores * max(1, min(_LANE_CELLS // len(shares), _MOST_LANES))
    lanes = max(1, min(most, size // _LEAST_LANE))
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
            # Lane 0 is right, and so is each that began as one that is right has ended.
            wrong = 1 + np.flatnonzero((ends[:, :-1] != counts[:, 1:]).any(axis=0))
            counts[:, wrong] = ends[:, wrong - 1]
    return into[0].reshape(-1)[:size], into[1].reshape(-1)[:size]


def _nearest(shares: Floats, rows: Numbers) -> Floats:
    """Whole numbers with the sums `rows` that are nearest to the shares of it, a column a row."""
    quotas = shares[:, None] * rows
    counts: Floats = np.floor(quotas)
    missing = rows - counts.sum(axis=0)
    # By largest remainders; the rank of each source's in its column.
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
    """Steps lanes from these first targets and counts, a column a lane; returns the counts then.

    into: where sources and numbers go, in the rows `lanes`.
    """
    counts = np.array(starts, order="C")
    sources, width = counts.shape
    weights, target = shares[:, None], np.empty(width)
    flat = counts.reshape(-1)
    errors, largest = np.empty_like(counts), np.empty(width)
    # The rank of a source, from K for the first down to 1, so that the largest is the first.
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
            # Row 0 of Megatron has the target of row 1.
            np.maximum(target, 1, out=target)
        np.multiply(weights, target, out=errors)
        np.subtract(errors, counts, out=errors)
        np.maximum.reduce(errors, axis=0, out=largest)
        np.equal(errors, largest, out=is_largest)
        np.multiply(is_largest, ranks, out=candidates)
        np.maximum.reduce(candidates, axis=0, out=chosen[row])
        # `clip` spares a check; nothing is out of bounds.
        offsets.take(chosen[row], out=at, mode="clip")
        at += columns
        flat.take(at, out=given[row], mode="clip")
        flat[at] = given[row] + 1
        if into and (row == _ROWS - 1 or step == steps - 1):
            rows = slice(step - row, step + 1)
            into[0][lanes, rows] = sources - chosen[: row + 1].T.astype(into[0].dtype)
            into[1][lanes, rows] = given[: row + 1].T
    return counts
