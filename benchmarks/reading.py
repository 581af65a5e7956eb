"""How fast samples are read compared with bare loops, and how long opening and resuming take.

All read the same files, which are in the page cache: the work per sample is measured, not a disk.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.made_up_dataset import make_dataset
from benchmarks.timings import Timing, in_turn
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.mixing.mixture import Mixture
from fineshards.loader.sample_sources import Numbers, Source
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

# 400 million tokens, 1.6 GB: larger than any processor cache, smaller than a machine's memory.
_TOKENS, SHARD_TOKENS = 400_000_000, 4_000_000
_SAMPLES, LENGTH, BATCH = 100_000, 2048, 64
# As many shards and source files as 350 billion tokens of FineWeb.
_MANY_SHARDS, _MANY_FILES = 3500, 5000
_FAR_STEP = 10_000_000
_SHUFFLE_SHARDS = 8
_PLACES = ("source_ids", "sample_ids")
_AT_RANDOM = "by hand, shuffled"


def time_reading(work: Path, rounds: int, shrink: int) -> list[Timing]:
    """Timings of reading, opening and resuming, at 1/`shrink` of the full sizes.

    Leaves the dataset in `work`/few, with every page in the page cache.
    """
    tokens = _TOKENS // shrink
    make_dataset(open_storage(str(work / "few")), tokens, SHARD_TOKENS)
    shards = max(1, _MANY_SHARDS // shrink)
    many = open_storage(str(work / "many"))
    make_dataset(many, shards * 1000, 1000, files=_MANY_FILES // shrink, empty=True)
    dataset = TokenDataset(work / "few", sequence_length=LENGTH)
    # Read every page once, so that no measurement waits for the disk.
    dataset.gather(np.arange(len(dataset)))
    return [
        *_time_samples(work / "few", dataset, samples_at(shrink), rounds),
        *_time_starts(work / "many", dataset, shards, rounds),
    ]


def samples_at(shrink: int) -> int:
    """Samples that a run reads: whole batches."""
    return max(1, _SAMPLES // shrink // BATCH) * BATCH


def _time_samples(folder: Path, dataset: TokenDataset, samples: int, rounds: int) -> list[Timing]:
    rng = np.random.default_rng(1)
    maps = shard_maps(folder)
    in_order = order(dataset, samples, shuffle=False)
    shuffled = order(dataset, samples, shuffle=True)
    actions = {
        "by hand, in order": lambda: loop_by_hand([maps], *in_order),
        "in order": lambda: read(dataset, samples, shuffle=False),
        _AT_RANDOM: lambda: loop_by_hand([maps], *shuffled),
        "random crops": lambda: random_crops(maps, samples, rng),
        "shuffled": lambda: read(dataset, samples),
        "shuffled, no thread": lambda: read(dataset, samples, prefetch=0),
        f"shuffled, {_SHUFFLE_SHARDS} shards at a time": lambda: read(
            dataset, samples, shuffle_shards=_SHUFFLE_SHARDS
        ),
    }
    ours = dict.fromkeys((name for name in actions if name.startswith("shuffled")), _AT_RANDOM)
    return timings_of(actions, samples, rounds, ours | {"in order": "by hand, in order"})


def timings_of(
    actions: Mapping[str, Callable[[], object]],
    samples: int,
    rounds: int,
    beside: Mapping[str, str],
) -> list[Timing]:
    """Timings of actions that read as many samples each, in turn."""
    return [
        Timing(
            name,
            samples,
            "samples",
            runs,
            bytes=samples * (LENGTH + 1) * 4,
            beside=beside.get(name),
            tokens=samples * LENGTH,
        )
        for name, runs in in_turn(actions, rounds).items()
    ]


def shard_maps(folder: Path) -> list[npt.NDArray[np.uint32]]:
    """The shards of a dataset, mapped; as plain arrays, whose slices take less than a memmap's."""
    paths = sorted((folder / "train").glob("*.npy"))
    return [np.asarray(np.load(path, mmap_mode="r")) for path in paths]


def read(source: Source | Mixture, samples: int, **options: Any) -> None:
    """Reads whole batches with a BatchLoader."""
    with BatchLoader(source, BATCH, **options) as batches:
        for _ in range(samples // BATCH):
            next(batches)


def order(source: Source | Mixture, samples: int, *, shuffle: bool) -> tuple[Numbers, Numbers]:
    """The order in which a BatchLoader reads: the sources and their samples."""
    with BatchLoader(source, BATCH, shuffle=shuffle, fields=_PLACES) as loader:
        batches = [next(loader) for _ in range(samples // BATCH)]
    sources, numbers = (np.concatenate([batch[name] for batch in batches]) for name in _PLACES)
    return sources, numbers


def loop_by_hand(
    maps: Sequence[Sequence[npt.NDArray[np.uint32]]],
    sources: Numbers,
    numbers: Numbers,
    dtype: npt.DTypeLike = np.uint32,
    use: Callable[[npt.NDArray[Any]], object] = len,
) -> None:
    """A loop without a loader: batches filled from mapped shards, each sample from one shard.

    A sample that would cross the end of a shard is moved to its end, so the loop has no branches.
    """
    for at in range(0, len(numbers), BATCH):
        batch = np.empty((BATCH, LENGTH + 1), dtype)
        places = zip(
            sources[at : at + BATCH].tolist(), numbers[at : at + BATCH].tolist(), strict=True
        )
        for row, (source, number) in enumerate(places):
            shard, offset = divmod(number * LENGTH, SHARD_TOKENS)
            tokens = maps[source][shard]
            offset = min(offset, len(tokens) - LENGTH - 1)
            batch[row] = tokens[offset : offset + LENGTH + 1]
        use(batch)


def random_crops(
    maps: list[npt.NDArray[np.uint32]], samples: int, rng: np.random.Generator
) -> None:
    """The loader of nanoGPT and many others, without torch: crops at random positions of a file.

    As there, inputs and targets are separate int64 arrays. In the course of an epoch it reads some
    tokens several times and a third of them never.
    """
    for _ in range(samples // BATCH):
        tokens = maps[int(rng.integers(len(maps)))]
        places = rng.integers(0, len(tokens) - LENGTH, BATCH).tolist()
        np.stack([tokens[at : at + LENGTH].astype(np.int64) for at in places])
        np.stack([tokens[at + 1 : at + 1 + LENGTH].astype(np.int64) for at in places])


def _time_starts(many: Path, dataset: TokenDataset, shards: int, rounds: int) -> list[Timing]:
    state = BatchLoader(dataset, BATCH).state_dict(_FAR_STEP)

    def resume() -> None:
        """From a saved state to the first batch."""
        loader = BatchLoader(dataset, BATCH)
        loader.load_state_dict(state)
        next(loader)
        loader.close()

    actions = {
        f"open a dataset of {shards:,} shards": lambda: TokenDataset(many, sequence_length=10),
        f"resume at step {_FAR_STEP:,}": resume,
    }
    return [Timing(name, 1, "times", runs) for name, runs in in_turn(actions, rounds).items()]
