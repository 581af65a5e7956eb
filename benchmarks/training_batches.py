"""How fast batches are read as trainers take them: mixed, and as int64 tensors."""

from __future__ import annotations

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

_PARTS = {"large": (0.6, 200_000_000), "medium": (0.3, 100_000_000), "small": (0.1, 60_000_000)}


def time_training_batches(work: Path, rounds: int, shrink: int, console: Console) -> list[Timing]:
    """Timings at 1/`shrink` of the full sizes. `work`/few holds the dataset of `time_reading`."""
    samples = samples_at(shrink)
    return [
        *_time_mixture(work, rounds, shrink, samples),
        *_time_tensors(work / "few", rounds, shrink, samples, console),
    ]


def _time_mixture(work: Path, rounds: int, shrink: int, samples: int) -> list[Timing]:
    parts, maps = {}, []
    for name, (weight, tokens) in _PARTS.items():
        make_dataset(open_storage(str(work / name)), tokens // shrink, SHARD_TOKENS)
        dataset = TokenDataset(work / name, sequence_length=LENGTH)
        dataset.gather(np.arange(len(dataset)))
        parts[name] = (dataset, weight)
        maps.append(shard_maps(work / name))
    mixture = Mixture(parts)
    places = order(mixture, samples, shuffle=True)
    actions = {
        "by hand, mixed": lambda: loop_by_hand(maps, *places),
        "mixture of 3": lambda: read(mixture, samples),
    }
    return timings_of(actions, samples, rounds, {"mixture of 3": "by hand, mixed"})


def _time_tensors(
    folder: Path, rounds: int, shrink: int, samples: int, console: Console
) -> list[Timing]:
    if find_spec("torch") is None:
        console.print("torch is not installed: tensors and its loaders are not measured.")
        return []
    from benchmarks.torch_loaders import time_tensors

    return time_tensors(folder, rounds, shrink, samples, console)
