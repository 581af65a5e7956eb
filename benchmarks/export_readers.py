"""Other libraries' loaders of our exports: int64 tensors of shape (BATCH, LENGTH + 1).

Each shuffles as its library does, and reads in the fastest way that its documentation has. numpy
makes int64 of a batch several times faster than torch does of a uint32 tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import fineshards
from benchmarks.reading import BATCH, LENGTH

# Gives the batches of an epoch.
Epoch = Callable[[], Iterable[Any]]
# Makes it for a number of workers.
Loader = Callable[[int], Epoch]

_ROW = LENGTH + 1
_SEED = 1


def litdata_loader(dataset: Path, folder: Path) -> Loader:
    """litdata's StreamingDataset over chunks that it maps, of a shard each; it shuffles them."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    fineshards.export(dataset, folder, "litdata")

    def loader(workers: int) -> Epoch:
        rows = StreamingDataset(
            str(folder / "train"), item_loader=TokensLoader(_ROW), shuffle=True, seed=_SEED
        )
        return _in_batches(StreamingDataLoader, rows, workers, _tensor)

    return loader


def mosaic_loader(dataset: Path, folder: Path) -> Loader:
    """MosaicML's StreamingDataset over MDS files."""
    from streaming import StreamingDataset

    fineshards.export(dataset, folder, "mds", sequence_length=_ROW)

    def loader(workers: int) -> Epoch:
        rows = StreamingDataset(
            local=str(folder), split="train", shuffle=True, shuffle_seed=_SEED, batch_size=BATCH
        )
        return _in_batches(
            DataLoader, rows, workers, lambda batch: _tensor([row["tokens"] for row in batch])
        )

    return loader


def grain_loader(dataset: Path, folder: Path) -> Loader:
    """Grain's MapDataset over one mapped array; without threads, as it advises in memory."""
    import grain

    fineshards.export(dataset, folder, "raw")
    shuffled = grain.MapDataset.source(MappedRows(folder / "train.bin")).shuffle(seed=_SEED)
    batches = shuffled.batch(BATCH, drop_remainder=True, batch_fn=_stack).to_iter_dataset(
        grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    )

    def loader(workers: int) -> Epoch:
        options = grain.MultiprocessingOptions(num_workers=workers)
        read = batches.mp_prefetch(options) if workers else batches
        return lambda: map(torch.from_numpy, read)

    return loader


def huggingface_loader(dataset: Path, folder: Path) -> Loader:
    """datasets' shuffled Dataset; Arrow's tables, twice as fast to read as its numpy arrays."""
    from datasets import load_from_disk

    fineshards.export(dataset, folder, "hf-arrow", sequence_length=_ROW)
    whole = load_from_disk(str(folder))["train"]
    if len(whole[-1]["input_ids"]) < _ROW:
        whole = whole.select(range(len(whole) - 1))
    rows = whole.shuffle(seed=_SEED).with_format("arrow")

    def loader(workers: int) -> Epoch:
        if workers == 0:
            return lambda: map(_tensor_of_table, rows.iter(BATCH, drop_last_batch=True))
        batches = DataLoader(
            rows,
            batch_size=None,
            sampler=BatchSampler(SequentialSampler(rows), BATCH, drop_last=True),
            num_workers=workers,
            persistent_workers=True,
            collate_fn=_tensor_of_table,
        )
        return lambda: batches

    return loader


# By what the table calls them: the module that must be installed, and what makes the loader.
READERS = {
    "litdata's StreamingDataset": ("litdata", litdata_loader),
    "MosaicML's StreamingDataset": ("streaming", mosaic_loader),
    "Grain's MapDataset": ("grain", grain_loader),
    "Hugging Face's Dataset": ("datasets", huggingface_loader),
}


class MappedRows:
    """Rows of a file of uint32 tokens, for Grain; each process maps the file itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        tokens = np.asarray(np.memmap(path, np.uint32, "r"))
        self._rows = tokens[: len(tokens) // _ROW * _ROW].reshape(-1, _ROW)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> npt.NDArray[np.uint32]:
        row: npt.NDArray[np.uint32] = self._rows[index]
        return row

    def __reduce__(self) -> tuple[type[MappedRows], tuple[Path]]:
        return MappedRows, (self._path,)


def _in_batches(
    kind: Any, rows: Any, workers: int, collate: Callable[[Any], torch.Tensor]
) -> Epoch:
    batches = kind(
        rows,
        batch_size=BATCH,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
        collate_fn=collate,
    )
    return lambda: batches


def _stack(rows: Sequence[npt.NDArray[np.uint32]]) -> npt.NDArray[np.int64]:
    return np.stack(rows).astype(np.int64)


def _tensor(rows: Sequence[npt.NDArray[np.uint32]]) -> torch.Tensor:
    return torch.from_numpy(_stack(rows))


def _tensor_of_table(table: Any) -> torch.Tensor:
    tokens = table["input_ids"].combine_chunks().flatten().to_numpy()
    return torch.from_numpy(tokens.reshape(-1, _ROW).astype(np.int64))
