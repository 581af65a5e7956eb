"""Adds a month at a time to a dataset, while a run trains on the months before.

pip install '.[build]'
python examples/append_by_month.py
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import fineshards
from fineshards import BatchLoader, Mixture, TokenDataset

SAMPLE = Path(__file__).resolve().parent.parent / "samples/debian_text.parquet"

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--output", type=Path, default=Path("grown"), help="default: grown")
args = parser.parse_args()

# A folder per month, as a crawl delivers it. Here each has a third of the sample, and the last one
# what is left.
months = [args.output / "months" / month for month in ("2026-09", "2026-10", "2026-11")]
table = pq.read_table(SAMPLE)
rows = table.num_rows // len(months)
for number, month in enumerate(months):
    if not month.exists():
        month.mkdir(parents=True)
        length = None if month == months[-1] else rows
        pq.write_table(table.slice(number * rows, length), month / "part-0.parquet")

# 1. September makes the first generation.
web = args.output / "web"
manifest = fineshards.build(input=months[0], output=web, shard_tokens=50_000)
print(f"generation {manifest.generation}: {manifest.totals['documents']} documents")

# 2. A run trains on it, while another thread (or job, or machine) appends October and November.
# generation=1 has the same samples for ever, whatever is appended. A mixture can take more later.
first = TokenDataset(web, sequence_length=256, generation=1)
begun = Mixture({"first": (first, 1)}, exhausted="drop")
with BatchLoader(begun, batch_size=8, seed=1) as loader:
    with ThreadPoolExecutor() as background:
        for month in months[1:]:
            growing = background.submit(fineshards.append, web, input=month)
            for _ in range(20):
                next(loader)
                time.sleep(0.1)  # The model's step.
            manifest = growing.result()
            documents = manifest.totals["documents"]
            print(f"generation {manifest.generation}: {documents} documents")
    state = loader.state_dict()
    following = next(loader)
print(f"trained {state['step']} steps of generation 1 meanwhile")

# 3. The run resumes on its own generation: the same batch follows.
with BatchLoader(begun, batch_size=8, seed=1) as loader:
    loader.load_state_dict(state)
    assert (next(loader) == following).all()
print("resumed on generation 1: the same batch follows")

# 4. Or what was appended joins, in proportion to what is left. Each sample is drawn exactly once.
appended = TokenDataset(web, sequence_length=256, after_generation=1)
left = len(first) - state["consumed"]
mixture = Mixture(
    {"first": (first, 1), "appended": (appended, 0)},
    exhausted="drop",
    schedule={state["consumed"]: {"first": left, "appended": len(appended)}},
)
assert len(mixture) == len(TokenDataset(web, sequence_length=256))
with BatchLoader(mixture, batch_size=8, seed=1, fields=["inputs", "source_ids"]) as loader:
    loader.load_state_dict(state)
    sources = np.concatenate([next(loader)["source_ids"] for _ in range(20)])
print(f"resumed with October and November: {sources.mean():.0%} of the samples are from them")

# 5. Every generation can be checked at any time.
for generation in range(1, manifest.generation + 1):
    verdict = fineshards.verify(web, generation=generation)
    assert verdict.ok, verdict.problems
    print(f"verified generation {generation}: {verdict.tokens:,} tokens")

# 6. The tokens are those of one build of all three months; where shards are cut may differ.
whole = args.output / "whole"
fineshards.build(input=months, output=whole, shard_tokens=50_000)
for split in ("test", "train"):
    grown, at_once = (
        np.concatenate([np.load(shard) for shard in sorted(folder.glob(f"{split}/*.npy"))])
        for folder in (web, whole)
    )
    assert (grown == at_once).all()
    print(f"build and two appends = one build: {len(grown):,} tokens of {split} are equal")
