"""Arrays that a training run saved, one after the other in a file."""

from pathlib import Path

import numpy as np


def saved_arrays(path: Path) -> list[np.ndarray]:
    """The arrays in a file that `numpy.save` appended to."""
    read = []
    with path.open("rb") as file:
        while file.tell() < path.stat().st_size:
            read.append(np.load(file))
    return read
