"""How fast batches are read as trainers take them: mixed, and as int64 tensors."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.made_up_dataset import make_dataset
from benchmarks.reading import (
    LENGTH,
    SHARD_TOKENS,
    loop_by_hand,
    order,
    read,
    samples_at,
    shard_maps,
    timings_of,
)
from benchmarks.timings import Timing
from fineshards.loader.mixing.mixture import Mixture
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

# Weights and tokens of the sources.
_MIXTURES: dict[str, list[tuple[float, int]]] = {
    "mixture of 3": [(0.6, 200_000_000), (0.3, 100_000_000), (0.1, 60_000_000)],
    "mixture of 50": [(number + 1, 8_000_000) for number in range(50)],
}


def time_training_batches(work: Path, rounds: int, shrink: int, console: Console) -> list[Timing]:
    """Timings at 1/`shrink` of the full sizes. `work`/few holds the dataset of `time_reading`."""
    samples = samples_at(shrink)
    return [
        *(
            timing
            for title, sources in _MIXTURES.items()
            for timing in _time_mixture(work, title, sources, rounds, shrink, samples)
        ),
        *_time_tensors(work / "few", rounds, shrink, samples, console),
    ]


def _time_mixture(
    work: Path,
    title: str,
    sources: Sequence[tuple[float, int]],
    rounds: int,
    shrink: int,
    samples: int,
) -> list[Timing]:
    parts, maps = {}, []
    for number, (weight, tokens) in enumerate(sources):
        folder = work / title / str(number)
        make_dataset(open_storage(str(folder)), tokens // shrink, SHARD_TOKENS)
        dataset = TokenDataset(folder, sequence_length=LENGTH)
        dataset.gather(np.arange(len(dataset)))
        parts[str(number)] = (dataset, weight)
        maps.append(shard_maps(folder))
    mixture = Mixture(parts)
    places = order(mixture, samples, shuffle=True)
    actions = {
        f"by hand, {title}": lambda: loop_by_hand(maps, *places),
        title: lambda: read(mixture, samples),
    }
    return timings_of(actions, samples, rounds, {title: f"by hand, {title}"})


def _time_tensors(
    folder: Path, rounds: int, shrink: int, samples: int, console: Console
) -> list[Timing]:
    if find_spec("torch") is None:
        console.print("torch is not installed: tensors and its loaders are not measured.")
        return []
    from benchmarks.torch_loaders import time_tensors

    return time_tensors(folder, rounds, shrink, samples, console)
