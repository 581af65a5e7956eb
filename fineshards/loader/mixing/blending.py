"""The index arrays of Megatron's BlendedDataset and nanotron's Nanosets.

Both choose, sample by sample, the source that is furthest behind its weight. They are for runs that
were started with such arrays; new runs need none with `fineshards.Mixture`.

The rule is a loop over the samples. numba compiles it where it is installed (the extra `numba`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.loader.sample_sources import Numbers

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.signedinteger]


def greedy(
    weights: Sequence[float], size: int, lengths: Sequence[int] | None = None
) -> tuple[Indices, Numbers]:
    """Index arrays by Megatron's rule: the source of each sample, and its number within the source.

    Sample i comes from the source with the largest w * max(i, 1) - count, the first of equals. Here
    w is the source's share of the weights and count its samples so far, in doubles. The arrays are
    those of `build_blending_indices` (megatron/core/datasets/helpers.cpp), bit for bit.

    Weights whose sum is 1 up to rounding are used as they are, as that helper does. Other weights
    are divided by their sum. `megatron_weights` makes those that Megatron passes to its helper.

    Args:
        weights: One number of at least 0 per source, at least one positive.
        size: The number of samples. Shorter arrays are the beginning of longer ones.
        lengths: The number of samples of each source; numbers wrap to 0 there. None lets them
            grow without a limit, as Megatron does.

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
    shares = _shares(weights)
    size = checked_integer("size", size, 0)
    wraps = None if lengths is None else _checked_lengths(lengths, len(shares))
    sources, numbers = _sequence(shares, size)
    if wraps is not None:
        numbers %= wraps[sources]
    return sources, numbers


def megatron_weights(weights: Sequence[float]) -> list[float]:
    """The weights that Megatron passes to its helper for the weights of a run's arguments.

    Megatron divides them by their sum, and the results by theirs, which is 1 up to rounding. This
    decides which of two sources comes first where both are equally far behind.

    Args:
        weights: One number of at least 0 per source, as given to Megatron.

    Returns:
        The weights for `greedy`.

    Raises:
        UsageError: The weights are not valid.

    Example:
        >>> megatron_weights([0.1, 0.5, 0.3, 0.1])
        [0.09999999999999999, 0.5, 0.3, 0.09999999999999999]
    """
    twice: list[float] = _divided(_divided(_checked_weights(weights))).tolist()
    return twice


def exhaustive(lengths: Sequence[int]) -> tuple[Indices, Numbers]:
    """Megatron's index arrays where no weights are given: every sample of every source once.

    As `build_exhaustive_blending_indices` of Megatron-LM. The rule is that of `greedy` with the
    lengths as weights, among the sources that have samples left.

    Args:
        lengths: The number of samples of each source, at least 1.

    Returns:
        (sources, numbers), both of shape (sum(lengths),), with the dtypes of `greedy`.

    Raises:
        UsageError: The lengths are not valid.

    Example:
        >>> sources, numbers = exhaustive([3, 1])
        >>> sources.tolist(), numbers.tolist()
        ([0, 1, 0, 0], [0, 0, 1, 2])
    """
    caps = _checked_lengths(lengths)
    return _sequence(caps / float(caps.sum()), int(caps.sum()), caps.astype(np.float64))


def nanoset(
    lengths: Sequence[int],
    samples: int,
    weights: Sequence[float] | None = None,
    seed: int = 1234,
) -> tuple[Indices, Numbers]:
    """The dataset_index and dataset_sample_index of nanotron's Nanosets.

    As its src/nanotron/data/nanoset.py makes them; the example of its documentation breaks some
    ties otherwise. An epoch has as many samples as all datasets together. Its rows follow the rule
    of `greedy`, wrap at each dataset's length, and are shuffled by `RandomState(seed)`. The result
    is copies of this epoch, cut at `samples`.

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
    shares = _divided(_checked_weights(lengths if weights is None else weights))
    wraps = _checked_lengths(lengths, len(shares))
    samples, seed = checked_integer("samples", samples, 0), checked_integer("seed", seed)
    if not 0 <= seed < 2**32:
        raise UsageError(f"seed is {seed}; Nanosets need one from 0 to 2^32 - 1.")
    sources, numbers = _sequence(shares, int(wraps.sum()))
    numbers %= wraps[sources]
    order = np.random.RandomState(seed).permutation(len(sources))
    with _within_memory(samples):
        return np.resize(sources[order], samples), np.resize(numbers[order], samples)


def _checked_weights(weights: Sequence[float] | Floats) -> Floats:
    """The weights as doubles."""
    try:
        given = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        given = np.empty(0)
    if given.ndim != 1 or not len(given):
        raise UsageError("blending needs a list of weights, one number per source.")
    is_boolean = any(isinstance(weight, bool | np.bool_) for weight in weights)
    if is_boolean or not np.isfinite(given).all() or (given < 0).any() or not given.any():
        raise UsageError(
            f"the weights {quoted(list(weights))} cannot be blended: give numbers of at least 0, "
            "at least one positive."
        )
    return given


def _shares(weights: Sequence[float] | Floats) -> Floats:
    """The weights, divided by their sum unless it is 1 up to rounding."""
    given = _checked_weights(weights)
    is_rounding = abs(np.sum(given) - 1) <= len(given) * np.finfo(np.float64).eps
    return given if is_rounding else _divided(given)


def _divided(weights: Floats) -> Floats:
    shares: Floats = weights / np.sum(weights)
    return shares


def _checked_lengths(lengths: Sequence[int], count: int | None = None) -> Numbers:
    """The lengths as int64; raises UsageError if there are not `count` of at least 1."""
    try:
        listed = list(lengths)
    except TypeError:
        raise UsageError(f"the lengths are {lengths!r}; give one integer per source.") from None
    checked = [checked_integer("a length", length, 1) for length in listed]
    count = max(1, len(checked)) if count is None else count
    if len(checked) != count:
        raise UsageError(f"{count} sources need {count} lengths, not {quoted(checked)}.")
    if sum(checked) >= 1 << 63:
        raise UsageError(f"the lengths {quoted(checked)} are too large to be indexed.")
    return np.array(checked, dtype=np.int64)


@contextmanager
def _within_memory(size: int) -> Iterator[None]:
    """Raises UsageError where arrays of `size` rows cannot be allocated."""
    try:
        yield
    except (MemoryError, ValueError):
        raise UsageError(
            f"index arrays of {size:,} samples do not fit into memory; make shorter ones."
        ) from None


def _sequence(shares: Floats, size: int, caps: Floats | None = None) -> tuple[Indices, Numbers]:
    """Each row's source and number.

    caps: how many samples each source has; None for no limit.
    """
    kind = np.int16 if len(shares) <= 1 << 15 else np.int32
    with _within_memory(size):
        sources: Indices = np.empty(size, kind)
        numbers: Numbers = np.empty(size, np.int64)
    caps = np.full(len(shares), np.inf) if caps is None else caps
    _fastest_fill()(shares, caps, sources, numbers)
    return sources, numbers


def _fill(shares: Floats, caps: Floats, sources: Indices, numbers: Numbers) -> None:
    """Applies the rule to each row in turn."""
    counts = np.zeros(len(shares))
    for row in range(len(sources)):
        source = (shares * max(row, 1) - counts).argmax()
        sources[row] = source
        numbers[row] = counts[source]
        counts[source] += 1
        if counts[source] == caps[source]:
            # Nothing is further ahead, so it is never chosen again.
            counts[source] = np.inf


def _fill_in_loops(shares: Floats, caps: Floats, sources: Indices, numbers: Numbers) -> None:
    """`_fill` in loops, for numba."""
    counts = np.zeros(len(shares))
    for row in range(len(sources)):
        target = float(max(row, 1))
        source, most = 0, shares[0] * target - counts[0]
        for other in range(1, len(shares)):
            behind = shares[other] * target - counts[other]
            if behind > most:
                source, most = other, behind
        number = counts[source]
        sources[row] = source
        numbers[row] = number
        counts[source] = number + 1 if number + 1 < caps[source] else np.inf


@cache
def _fastest_fill() -> Callable[[Floats, Floats, Indices, Numbers], None]:
    """`_fill`, compiled if numba is installed."""
    try:
        from numba import njit
    except ImportError:
        return _fill
    compiled: Callable[[Floats, Floats, Indices, Numbers], None]
    compiled = njit(_fill_in_loops)
    return compiled
