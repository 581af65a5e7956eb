"""Loaders of trainers, one rank each: `trainer_loaders.py NAME FOLDER RANKS STATE KILLED_AT`.

Prints a line of JSON per step, the rows of all ranks in the order of the ranks, and keeps the
trainer's own state after step 2 in the file STATE. It begins where STATE is, if there is one, and
kills itself before step KILLED_AT.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BATCH, LENGTH, SAVED, STEPS = 8, 32, 2, 6
Rows = npt.NDArray[np.int64]
Steps = Iterator[tuple[Rows, Any]]


def olmo(folder: Path, rank: int, ranks: int, state: Any) -> Steps:
    """OLMo-core over an export: `--to olmo`."""
    from olmo_core.data import NumpyFSLDatasetConfig, TokenizerConfig
    from olmo_core.data.collator import DataCollator
    from olmo_core.data.data_loader import NumpyDataLoaderBase

    options = json.loads((folder / "export.json").read_text())["options"]
    eot = options["eot"]
    files = NumpyFSLDatasetConfig(
        paths=[str(folder / "train/*.npy")],
        expand_glob=True,
        sequence_length=LENGTH,
        tokenizer=TokenizerConfig(vocab_size=200_000, eos_token_id=eot, pad_token_id=eot),
        work_dir=str(folder.parent / "olmo-work"),
    ).build()
    files.prepare()
    loader = NumpyDataLoaderBase.wrap_numpy_dataset(
        files,
        global_batch_size=BATCH * LENGTH,
        collator=DataCollator(pad_token_id=eot),
        seed=1,
        dp_world_size=ranks,
        dp_rank=rank,
    )
    if state is not None:
        loader.load_state_dict(state)
    loader.reshuffle(epoch=1)
    for batch in loader:
        yield batch["input_ids"].numpy(), loader.state_dict()


def grain(folder: Path, rank: int, ranks: int, state: Any) -> Steps:
    """Grain's elastic iterator over a dataset."""
    import grain as package

    from fineshards import TokenDataset

    source = TokenDataset(folder, sequence_length=LENGTH)
    part = package.sharding.ShardOptions(rank, ranks)
    shuffled = package.MapDataset.source(source).shuffle(seed=1)
    iterator = iter(package.experimental.ElasticIterator(shuffled, BATCH, part))
    if state is not None:
        iterator.set_state(state)
    for rows in iterator:
        yield rows, iterator.get_state()


def steps(name: str, folder: Path, ranks: int, state: Any = None) -> Iterator[tuple[Rows, Any]]:
    """The rows of all ranks, step by step, and the state after each, which any rank may save."""
    loaders = [globals()[name](folder, rank, ranks, state) for rank in range(ranks)]
    for parts in zip(*loaders, strict=True):
        assert all(part[1] == parts[0][1] for part in parts)
        yield np.concatenate([rows for rows, _ in parts]), parts[0][1]


if __name__ == "__main__":
    name, folder, ranks, path, killed_at = sys.argv[1:]
    begin = json.loads(Path(path).read_text()) if Path(path).exists() else None
    for step, (rows, state) in enumerate(steps(name, Path(folder), int(ranks), begin), 1):
        if step == int(killed_at):
            os.kill(os.getpid(), signal.SIGKILL)
        print(json.dumps(rows.tolist()), flush=True)
        if step == SAVED:
            Path(path).write_text(json.dumps(state))
        if step == STEPS:
            break
