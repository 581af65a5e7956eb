"""Samples that depend on nothing but the numbers they are drawn from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def sampled(numbers: npt.NDArray[np.int64], share: float, salt: int = 0) -> npt.NDArray[np.bool_]:
    """Which of `numbers`, shape (n,), are in a sample of about `share` (0 to 1) of all numbers.

    Each is decided by itself, by splitmix64 (Steele, Lea, Flood 2014), so the sample is the same in
    every run, in any order and for any batches. Another `salt` draws another sample.
    """
    z = numbers.astype(np.uint64) + _mixed(np.array([salt], dtype=np.uint64))
    chosen: npt.NDArray[np.bool_] = (_mixed(z) >> np.uint64(11)) < share * 2.0**53
    return chosen


def _mixed(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
