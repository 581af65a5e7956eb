"""Loaders of trainers, one rank each: `trainer_loaders.py NAME FOLDER RANKS STATE KILLED_AT`.

Prints a line of JSON per step, the rows of all ranks in the order of the ranks, and keeps what each
rank's trainer saves after step 2 in the file STATE. It begins where STATE is, if there is one, and
kills itself before step KILLED_AT.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

BATCH, LENGTH, SAVED, STEPS = 8, 32, 2, 6
Rows = npt.NDArray[np.int64]
Steps = Iterator[tuple[Rows, Any]]


def olmo(folder: Path, rank: int, ranks: int, states: list[Any]) -> Steps:
    """OLMo-core over an export: `--to olmo`."""
    from olmo_core.data import NumpyFSLDatasetConfig, TokenizerConfig
    from olmo_core.data.collator import DataCollator
    from olmo_core.data.data_loader import NumpyDataLoaderBase

    eot = eot_of(folder)
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
    if states:
        loader.load_state_dict(states[0])
    loader.reshuffle(epoch=1)
    for batch in loader:
        yield batch["input_ids"].numpy(), loader.state_dict()


def grain(folder: Path, rank: int, ranks: int, states: list[Any]) -> Steps:
    """Grain's elastic iterator over a dataset."""
    import grain as package

    from fineshards import TokenDataset

    source = TokenDataset(folder, sequence_length=LENGTH)
    part = package.sharding.ShardOptions(rank, ranks)
    shuffled = package.MapDataset.source(source).shuffle(seed=1)
    iterator = iter(package.experimental.ElasticIterator(shuffled, BATCH, part))
    if states:
        iterator.set_state(states[0])
    for rows in iterator:
        yield rows, iterator.get_state()


def megatron(folder: Path, rank: int, ranks: int, states: list[Any]) -> Steps:
    """Megatron's GPTDataset over an export: `--to megatron`.

    Its sampler is not on PyPI: of each batch, a rank takes its part of the samples in their order,
    from the number of samples consumed, which the checkpoint has.
    """
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    options = GPTDatasetConfig(
        random_seed=1,
        sequence_length=LENGTH,
        blend_per_split=[([str(folder / "train_0000")], None), None, None],
        path_to_cache=str(folder.parent / "megatron-cache"),
        tokenizer=tokenizer_of(folder),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [None, None, None]
    samples = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, options).build()[0]
    part = BATCH // ranks
    for consumed in range(states[0] if states else 0, len(samples) - BATCH, BATCH):
        own = range(consumed + rank * part, consumed + rank * part + part)
        rows = np.stack([samples[number]["tokens"].numpy() for number in own])
        yield rows, consumed + BATCH


def nemo(folder: Path, rank: int, ranks: int, states: list[Any]) -> Steps:
    """The loader of NeMo Automodel's recipes over Megatron's files: `--to megatron`."""
    from nemo_automodel.components.datasets.llm.megatron.sampler import MegatronSamplerConfig
    from nemo_automodel.components.datasets.llm.megatron_dataset import MegatronPretrainingConfig
    from nemo_automodel.components.datasets.loader import DataloaderConfig, DatasetBuildSchedule

    options = DataloaderConfig(
        MegatronPretrainingConfig(
            {"train": [str(folder / "train_0000")]},
            seq_length=LENGTH,
            seed=1,
            index_mapping_dir=str(folder.parent / "nemo-cache"),
            splits_to_build="train",
        ),
        batch_sampler_config=MegatronSamplerConfig(BATCH // ranks, BATCH),
        dataset_build_schedule=DatasetBuildSchedule(
            BATCH // ranks, global_batch_size=BATCH, max_steps=-1, val_check_interval=None
        ),
    )
    loader = options.build(dp_rank=rank, dp_world_size=ranks, tokenizer=tokenizer_of(folder))
    if states:
        loader.load_state_dict(states[rank])
    for batch in loader:
        yield batch["input_ids"].numpy(), loader.state_dict()


def litgpt(folder: Path, rank: int, ranks: int, states: list[Any]) -> Steps:
    """LitGPT's data module over an export: `--to litdata`."""
    os.environ |= {"GLOBAL_RANK": f"{rank}", "WORLD_SIZE": f"{ranks}"}
    from litgpt.data import LitData

    data = LitData(folder, split_names=("train", "test"), num_workers=0)
    data.connect(batch_size=BATCH // ranks, max_seq_length=LENGTH)
    loader = data.train_dataloader()
    if states:
        loader.load_state_dict(states[rank])
    for rows in loader:
        yield rows.numpy(), loader.state_dict()


def maxtext(folder: Path, rank: int, ranks: int, states: list[Any]) -> Steps:
    """MaxText's source for Grain over an export: `--to megatron`.

    What makes iterators of it needs jax, so it is done here as there. After a run on more hosts,
    `expansion_factor_real_data` lets a host go on with several streams of that run, in turn.
    """
    from maxtext.input_pipeline._mmap_datasource import get_mmap_dataset

    hosts = len(states) or ranks
    streams = []
    for host in range(rank, hosts, ranks):
        dataset = get_mmap_dataset(
            *(str(folder), False, LENGTH, eot_of(folder), True, 1, 1, host, hosts, 1, 1),
            apply_transforms=lambda rows, shuffle, seed, epochs, host, hosts, *_: rows.shuffle(
                seed
            )[host::hosts].to_iter_dataset(),
        )
        streams.append(iter(dataset.batch(BATCH // hosts)))
        if states:
            streams[-1].set_state(states[host])
    for batches in zip(*streams, strict=True):
        rows = np.concatenate([batch["text"] for batch in batches])
        yield rows, streams[0].get_state()


def eot_of(folder: Path) -> int:
    """The EOT of an export."""
    eot: int = json.loads((folder / "export.json").read_text())["options"]["eot_id"]
    return eot


def tokenizer_of(folder: Path) -> SimpleNamespace:
    """What a GPTDataset asks its tokenizer for."""
    eot = eot_of(folder)
    names = {"name_or_path": "any", "unique_identifiers": {}, "vocab_size": None}
    return SimpleNamespace(eod=eot, eos_token_id=eot, **names)


def steps(name: str, folder: Path, ranks: int, states: list[Any]) -> Iterator[tuple[Rows, Any]]:
    """The rows of all ranks, step by step, and the state of each rank after it."""
    loaders = [globals()[name](folder, rank, ranks, states) for rank in range(ranks)]
    for parts in zip(*loaders, strict=True):
        yield np.concatenate([rows for rows, _ in parts]), [state for _, state in parts]


if __name__ == "__main__":
    name, folder, ranks, path, killed_at = sys.argv[1:]
    begin = json.loads(Path(path).read_text()) if Path(path).exists() else []
    for step, (rows, states) in enumerate(steps(name, Path(folder), int(ranks), begin), 1):
        if step == int(killed_at):
            os.kill(os.getpid(), signal.SIGKILL)
        print(json.dumps(rows.tolist()), flush=True)
        if step == SAVED:
            Path(path).write_text(json.dumps(states))
        if step == STEPS:
            break
