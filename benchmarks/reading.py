"""How fast samples are read compared with a bare loop, and how long opening and resuming take.

All read the same files, which are in the page cache: the work per sample is measured, not a disk.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.made_up_dataset import make_dataset
from benchmarks.timings import Timing, in_turn
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.dataset import TokenDataset
from fineshards.storage.base import open_storage

# 400 million tokens, 1.6 GB: larger than any processor cache, smaller than a machine's memory.
_TOKENS, _SHARD_TOKENS = 400_000_000, 4_000_000
_SAMPLES, _LENGTH, _BATCH = 100_000, 2048, 64
# As many shards and source files as 350 billion tokens of FineWeb.
_MANY_SHARDS, _MANY_FILES = 3500, 5000
_FAR_STEP = 10_000_000
_SHUFFLE_SHARDS = 8


def time_reading(work: Path, rounds: int, shrink: int) -> list[Timing]:
    """Timings of reading, opening and resuming, at 1/`shrink` of the full sizes."""
    tokens, samples = _TOKENS // shrink, max(_BATCH, _SAMPLES // shrink)
    make_dataset(open_storage(str(work / "few")), tokens, _SHARD_TOKENS)
    shards = max(1, _MANY_SHARDS // shrink)
    many = open_storage(str(work / "many"))
    make_dataset(many, shards * 1000, 1000, files=_MANY_FILES // shrink, empty=True)
    dataset = TokenDataset(work / "few", sequence_length=_LENGTH)
    # Read every page once, so that no measurement waits for the disk.
    dataset.gather(np.arange(len(dataset)))
    return [
        *_time_samples(work / "few", dataset, samples, rounds),
        *_time_starts(work / "many", dataset, shards, rounds),
    ]


def _time_samples(folder: Path, dataset: TokenDataset, samples: int, rounds: int) -> list[Timing]:
    rng = np.random.default_rng(1)
    in_order = np.arange(samples) % len(dataset)
    at_random = rng.integers(0, len(dataset), samples)
    maps = [np.load(path, mmap_mode="r") for path in sorted((folder / "train").glob("*.npy"))]

    def loader(**options: bool | int) -> Callable[[], object]:
        def run() -> None:
            with BatchLoader(dataset, _BATCH, **options) as batches:  # type: ignore[arg-type]
                for _ in range(samples // _BATCH):
                    next(batches)

        return run

    actions = {
        "memmap loop, in order": lambda: memmap_loop(maps, in_order),
        "in order": loader(shuffle=False),
        "memmap loop, at random": lambda: memmap_loop(maps, at_random),
        "random crops": lambda: random_crops(maps, samples, rng),
        "shuffled": loader(),
        "shuffled, no thread": loader(prefetch=0),
        f"shuffled, {_SHUFFLE_SHARDS} shards at a time": loader(shuffle_shards=_SHUFFLE_SHARDS),
    }
    runs = in_turn(actions, rounds)
    return [
        Timing(
            name,
            samples,
            "samples",
            runs[name],
            bytes=samples * (_LENGTH + 1) * 4,
            beside=_beside(name),
        )
        for name in actions
    ]


def _beside(name: str) -> str | None:
    if name == "in order":
        return "memmap loop, in order"
    return "memmap loop, at random" if "shuffled" in name else None


def memmap_loop(maps: list[npt.NDArray[np.uint32]], numbers: npt.NDArray[np.int64]) -> None:
    """A loop without a loader: batches filled from memory maps, each sample from one shard.

    A sample that would cross the end of a shard is moved to its end, so the loop has no branches.
    """
    for at in range(0, len(numbers) - _BATCH + 1, _BATCH):
        batch = np.empty((_BATCH, _LENGTH + 1), np.uint32)
        for row, number in enumerate(numbers[at : at + _BATCH].tolist()):
            shard, offset = divmod(number * _LENGTH, _SHARD_TOKENS)
            offset = min(offset, len(maps[shard]) - _LENGTH - 1)
            batch[row] = maps[shard][offset : offset + _LENGTH + 1]


def random_crops(
    maps: list[npt.NDArray[np.uint32]], samples: int, rng: np.random.Generator
) -> None:
    """The loader of nanoGPT and many others, without torch: crops at random positions of a file.

    As there, inputs and targets are separate int64 arrays. In the course of an epoch it reads some
    tokens several times and a third of them never.
    """
    for _ in range(samples // _BATCH):
        tokens = maps[int(rng.integers(len(maps)))]
        places = rng.integers(0, len(tokens) - _LENGTH, _BATCH).tolist()
        np.stack([tokens[at : at + _LENGTH].astype(np.int64) for at in places])
        np.stack([tokens[at + 1 : at + 1 + _LENGTH].astype(np.int64) for at in places])


def _time_starts(many: Path, dataset: TokenDataset, shards: int, rounds: int) -> list[Timing]:
    state = BatchLoader(dataset, _BATCH).state_dict() | {"consumed": _FAR_STEP * _BATCH}

    def resume() -> None:
        """From a saved state to the first batch."""
        loader = BatchLoader(dataset, _BATCH)
        loader.load_state_dict(state)
        next(loader)
        loader.close()

    actions = {
        f"open a dataset of {shards:,} shards": lambda: TokenDataset(many, sequence_length=10),
        f"resume at step {_FAR_STEP:,}": resume,
    }
    return [Timing(name, 1, "times", runs) for name, runs in in_turn(actions, rounds).items()]
