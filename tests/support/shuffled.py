"""The sample numbers of an order, as a loader computes them."""

import numpy as np

from fineshards.loader.order import EpochOrder, GroupedShuffle, WindowShuffle, locate


def at_places(shuffle: GroupedShuffle | WindowShuffle, places: np.ndarray) -> np.ndarray:
    """The sample numbers at places in an epoch."""
    found = np.empty_like(places)
    for permutation, here, begin in shuffle.groups(places):
        found[here] = begin + permutation(places[here] - begin)
    return shuffle.at(found)


def at_positions(order: EpochOrder, positions: np.ndarray) -> np.ndarray:
    """The sample numbers at positions in the sequence of epochs."""
    return locate([order], np.zeros_like(positions), positions)
