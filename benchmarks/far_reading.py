"""How fast samples of a far dataset are read: a server in a process of its own, 30 ms away.

Groups of shards are read as docs/loader.md says, from an empty cache folder.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.far_server import far_server
from benchmarks.made_up_dataset import make_dataset
from benchmarks.timings import Timing, in_turn
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

_DELAY = 0.03
# 160 MB.
_TOKENS, _SHARD_TOKENS = 40_000_000, 4_000_000
_SAMPLES, _LENGTH, _BATCH, _PREFETCH = 12_800, 2048, 128, 4
_FOLDER = "data/far"


def time_far_reading(work: Path, rounds: int, shrink: int) -> list[Timing]:
    """Timings of reading in three orders, at 1/`shrink` of the full sizes."""
    samples = max(_BATCH, _SAMPLES // shrink)
    make_dataset(open_storage(str(work / _FOLDER)), max(_TOKENS // shrink, 20_000), _SHARD_TOKENS)
    orders: dict[str, dict[str, bool | int]] = {
        "far, at random": {"shuffle": True},
        "far, in order": {"shuffle": False},
        "far, shuffled, 2 shards at a time": {"shuffle_shards": 2},
    }

    def read(options: dict[str, bool | int]) -> Callable[[], object]:
        def run() -> None:
            cache = work / "cache" if options.get("shuffle_shards") else None
            shutil.rmtree(work / "cache", ignore_errors=True)
            dataset = TokenDataset(f"gs://{_FOLDER}", sequence_length=_LENGTH, cache_folder=cache)
            with BatchLoader(dataset, _BATCH, prefetch=_PREFETCH, **options) as batches:  # type: ignore[arg-type]
                for _ in range(samples // _BATCH):
                    next(batches)
            dataset.close()

        return run

    with far_server(work, _DELAY) as server, _environment("STORAGE_EMULATOR_HOST", server.address):
        runs = in_turn({name: read(options) for name, options in orders.items()}, rounds)
    size = samples * (_LENGTH + 1) * 4
    tokens = samples * _LENGTH
    return [
        Timing(name, samples, "samples", runs[name], bytes=size, tokens=tokens) for name in orders
    ]


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
