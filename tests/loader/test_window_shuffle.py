"""The order of packed rows: windows are shuffled, then the rows of a few windows together."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.numbered_samples import Numbers
from support.scalar_permutation import ScalarPermutation, scalar_key
from support.shuffled import at_places, at_positions

from fineshards.loader.order import EpochOrder, WindowShuffle
from fineshards.loader.permutation import key

KEY = key(3, "epoch", "", 0)


def listed(samples: int, rows: int, group: int, epoch_key: int) -> list[int]:
    """The whole order by its definition, in plain Python."""
    windows = [range(at, min(at + rows, samples)) for at in range(0, samples, rows)]
    shuffled = ScalarPermutation(len(windows), scalar_key(epoch_key, "windows"))
    order = [windows[shuffled.forward(place)] for place in range(len(windows))]
    found = []
    for number, at in enumerate(range(0, len(order), group)):
        together = [row for window in order[at : at + group] for row in window]
        within = ScalarPermutation(len(together), scalar_key(epoch_key, "rows", number))
        found += [together[within.forward(place)] for place in range(len(together))]
    return found


@given(st.integers(1, 400), st.integers(1, 60), st.integers(1, 12), st.integers(0, 2**64 - 1))
def test_it_is_the_order_of_its_definition_and_back(
    samples: int, rows: int, group: int, epoch_key: int
) -> None:
    """The order of saved states: when this fails, the version in the state must change."""
    expected = listed(samples, rows, group, epoch_key)
    assert sorted(expected) == list(range(samples))
    shuffle = WindowShuffle(samples, rows, group, epoch_key)
    places = np.arange(samples)
    assert at_places(shuffle, places).tolist() == expected
    assert shuffle.inverse(np.array(expected)).tolist() == places.tolist()
    some = np.random.default_rng(samples).permutation(samples)[:5]
    assert at_places(shuffle, some).tolist() == [expected[place] for place in some.tolist()]


@pytest.mark.parametrize("last", [0, 1, 255])
def test_each_group_has_the_rows_of_its_windows_mixed(last: int) -> None:
    rows, group, windows = 256, 16, 100
    samples = (windows - (last > 0)) * rows + last
    order = at_places(WindowShuffle(samples, rows, group, KEY), np.arange(samples))
    begin, seen = 0, 0
    while begin < samples:
        here = order[begin : begin + group * rows]
        if samples % rows and samples - 1 in here.tolist():
            here = here[: len(here) - rows + last]
        values, counts = np.unique(here // rows, return_counts=True)
        assert len(values) == min(group, windows - seen)
        assert set(counts.tolist()) <= {rows, last}
        # 32 neighbours come from most of the windows, and a window's rows are not in order.
        assert len(np.unique(here[:32] // rows)) > min(group, len(values)) / 2
        assert (np.diff(here[here // rows == values[0]]) < 0).any()
        begin, seen = begin + len(here), seen + len(values)
    assert begin == samples


@pytest.mark.parametrize("samples", [2**40 + 12345, 28_000_000 * 256, 2**61 - 1])
@pytest.mark.parametrize(("rows", "group"), [(256, 16), (1, 1), (1000, 7), (2**40, 2**62)])
def test_far_out_sizes_are_a_bijection_and_cost_nothing(
    samples: int, rows: int, group: int
) -> None:
    rng = np.random.default_rng(samples % 1000)
    near = rng.integers(0, samples - 10**4) + np.arange(300)
    places = np.unique(np.concatenate((near, [0, 1, samples - 1, samples - 2])))
    tracemalloc.start()
    shuffle = WindowShuffle(samples, rows, group, KEY)
    found = at_places(shuffle, places)
    back = shuffle.inverse(found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.min() >= 0
    assert found.max() < samples
    assert len(np.unique(found)) == len(places)
    assert np.array_equal(back, places)
    assert peak < 4 << 20


def test_the_shorter_last_window_is_anywhere() -> None:
    """Every place of the last window among five, with one row instead of three."""
    places = set()
    for epoch in range(60):
        epoch_key = key(0, "epoch", "", epoch)
        order = at_places(WindowShuffle(13, 3, 1, epoch_key), np.arange(13)).tolist()
        assert sorted(order) == list(range(13))
        assert order == listed(13, 3, 1, epoch_key)
        places.add(order.index(12))
    assert places == {0, 3, 6, 9, 12}


def test_epochs_of_a_source_are_window_shuffles_with_keys_of_their_own() -> None:
    source = Numbers(1000)
    order = EpochOrder(source, seed=7, name="web", windows=(64, 4))
    found = at_positions(order, np.arange(3000)).reshape(3, 1000).tolist()
    for epoch in range(3):
        assert found[epoch] == listed(1000, 64, 4, scalar_key(7, "epoch", "web", epoch))
        assert order.positions(np.array(found[epoch]), epoch).tolist() == list(
            range(1000 * epoch, 1000 * epoch + 1000)
        )
    assert found[0] != found[1] != found[2]
    kept = EpochOrder(source, seed=7, name="web", shuffle=False, windows=(64, 4))
    assert at_positions(kept, np.arange(1000)).tolist() == list(range(1000))
