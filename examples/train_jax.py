"""Trains with JAX, and resumes exactly where the last checkpoint was written.

pip install '.[jax]'
python examples/train_jax.py DATASET
"""

import argparse
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fineshards import BatchLoader, TokenDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("dataset", help="folder that fineshards wrote")
parser.add_argument("--checkpoint", default="checkpoint.npz", metavar="FILE")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--save_steps", type=int, default=20)
args = parser.parse_args()

# On several machines, call jax.distributed.initialize() first.
rank, world_size = jax.process_index(), jax.process_count()
by_rows = NamedSharding(Mesh(np.array(jax.devices()), "data"), PartitionSpec("data"))

# Global batches of 8 sequences. The processes take equal parts of each.
dataset = TokenDataset(args.dataset, sequence_length=64)
loader = BatchLoader(dataset, 8, seed=1, rank=rank, world_size=world_size, dtype="int32")

normal = jax.random.normal(jax.random.key(0), (2, dataset.vocabulary_size, 16))
parameters = {"embedding": 0.02 * normal[0], "head": 0.02 * normal[1].T}
if os.path.exists(args.checkpoint):
    saved = dict(np.load(args.checkpoint))
    loader.load_state_dict(json.loads(str(saved.pop("loader"))))
    parameters = {name: jnp.asarray(saved[name]) for name in parameters}


@jax.jit
def train(parameters, tokens):
    """Returns the loss of a batch, and the parameters after a step."""

    def loss_of(parameters):
        logits = parameters["embedding"][tokens[:, :-1]] @ parameters["head"]
        likely = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
        return -likely.mean()

    loss, slopes = jax.value_and_grad(loss_of)(parameters)
    return loss, jax.tree.map(lambda each, slope: each - 0.1 * slope, parameters, slopes)


while loader.step < args.steps:
    tokens = jax.make_array_from_process_local_data(by_rows, next(loader))
    loss, parameters = train(parameters, tokens)
    print(f"step {loader.step} rank {rank} loss {loss}", flush=True)
    if rank == 0 and loader.step % args.save_steps == 0:
        with open(f"{args.checkpoint}.new", "wb") as file:
            np.savez(file, **parameters, loader=json.dumps(loader.state_dict()))
        os.replace(file.name, args.checkpoint)
