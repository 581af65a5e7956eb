"""Trains with DDP, and resumes exactly where the last checkpoint was written.

pip install '.[torch]'
torchrun --nproc_per_node 2 examples/train_ddp.py DATASET
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fineshards import BatchLoader, TokenDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("dataset", help="folder that fineshards wrote")
parser.add_argument("--checkpoint", default="checkpoint.pt", metavar="FILE")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--save_steps", type=int, default=20)
args = parser.parse_args()

cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
dist.init_process_group("nccl" if cuda else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

# Global batches of 8 sequences. The ranks take equal parts of each.
dataset = TokenDataset(args.dataset, sequence_length=64)
loader = BatchLoader(dataset, 8, seed=1, rank=rank, world_size=world_size, dtype="int64")

torch.manual_seed(0)
vocabulary = dataset.vocabulary_size
model = nn.Sequential(nn.Embedding(vocabulary, 16), nn.Linear(16, vocabulary)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if os.path.exists(args.checkpoint):
    saved = torch.load(args.checkpoint, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])
trained = DistributedDataParallel(model)

while loader.step < args.steps:
    tokens = torch.from_numpy(next(loader)).to(device)
    loss = nn.functional.cross_entropy(trained(tokens[:, :-1]).mT, tokens[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {loader.step} rank {rank} loss {loss.item()}", flush=True)
    if rank == 0 and loader.step % args.save_steps == 0:
        states = {"model": model, "optimizer": optimizer, "loader": loader}
        states = {name: each.state_dict() for name, each in states.items()}
        torch.save(states, f"{args.checkpoint}.new")
        os.replace(f"{args.checkpoint}.new", args.checkpoint)
dist.destroy_process_group()
