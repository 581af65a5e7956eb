"""Random samples that depend on nothing but the numbers they are drawn from."""

import numpy as np
import numpy.typing as npt


def sampled(numbers: npt.NDArray[np.int64], share: float, salt: int = 0) -> npt.NDArray[np.bool_]:
    """Which of `numbers`, shape (n,), are in a sample of about `share` (0 to 1) of all numbers.

    A hash decides each number on its own, so the sample is the same in every run, order and
    grouping. Another `salt` draws another sample.
    """
    z = numbers.astype(np.uint64) + splitmix64(np.array([salt], dtype=np.uint64))
    chosen: npt.NDArray[np.bool_] = (splitmix64(z) >> np.uint64(11)) < share * 2.0**53
    return chosen


def splitmix64(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection of 64-bit words with random-looking results: splitmix64's step and output.

    Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
    """
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z
