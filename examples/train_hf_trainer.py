"""Trains with Hugging Face's Trainer, and resumes exactly where the last checkpoint was written.

pip install '.[torch]' accelerate transformers
python examples/train_hf_trainer.py DATASET, or with torchrun --nproc_per_node 2.
"""

import argparse
import json
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from fineshards import BatchLoader, TokenDataset, TorchBatches

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("dataset", help="folder that fineshards wrote")
parser.add_argument("--checkpoints", default="checkpoints", metavar="FOLDER")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--save_steps", type=int, default=20)
args = parser.parse_args()

# The loader resumes by itself. Otherwise the Trainer reads and drops every batch up to there.
options = {"ignore_data_skip": True, "logging_steps": 1, "report_to": "none"}
options |= {"max_steps": args.steps, "save_steps": args.save_steps}
training = TrainingArguments(args.checkpoints, use_cpu=not torch.cuda.is_available(), **options)

# Global batches. The ranks take equal parts of each. The model shifts the labels itself.
dataset = TokenDataset(args.dataset, sequence_length=64)
rank, world_size = training.process_index, training.world_size
batch_size = training.train_batch_size * world_size
fields = {"input_ids": "inputs", "labels": "labels"}
loader = BatchLoader(dataset, batch_size, 1, rank, world_size, fields=fields, dtype="int64")


class TokensTrainer(Trainer):
    def get_train_dataloader(self) -> DataLoader:
        """Batches as the loader divides them among the ranks, not to be divided again."""
        return DataLoader(TorchBatches(loader), batch_size=None)


class SaveLoader(TrainerCallback):
    def on_save(self, args, state, control, **_) -> None:
        """Adds the loader's state to the checkpoint, as its last file."""
        batches = state.global_step * args.gradient_accumulation_steps - loader.step
        if state.is_world_process_zero:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            (folder / "loader.json").write_text(json.dumps(loader.state_dict(batches)))


finished = [path.parent for path in Path(args.checkpoints).glob("checkpoint-*/loader.json")]
last = max(finished, key=lambda path: int(path.name.split("-")[1]), default=None)
if last:
    loader.load_state_dict(json.loads((last / "loader.json").read_text()))
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=dataset.vocabulary_size, num_hidden_layers=2, **sizes)
set_seed(training.seed)
trainer = TokensTrainer(LlamaForCausalLM(config), training, callbacks=[SaveLoader()])
trainer.train(resume_from_checkpoint=last)
trainer.accelerator.wait_for_everyone()
trainer.accelerator.end_training()
