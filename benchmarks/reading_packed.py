"""How fast packed rows are read, compared with loops by hand over the same parts of documents.

Reading the same fields without packing is beside it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.made_up_dataset import make_dataset, uneven
from benchmarks.reading import shard_maps
from benchmarks.timings import Timing, in_turn
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.packing import Packing, pack
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

# Documents as long as FineWeb's on average, in shards as long as those of a build.
_TOKENS, _SHARD_TOKENS, _MEAN = 200_000_000, 100_000_000, 655
_SAMPLES, _LENGTH, _BATCH = 50_000, 2048, 32
_FIELDS = ("inputs", "targets")
_DOCUMENTS = (*_FIELDS, "position_ids", "cu_seqlens", "max_seqlen")

# Where the parts of each row of each batch are: a shard, and begins and ends in it.
Places = list[list[tuple[int, list[tuple[int, int]]]]]
Maps = Sequence[npt.NDArray[np.uint32]]
InputsAndTargets = tuple[npt.NDArray[Any], npt.NDArray[Any]]


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
    batches, maps = max(1, samples // _BATCH), shard_maps(folder)
    places = packed_places(dataset, batches, maps)

    def reading(packing: Packing | None, dtype: str, fields: Sequence[str]) -> Callable[[], None]:
        def run() -> None:
            loader = BatchLoader(
                dataset, _BATCH, prefetch=0, dtype=dtype, fields=fields, packing=packing
            )
            for _ in range(batches):
                next(loader)

        return run

    actions: dict[str, Callable[[], object]] = {}
    beside: dict[str, str] = {}
    for dtype in ("uint32", "int64"):
        by_hand = f"packed by hand, joined, {dtype}"
        actions[f"packed by hand, slices, {dtype}"] = partial(_run, copied, maps, places, dtype)
        actions[by_hand] = partial(_run, joined, maps, places, dtype)
        kinds: dict[str, Sequence[str]] = {f"inputs and targets, {dtype}": _FIELDS}
        if dtype == "int64":
            kinds["with cu_seqlens, int64"] = (*_FIELDS, "cu_seqlens")
            kinds["with positions and cu_seqlens, int64"] = _DOCUMENTS
        for title, fields in kinds.items():
            actions[f"packed: {title}"] = reading(Packing(), dtype, fields)
            beside[f"packed: {title}"] = by_hand
            actions[f"not packed: {title}"] = reading(None, dtype, fields)
            beside[f"not packed: {title}"] = f"packed: {title}"
    rows = batches * _BATCH
    return [
        Timing(name, rows, "samples", runs, beside=beside.get(name), tokens=rows * _LENGTH)
        for name, runs in in_turn(actions, rounds).items()
    ]


def packed_places(dataset: TokenDataset, batches: int, maps: Maps) -> Places:
    """The places that a BatchLoader reads in its first batches.

    A window of rows that would cross the end of a shard is moved to its end.
    """
    tokens, rows = len(dataset) * _LENGTH, Packing().rows
    windows: dict[int, tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}

    def place(number: int) -> tuple[int, list[tuple[int, int]]]:
        window, row = divmod(number, rows)
        if window not in windows:
            begin = window * rows * _LENGTH
            read = dataset.read_tokens(begin, min(begin + rows * _LENGTH, tokens) + 1)
            starts = np.union1d(0, np.flatnonzero(read[:-1] == dataset.eot))
            begins, lengths, borders = pack(starts, len(read) // _LENGTH, _LENGTH)
            shard, offset = divmod(begin, _SHARD_TOKENS)
            begins = begins + min(offset, len(maps[shard]) - len(read))
            windows[window] = shard, np.stack((begins, begins + lengths), axis=1), borders
        shard, parts, borders = windows[window]
        return shard, [
            (begin, end) for begin, end in parts[slice(*borders[row : row + 2])].tolist()
        ]

    with BatchLoader(dataset, _BATCH, fields=["sample_ids"], packing=Packing()) as loader:
        return [[*map(place, next(loader)["sample_ids"].tolist())] for _ in range(batches)]


def copied(maps: Maps, places: Places, dtype: str) -> Iterator[InputsAndTargets]:
    """Inputs and targets, part by part."""
    for batch in places:
        inputs, targets = np.empty((2, _BATCH, _LENGTH), dtype)
        for row, (shard, parts) in enumerate(batch):
            column, tokens = 0, maps[shard]
            for begin, end in parts:
                stop = column + end - begin
                inputs[row, column:stop] = tokens[begin:end]
                targets[row, column:stop] = tokens[begin + 1 : end + 1]
                column = stop
        yield inputs, targets


def joined(maps: Maps, places: Places, dtype: str) -> Iterator[InputsAndTargets]:
    """The same, all parts of a batch joined first: the fastest loop that was found."""
    views = [tokens.data for tokens in maps]
    for batch in places:
        of_inputs, of_targets = [], []
        for shard, parts in batch:
            tokens = views[shard]
            for begin, end in parts:
                of_inputs.append(tokens[begin:end])
                of_targets.append(tokens[begin + 1 : end + 1])
        inputs, targets = np.empty((2, _BATCH, _LENGTH), dtype)
        inputs[...] = np.frombuffer(b"".join(of_inputs), np.uint32).reshape(_BATCH, _LENGTH)
        targets[...] = np.frombuffer(b"".join(of_targets), np.uint32).reshape(_BATCH, _LENGTH)
        yield inputs, targets


def _run(
    loop: Callable[[Maps, Places, str], Iterator[object]], maps: Maps, places: Places, dtype: str
) -> None:
    deque(loop(maps, places, dtype), maxlen=0)
