"""The keyed permutation: a bijection at every size that looks like a random one.

Each statistic is the largest z-score of some counts. It is small for our permutations and numpy's,
and large for at least one known bad permutation, which shows that it can detect one.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scalar_permutation import WORD, ScalarPermutation, scalar_hash, scalar_key

import fineshards.loader.permutation as permutation
from fineshards.loader.permutation import Permutation, key

LARGE = [2**32 - 1, 2**32, 2**32 + 1, 4_294_967_311, 2**40 + 7, 10**12, 2**61 - 1, 2**63 - 1]


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 4096, 4097, 8191, 65_536, 65_537, 10**6, *LARGE])
@pytest.mark.parametrize("seed", [0, -1, 2**70])
def test_every_number_is_mapped_as_defined_and_back(n: int, seed: int) -> None:
    """The order of saved states: when this fails, ALGORITHM_VERSION must change."""
    assert permutation.ALGORITHM_VERSION == 1
    epoch_key = key(seed, "epoch", 3)
    assert epoch_key == scalar_key(seed, "epoch", 3)
    numbers = {0, n - 1, n // 2, *(scalar_hash(i) % n for i in range(200))}
    ours = Permutation(n, epoch_key)(np.array(sorted(numbers), np.int64)).tolist()
    scalar = ScalarPermutation(n, epoch_key)
    assert ours == [scalar.forward(number) for number in sorted(numbers)]
    assert [scalar.backward(number) for number in ours] == sorted(numbers)


def whole(n: int, key: int) -> np.ndarray:
    return Permutation(n, key)(np.arange(n))


def is_bijection(p: np.ndarray) -> bool:
    return p.dtype == np.int64 and np.array_equal(np.sort(p), np.arange(len(p)))


@pytest.mark.long
@pytest.mark.parametrize("least", ["table", "network"])
def test_it_is_a_bijection_for_every_size_up_to_some_thousands(
    monkeypatch: pytest.MonkeyPatch, least: str
) -> None:
    """For the network too, although it is not used at these sizes."""
    if least == "network":
        monkeypatch.setattr(permutation, "TABLE_MAXIMUM", 0)
    for n in range(1, 2100):
        assert is_bijection(whole(n, n)), n


SIZES = [4096, *(2**k + d for k in range(13, 18) for d in (-1, 0, 1))]
SIZES += [4097, 5003, 10_007, 65_521, 999_983]


@pytest.mark.parametrize("n", SIZES)
def test_it_is_a_bijection_for_powers_of_two_and_primes(n: int) -> None:
    assert is_bijection(whole(n, key(0, n)))


@pytest.mark.long
@pytest.mark.parametrize("n", LARGE)
def test_no_two_of_many_numbers_collide_beyond_32_bits(n: int) -> None:
    numbers = (np.arange(500_000, dtype=np.uint64) * np.uint64(n // 500_003)).astype(np.int64)
    sent = Permutation(n, 7)(numbers)
    assert sent.min() >= 0
    assert sent.max() < n
    assert len(np.unique(sent)) == len(numbers)
    # The images are spread evenly: their mean divided by n has a standard error of 0.0004.
    assert abs(float(np.mean(sent / n)) - 0.5) < 0.0015


@given(st.integers(1, 2**63 - 1), st.integers(0, WORD), st.data())
def test_a_number_has_the_same_image_alone_and_among_others(
    n: int, key: int, data: st.DataObject
) -> None:
    numbers = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    together = Permutation(n, key)(np.array(numbers, np.int64)).tolist()
    assert together == [int(Permutation(n, key)(np.array([i]))[0]) for i in numbers]


@pytest.mark.parametrize("n", [0, 1, 5, 10**6])
def test_other_numbers_are_refused(n: int) -> None:
    assert len(Permutation(n, 0)(np.empty(0, np.int64))) == 0
    for numbers in ([n], [-1], [0, n] if n else [0]):
        with pytest.raises(IndexError):
            Permutation(n, 0)(np.array(numbers))


# Keys


def test_keys_of_different_arguments_differ() -> None:
    arguments: list[tuple[int | str, ...]] = [
        (seed, "epoch", epoch) for seed in range(-50, 50) for epoch in range(100)
    ]
    arguments += [(0, 1), (1, 0), (0, "1"), (10,), (1,), (0, "ab", "c"), (0, "a", "bc"), (0, "abc")]
    arguments += [(0, ""), (0,), (0, "", ""), (2**64,), (2**64 + 1,), (-1,), (WORD,), (2**5000,)]
    arguments += [(1, 23), (12, 3), (0, "i0x1"), (0, "\ud800")]
    keys = {key(*each) for each in arguments}  # type: ignore[arg-type]
    assert len(keys) == len(arguments)
    assert all(0 <= each <= WORD for each in keys)


def test_numpy_integers_are_integers() -> None:
    assert key(np.int64(-3), np.uint8(4)) == key(-3, 4)  # type: ignore[arg-type]


# Statistics: z-scores of a permutation, about normally distributed for a random one


def _chi2(counts: np.ndarray, expected: float, freedom: int) -> float:
    """By Wilson and Hilferty 1931, which also holds for few degrees of freedom."""
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    return float(((chi2 / freedom) ** (1 / 3) - 1 + spread) / math.sqrt(spread))


def low_bits(p: np.ndarray) -> float:
    """Whether the low bits of a number predict those of its image."""
    i, worst = np.arange(len(p)), 0.0
    for m in (2, 3, 4, 8, 16):
        counts = np.bincount(i % m * m + p % m, minlength=m * m)
        worst = max(worst, abs(_chi2(counts, len(p) / m / m, (m - 1) ** 2)))
    return worst


def differences(p: np.ndarray) -> float:
    """Whether the images of numbers a power of two apart differ in a regular way."""
    worst = 0.0
    for lag in [2**k for k in range((len(p) - 1).bit_length() - 1)]:
        apart = (np.roll(p, -lag) - p) % len(p) * 64 // len(p)
        worst = max(worst, abs(_chi2(np.bincount(apart, minlength=64), len(p) / 64, 63)))
    return worst


def serial_correlation(p: np.ndarray) -> float:
    """Whether an image predicts the image of the next number, or of a later one."""
    centred = p - p.mean()
    lags = [*range(1, 9), *(len(p) // d for d in (2, 3, 4, 8, 16))]
    variance = float(centred @ centred) / len(p)
    return max(
        abs(float(centred @ np.roll(centred, -lag)) / variance / math.sqrt(len(p))) for lag in lags
    )


def flipped_bits(p: np.ndarray) -> float:
    """Whether a flipped bit of a number flips regular bits of its image; for powers of two."""
    width, worst, i = (len(p) - 1).bit_length(), 0.0, np.arange(len(p))
    for bit in range(width):
        pairs = i[i & (1 << bit) == 0]
        flips = p[pairs] ^ p[pairs | (1 << bit)]
        for part in (flips >> (width - width // 2), flips & ((1 << width // 2) - 1)):
            size = 1 << width // 2
            counts = np.bincount(part, minlength=size)
            worst = max(worst, abs(_chi2(counts, len(pairs) / size, size - 1)))
            worst = max(worst, float(np.abs(counts - len(pairs) / size).max())
                        / math.sqrt(len(pairs) / size) / 1.5)  # fmt: skip
    return worst


STATISTICS = [low_bits, differences, serial_correlation, flipped_bits]
# Random permutations stay below; with so many statistics, sizes and keys a few reach 4.
SMALL = 5.0

POWERS = [2**13, 2**14, 2**16]
OTHERS = [4097, 10_007, 2**14 + 1, 65_521, 100_000]


def statistics_of(n: int) -> list[Callable[[np.ndarray], float]]:
    return [each for each in STATISTICS if each is not flipped_bits or n & (n - 1) == 0]


@pytest.mark.long
@pytest.mark.parametrize("n", [4096, *POWERS, *OTHERS])
def test_it_looks_as_random_as_a_permutation_of_numpy(n: int) -> None:
    rng = np.random.default_rng(n)
    for seed in range(5):
        for statistic in statistics_of(n):
            assert statistic(rng.permutation(n)) < SMALL, (statistic.__name__, "numpy", seed)
            assert statistic(whole(n, key(seed, "epoch", 0))) < SMALL, (statistic.__name__, seed)


@pytest.mark.long
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_order_of_a_few_numbers_is_equally_frequent(n: int) -> None:
    keys, orders = 20_000, math.factorial(n)
    weights = np.array([n**i for i in range(n)])
    found = np.unique(
        [int(whole(n, key(0, "epoch", epoch)) @ weights) for epoch in range(keys)],
        return_counts=True,
    )[1]
    assert len(found) == orders
    assert abs(_chi2(found, keys / orders, orders - 1)) < SMALL


def test_epochs_are_independent() -> None:
    """Two random permutations agree in one place on average, with a variance of one."""
    n, pairs = 5000, 400
    orders = [whole(n, key(seed, "epoch", e)) for seed in range(2) for e in range(pairs)]
    for lag in (1, 2, pairs):
        common = [int((a == b).sum()) for a, b in zip(orders, orders[lag:], strict=False)]
        assert abs(np.mean(common) - 1) < SMALL / math.sqrt(len(common))


def test_half_of_the_keys_keep_the_order_of_any_pair() -> None:
    """Small and large numbers come in either order, also for consecutive keys."""
    n, keys = 10_000, 4000
    pairs = np.array([0, 1, n // 2, n - 1])
    places = np.array([Permutation(n, number)(pairs) for number in range(keys)])
    for a in range(4):
        for b in range(a):
            share = Fraction(int((places[:, a] < places[:, b]).sum()), keys)
            assert abs(float(share) - 0.5) < SMALL / math.sqrt(4 * keys)
