"""The index arrays of Megatron's BlendableDataset and nanotron's Nanosets.

Both choose, sample by sample, the source that is furthest behind its weight. They are for runs that
were started with such arrays; new runs need none with `fineshards.Mixture`.

The rule is a loop over the samples. numba compiles it where it is installed (the extra `numba`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.loader.arguments import checked_integer
from fineshards.loader.sample_sources import Numbers

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.signedinteger]


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
    """Each row's source and number; the target of row i is max(i + first_target, 1)."""
    kind = np.int16 if len(shares) <= 1 << 15 else np.int32
    sources: Indices = np.empty(size, kind)
    numbers: Numbers = np.empty(size, np.int64)
    _fastest_fill()(shares, first_target, sources, numbers)
    return sources, numbers


def _fill(shares: Floats, first_target: int, sources: Indices, numbers: Numbers) -> None:
    """Applies the rule to each row in turn. Plain enough for numba to compile."""
    counts = np.zeros(len(shares))
    for row in range(len(sources)):
        source = (shares * max(row + first_target, 1) - counts).argmax()
        sources[row] = source
        numbers[row] = counts[source]
        counts[source] += 1


@lru_cache(maxsize=1)
def _fastest_fill() -> Callable[[Floats, int, Indices, Numbers], None]:
    """`_fill`, compiled if numba is installed. Both round alike, so the arrays are the same."""
    try:
        from numba import njit
    except ImportError:
        return _fill
    compiled: Callable[[Floats, int, Indices, Numbers], None] = njit(_fill)
    return compiled
