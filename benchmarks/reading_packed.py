"""How fast packed rows are read, compared with reading the same fields without packing.

The latter is compared with a loop by hand, which copies inputs and targets at the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.made_up_dataset import make_dataset, uneven
from benchmarks.reading import shard_maps
from benchmarks.timings import Timing, in_turn
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.packing import Packing
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

# Documents as long as FineWeb's on average.
_TOKENS, _SHARD_TOKENS, _MEAN = 200_000_000, 4_000_000, 655
_SAMPLES, _LENGTH, _BATCH = 50_000, 2048, 32
_DOCUMENTS = ("inputs", "targets", "position_ids", "cu_seqlens", "max_seqlen")


def time_packed(work: Path, rounds: int, shrink: int) -> list[Timing]:
    """Timings of one thread at 1/`shrink` of the full sizes; each packed one beside its like."""
    tokens = max(_TOKENS // shrink, 2 * _LENGTH)
    storage = open_storage(str(work / "packed"))
    make_dataset(storage, tokens, _SHARD_TOKENS, made=uneven(tokens, _MEAN))
    return time_dataset(work / "packed", rounds, _SAMPLES // shrink)


def time_dataset(folder: Path, rounds: int, samples: int) -> list[Timing]:
    """Timings of a dataset, whose pages are read first."""
    dataset = TokenDataset(folder, sequence_length=_LENGTH)
    dataset.gather(np.arange(len(dataset)))
    batches = max(1, samples // _BATCH)

    def reading(packing: Packing | None, dtype: str, fields: Sequence[str]) -> Callable[[], None]:
        def run() -> None:
            loader = BatchLoader(
                dataset, _BATCH, prefetch=0, dtype=dtype, fields=fields, packing=packing
            )
            for _ in range(batches):
                next(loader)

        return run

    maps = shard_maps(folder)
    places = BatchLoader(dataset, _BATCH, fields=["sample_ids"], packing=Packing())
    numbers = [next(places)["sample_ids"].tolist() for _ in range(batches)]
    places.close()

    def by_hand(dtype: str) -> Callable[[], None]:
        def run() -> None:
            for batch in numbers:
                inputs, targets = np.empty((2, _BATCH, _LENGTH), dtype)
                for row, number in enumerate(batch):
                    shard, offset = divmod(number * _LENGTH, _SHARD_TOKENS)
                    offset = min(offset, len(maps[shard]) - _LENGTH - 1)
                    inputs[row] = maps[shard][offset : offset + _LENGTH]
                    targets[row] = maps[shard][offset + 1 : offset + _LENGTH + 1]

        return run

    actions: dict[str, Callable[[], None]] = {}
    beside: dict[str, str] = {}
    for title, dtype, fields in (
        ("inputs and targets, uint32", "uint32", _DOCUMENTS[:2]),
        ("inputs and targets, int64", "int64", _DOCUMENTS[:2]),
        ("with positions and cu_seqlens, int64", "int64", _DOCUMENTS),
    ):
        if fields == _DOCUMENTS[:2]:
            actions[f"by hand: {title}"] = by_hand(dtype)
            beside[title] = f"by hand: {title}"
        actions[title] = reading(None, dtype, fields)
        beside[f"packed: {title}"] = title
        actions[f"packed: {title}"] = reading(Packing(), dtype, fields)
    runs = in_turn(actions, rounds)
    return [
        Timing(name, batches * _BATCH, "samples", runs[name], beside=beside.get(name))
        for name in actions
    ]
