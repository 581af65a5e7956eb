"""How fast rows of whole conversations are read, with loss masks, compared with a loop by hand."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.made_up_dataset import make_dataset, uneven
from benchmarks.reading import shard_maps
from benchmarks.reading_packed import Maps
from benchmarks.timings import Timing, in_turn
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.token_dataset import TokenDataset
from fineshards.loader.whole_documents import WholeDocuments
from fineshards.storage.open import open_storage

# Conversations as long as FineWeb's documents on average, in turns of 100 tokens.
_TOKENS, _SHARD_TOKENS, _MEAN, _TURN = 100_000_000, 50_000_000, 655, 100
_SAMPLES, _LENGTH, _BATCH = 25_600, 2048, 32
_FIELDS = ("inputs", "targets", "loss_mask")
_DOCUMENTS = (*_FIELDS, "position_ids", "cu_seqlens")

Masks = Sequence[npt.NDArray[np.uint8]]
# The parts of each batch: their row and column, the shard, and where they begin and end in it.
Places = list[list[tuple[int, int, int, int, int]]]


def time_whole(work: Path, rounds: int, shrink: int) -> list[Timing]:
    """Timings of one thread at 1/`shrink` of the full sizes."""
    tokens, batches = max(_TOKENS // shrink, 8 * _LENGTH), max(1, _SAMPLES // shrink // _BATCH)
    folder = work / "whole"
    storage = open_storage(str(folder))
    made = uneven(tokens, _MEAN)
    make_dataset(storage, tokens, _SHARD_TOKENS, made=made, learned=answers)
    dataset = TokenDataset(folder, sequence_length=_LENGTH)
    whole = WholeDocuments(dataset)
    dataset.loss_mask(np.arange(len(dataset)))  # so that no measurement waits for the disk
    masks = [
        np.asarray(np.load(path, mmap_mode="r"))
        for path in sorted(folder.glob("metadata/masks/*.npy"))
    ]
    maps = shard_maps(folder)
    places = whole_places(whole, batches, maps)
    by_hand = "whole documents by hand, with masks, "
    actions: dict[str, Callable[[], object]] = {}
    beside: dict[str, str] = {}
    for dtype in ("uint32", "int64"):
        actions[by_hand + dtype] = partial(by_slices, maps, masks, places, dtype, dataset.eot)
        kinds: dict[str, Sequence[str]] = {f"whole documents with masks, {dtype}": _FIELDS}
        if dtype == "int64":
            kinds["whole documents with masks, positions and cu_seqlens, int64"] = _DOCUMENTS
        for name, fields in kinds.items():
            actions[name] = partial(_read, whole, batches, dtype, fields)
            beside[name] = by_hand + dtype
    rows = batches * _BATCH
    return [
        Timing(name, rows, "samples", runs, beside=beside.get(name), tokens=rows * _LENGTH)
        for name, runs in in_turn(actions, rounds).items()
    ]


def answers(start: int, stop: int) -> npt.NDArray[np.bool_]:
    """Which tokens are learned: every other turn."""
    found: npt.NDArray[np.bool_] = np.arange(start, stop) // _TURN % 2 == 1
    return found


def whole_places(whole: WholeDocuments, batches: int, maps: Maps) -> Places:
    """The places that a BatchLoader reads in its first batches.

    A part that would cross the end of a shard is moved to its end.
    """
    places: Places = []
    fields = (*_FIELDS, "sample_ids")
    with BatchLoader(whole, _BATCH, fields=fields, prefetch=0) as loader:
        for _ in range(batches):
            here = []
            for row, number in enumerate(next(loader)["sample_ids"].tolist()):
                column = 0
                begins, stops, _ = whole._segments(np.array([number]))
                for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True):
                    shard, offset = divmod(begin, _SHARD_TOKENS)
                    offset = min(offset, len(maps[shard]) - (stop - begin))
                    here.append((row, column, shard, offset, offset + stop - begin))
                    column += stop - begin
            places.append(here)
    return places


def by_slices(maps: Maps, masks: Masks, places: Places, dtype: str, eot: int) -> None:
    """Inputs, targets and loss masks, part by part; a mask has a bit per token."""
    for batch in places:
        tokens = np.full((_BATCH, _LENGTH + 1), eot, dtype)
        counted = np.zeros((_BATCH, _LENGTH + 1), np.bool_)
        for row, column, shard, begin, stop in batch:
            end = column + stop - begin
            tokens[row, column:end] = maps[shard][begin:stop]
            bits = np.unpackbits(masks[shard][begin // 8 : -(-stop // 8)], bitorder="little")
            counted[row, column:end] = bits[begin % 8 : begin % 8 + stop - begin]
        len((tokens[:, :-1], tokens[:, 1:], counted[:, 1:]))


def _read(whole: WholeDocuments, batches: int, dtype: str, fields: Sequence[str]) -> None:
    loader = BatchLoader(whole, _BATCH, prefetch=0, dtype=dtype, fields=fields)
    for _ in range(batches):
        next(loader)
