"""Trains with torchtitan, and resumes exactly where its last checkpoint was written.

pip install '.[torch]' torchtitan
PYTHONPATH=examples torchrun --nproc_per_node 2 -m torchtitan.train --module train_torchtitan \
    --config debugmodel --dataloader.dataset_path DATASET --hf_assets_path DATASET/metadata \
    --checkpoint.enable  # reads examples/train_torchtitan.py
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.models.llama3 import config_registry
from torchtitan.trainer import Trainer

from fineshards import BatchLoader, TokenDataset

# Inputs with their positions, and labels.
Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


class Shards(BaseDataLoader):
    """Gives torchtitan the batches of a BatchLoader, and their place in its checkpoints."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """What torchtitan's command line can change, with `--dataloader.`."""

        split: str = "train"
        seed: int = 1
        infinite: bool = True

    def __init__(self, config: Config, *, dp_rank: int, dp_world_size: int, **sizes: Any) -> None:
        dataset = TokenDataset(
            str(config.dataset_path), config.split, sequence_length=sizes["seq_len"]
        )
        self._batches = BatchLoader(
            dataset,
            sizes["local_batch_size"] * dp_world_size,
            config.seed,
            dp_rank,
            dp_world_size,
            dtype="int64",
            # Attention stays within documents: torchtitan begins one where a position is 0.
            fields={"inputs": "inputs", "positions": "position_ids", "labels": "targets"},
            epochs=None if config.infinite else 1,
        )

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            inputs, positions, labels = map(torch.from_numpy, batch.values())
            yield {"input": inputs, "positions": positions}, labels

    def state_dict(self) -> dict[str, Any]:
        return self._batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._batches.load_state_dict(state)


def debugmodel() -> Trainer.Config:
    """torchtitan's smallest Llama, for 2,048 tokens; config_registry has the others."""
    config = config_registry.llama3_debugmodel()
    config.dataloader = Shards.Config()
    config.validator.dataloader = Shards.Config(split="test")
    return config
