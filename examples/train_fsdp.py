"""Trains with FSDP, and resumes exactly where the last checkpoint was written.

pip install '.[torch]'
torchrun --nproc_per_node 2 examples/train_fsdp.py DATASET
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from fineshards import BatchLoader, TokenDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("dataset", help="folder that fineshards wrote")
parser.add_argument("--checkpoints", default="checkpoints", metavar="FOLDER", type=Path)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--save_steps", type=int, default=20)
args = parser.parse_args()

cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
dist.init_process_group("nccl" if cuda else "gloo")

# Global batches of 8 sequences. The ranks take equal parts of each.
dataset = TokenDataset(args.dataset, sequence_length=64)
loader = BatchLoader(dataset, 8, 1, dist.get_rank(), dist.get_world_size(), dtype="int64")

torch.manual_seed(0)
vocabulary = dataset.vocabulary_size
model = nn.Sequential(nn.Embedding(vocabulary, 16), nn.Linear(16, vocabulary)).to(device)
for part in (*model, model):
    fully_shard(part)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

# `.metadata` is written last, so a folder without it is not complete.
if finished := sorted(args.checkpoints.glob("step-*/.metadata")):
    parameters, moments = get_state_dict(model, optimizer)
    saved = {"model": parameters, "optimizer": moments, "loader": loader}
    dcp.load(saved, checkpoint_id=finished[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=moments)

while loader.step < args.steps:
    tokens = torch.from_numpy(next(loader)).to(device)
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {loader.step} rank {dist.get_rank()} loss {loss.item()}", flush=True)
    if loader.step % args.save_steps == 0:
        parameters, moments = get_state_dict(model, optimizer)
        states = {"model": parameters, "optimizer": moments, "loader": loader}
        dcp.save(states, checkpoint_id=args.checkpoints / f"step-{loader.step:08d}")
dist.destroy_process_group()
