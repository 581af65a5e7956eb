"""How fast int64 tensors are read, compared with loops by hand and other loaders.

All read the same tokens, from the page cache, in batches of the same shape, each in an order of its
own. A loader that is not installed is left out.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch.utils.data import DataLoader, Dataset

from benchmarks.export_readers import READERS, Epoch, Loader
from benchmarks.made_up import DOCUMENT_TOKENS
from benchmarks.made_up_dataset import EOT
from benchmarks.reading import BATCH, LENGTH, loop_by_hand, order, shard_maps, timings_of
from benchmarks.timings import Timing
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.token_dataset import TokenDataset

_SEED = 1
# Workers are forked before their dataset is read here: datatrove's opens its file when it is first
# read, and processes that inherit an open file move one another's place in it.
_WORKERS = (2, 0)
# The other loaders read a part of the samples, since they take many times as long.
_PART = 8
_BY_HAND, _OURS = "int64 tensors, by hand", "int64 tensors"


def time_tensors(
    folder: Path, rounds: int, shrink: int, samples: int, console: Console
) -> list[Timing]:
    """Timings of int64 tensors, ours, by hand, and those of other loaders."""
    dataset = TokenDataset(folder, sequence_length=LENGTH)
    sources, numbers = order(dataset, samples, shuffle=True)
    maps = shard_maps(folder)
    ours = BatchLoader(dataset, BATCH, dtype="int64")

    def tensors() -> None:
        for _ in range(samples // BATCH):
            torch.from_numpy(next(ours))

    actions: dict[str, Callable[[], object]] = {
        _BY_HAND: lambda: loop_by_hand([maps], sources, numbers, np.int64, torch.from_numpy),
        _OURS: tensors,
    }
    timings = timings_of(actions, samples, rounds, {_OURS: _BY_HAND})
    ours.close()
    # The other loaders' processes are forked, so no thread of ours may run.
    others = max(BATCH, samples // _PART // BATCH * BATCH)
    loaders = other_loaders(folder, maps, others, console)
    actions = {
        f"{name}, {workers} workers": partial(take, forever(loader(workers)), others // BATCH)
        for workers in _WORKERS
        for name, loader in loaders.items()
    }
    for action in actions.values():
        action()  # starts the workers, which stay
    return timings + timings_of(actions, others, rounds, dict.fromkeys(actions, _OURS))


def other_loaders(
    folder: Path, maps: list[npt.NDArray[np.uint32]], samples: int, console: Console
) -> dict[str, Loader]:
    """Other loaders of the tokens of `folder`; those without a shuffle draw `samples` samples."""
    datasets: dict[str, Any] = {"torch's DataLoader, random crops": Crops(maps)}
    loaders: dict[str, Loader] = {}
    others = {
        "datatrove's folder dataset": ("datatrove", datatrove_dataset),
        "Megatron's GPTDataset": ("megatron", megatron_dataset),
    }
    for name, (package, _) in (others | READERS).items():
        if find_spec(package) is None:
            console.print(f"{package} is not installed: {name} is not measured.")
        elif name in READERS:
            loaders[name] = READERS[name][1](folder, folder.parent / package)
        else:
            datasets[name] = others[name][1](maps, folder / package)
    return {name: _drawn(dataset, samples) for name, dataset in datasets.items()} | loaders


def _drawn(dataset: Any, samples: int) -> Loader:
    def loader(workers: int) -> Epoch:
        numbers = np.random.default_rng(_SEED).integers(0, len(dataset), samples).tolist()
        batches = DataLoader(
            dataset,
            BATCH,
            sampler=numbers,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        return lambda: batches

    return loader


def forever(epoch: Epoch) -> Iterator[Any]:
    """The batches of one epoch after another; so no run waits for an epoch to be shuffled."""
    while True:
        yield from epoch()


def take(batches: Iterator[Any], count: int) -> None:
    """Takes the next `count` batches."""
    for _ in range(count):
        next(batches)


class Crops(Dataset[Any]):
    """Crops at random places, as nanoGPT and many others take them: inputs and targets."""

    def __init__(self, maps: list[npt.NDArray[np.uint32]]) -> None:
        self._maps = maps
        self._random = np.random.default_rng(_SEED)

    def __len__(self) -> int:
        return sum(map(len, self._maps)) // LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self._maps[int(self._random.integers(len(self._maps)))]
        at = int(self._random.integers(len(tokens) - LENGTH))
        crop = torch.from_numpy(tokens[at : at + LENGTH + 1].astype(np.int64))
        return crop[:-1], crop[1:]


def datatrove_dataset(maps: list[npt.NDArray[np.uint32]], folder: Path) -> Any:
    """datatrove's DatatroveFolderDataset over one file with all tokens."""
    from datatrove.utils.dataset import DatatroveFolderDataset

    _write_tokens(maps, folder / "00000_unshuffled.ds")
    return DatatroveFolderDataset(str(folder), LENGTH, filename_pattern="*.ds", token_size=4)


def megatron_dataset(maps: list[npt.NDArray[np.uint32]], folder: Path) -> Any:
    """Megatron's GPTDataset over one pair of files with all tokens, in an order of its own."""
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import Split

    prefix = folder / "tokens"
    _write_tokens(maps, prefix.with_suffix(".bin"))
    _write_index(sum(map(len, maps)), prefix.with_suffix(".idx"))
    config = GPTDatasetConfig(
        random_seed=_SEED,
        sequence_length=LENGTH,
        blend=([str(prefix)], None),
        split="1,0,0",
        path_to_cache=str(folder),
        tokenizer=SimpleNamespace(eod=EOT, pad=-1, vocab_size=EOT + 1, unique_identifiers={}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    indexed = GPTDataset.build_low_level_dataset(str(prefix), config)
    documents = np.arange(len(indexed.sequence_lengths), dtype=np.int32)
    return GPTDataset(indexed, str(prefix), documents, None, Split.train, config)


def _write_tokens(maps: list[npt.NDArray[np.uint32]], path: Path) -> None:
    """Tokens without a header, which are also Megatron's int32; read once, to be cached."""
    path.parent.mkdir()
    with path.open("wb") as file:
        for tokens in maps:
            file.write(tokens.data)
    path.read_bytes()


def _write_index(tokens: int, path: Path) -> None:
    """Megatron's .idx: a sequence per document, which begins at an EOT. int32 has the code 4."""
    starts = np.arange(0, tokens, DOCUMENT_TOKENS, dtype=np.int64)
    lengths = np.diff(np.append(starts, tokens)).astype(np.int32)
    counts = np.array([len(starts), len(starts) + 1], np.uint64)
    documents = np.arange(len(starts) + 1, dtype=np.int64)
    with path.open("wb") as file:
        file.write(b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([4]) + counts.tobytes())
        for part in (lengths, starts * 4, documents):
            file.write(part.tobytes())
