"""Trains with Lightning, and resumes exactly where the last checkpoint was written.

pip install '.[torch]' lightning
python examples/train_lightning.py DATASET, or with torchrun --nproc_per_node 2.
"""

import argparse
import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from fineshards import BatchLoader, TokenDataset, TorchBatches

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("dataset", help="folder that fineshards wrote")
parser.add_argument("--checkpoints", default="checkpoints", metavar="FOLDER")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--save_steps", type=int, default=20)
args = parser.parse_args()
dataset = TokenDataset(args.dataset, sequence_length=64)


class Tokens(lightning.LightningDataModule):
    saved = None

    def train_dataloader(self):
        """Global batches of 8 sequences. The ranks take equal parts of each."""
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        self.loader = BatchLoader(dataset, 8, 1, rank, world_size, dtype="int64")
        if self.saved:
            self.loader.load_state_dict(self.saved)
        return DataLoader(TorchBatches(self.loader), batch_size=None)

    def state_dict(self):
        """For checkpoints: counts the batches trained on, not those that were read ahead."""
        batches = self.trainer.fit_loop.epoch_loop.total_batch_idx + 1
        return self.loader.state_dict(batches - self.loader.step)

    def load_state_dict(self, state_dict):
        """Keeps the state until the loader is made."""
        self.saved = state_dict


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        vocabulary = dataset.vocabulary_size
        self.layers = nn.Sequential(nn.Embedding(vocabulary, 16), nn.Linear(16, vocabulary))

    def training_step(self, tokens, batch_idx):
        loss = nn.functional.cross_entropy(self.layers(tokens[:, :-1]).mT, tokens[:, 1:])
        print(f"step {self.global_step + 1} rank {self.global_rank} loss {loss.item()}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(0)
devices = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
save = ModelCheckpoint(args.checkpoints, save_last=True, every_n_train_steps=args.save_steps)
trainer = lightning.Trainer(devices=devices, max_steps=args.steps, callbacks=save, logger=False)
trainer.fit(Model(), datamodule=Tokens(), ckpt_path="last")
