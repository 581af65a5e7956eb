"""Mixes two datasets, resumes with other weights, and prints the shares that a run has seen.

pip install '.[curation]'
python examples/mix_datasets.py
"""

import argparse
import json
from pathlib import Path

import numpy as np

import fineshards
from fineshards import BatchLoader, Mixture, TokenDataset

SAMPLE = Path(__file__).resolve().parent.parent / "samples/debian_text.parquet"
STEPS, BATCH_SIZE = 50, 8

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--output", type=Path, default=Path("mixed"), help="default: mixed")
args = parser.parse_args()

# 1. Two datasets of one file. `where` is SQL on its columns; it needs the extra `curation`.
conditions = {"english": "language = 'en'", "other": "language <> 'en'"}
datasets = {}
for name, condition in conditions.items():
    manifest = fineshards.build(input=SAMPLE, output=args.output / name, where=condition)
    datasets[name] = TokenDataset(args.output / name, sequence_length=256)
    documents = manifest.totals["documents"]
    print(f"{name}: {documents} documents, {len(datasets[name])} samples")
english, other = datasets["english"], datasets["other"]


def train(loader: BatchLoader, steps: int) -> None:
    """Takes the batches of some steps, and prints the share of each source."""
    begin = loader.step
    # A model would take the batch's inputs and targets. source_ids make a loss per source.
    sources = np.concatenate([next(loader)["source_ids"] for _ in range(steps)])
    shares = [f"{name} {np.mean(sources == source):.0%}" for source, name in enumerate(datasets)]
    print(f"steps {begin} to {loader.step - 1}: {', '.join(shares)}")


# 2. What a run will take, before it begins: with these weights English begins to repeat at step 42.
mixture = Mixture({"english": (english, 0.8), "other": (other, 0.2)}, seed=1)
print(mixture.plan(STEPS, BATCH_SIZE))

fields = ["inputs", "targets", "source_ids"]
with BatchLoader(mixture, BATCH_SIZE, seed=1, fields=fields) as loader:
    train(loader, STEPS // 2)
    state_file = args.output / "loader.json"
    state_file.write_text(json.dumps(loader.state_dict()))
    draws = loader.consumed

# 3. So another process resumes with other weights. Each source continues where it was.
changed = Mixture(
    {"english": (english, 0.8), "other": (other, 0.2)},
    seed=1,
    schedule={draws: {"english": 0.25, "other": 0.75}},
)
with BatchLoader(changed, BATCH_SIZE, seed=1, fields=fields) as loader:
    loader.load_state_dict(json.loads(state_file.read_text()))
    train(loader, STEPS // 2)

# 4. A mixture is a function: any draw is computed from its number.
name, sample = changed[draws + 1_000_000]
print(f"draw {draws + 1_000_000:,} is sample {sample:,} of {name}, counted over its epochs")
