"""Keeps the documents that a small classifier likes. It judges them in batches, on the processor.

pip install '.[build,curation]'
python examples/classify.py
"""

import argparse
import functools
import hashlib
import re
import zlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import fineshards
from fineshards.curation.steps import UserFunction

SAMPLE = Path(__file__).resolve().parent.parent / "samples/debian_text.parquet"
# Embeddings: for each of so many hashes of words, a vector of so many numbers.
HASHES, SIZE = 1 << 15, 384


# 1. The step. Workers import it from this module.


@functools.cache
def load(path, sha256):
    """The model. Each process loads it once; the checksum makes its content a part of the job."""
    if hashlib.sha256(Path(path).read_bytes()).hexdigest() != sha256:
        raise ValueError(f"{path} is another model than that of the job")
    with np.load(path) as model:
        return model["vectors"], model["weights"], int(model["bias"])


def is_english(documents, model, sha256):
    """A list of documents, in; a list of as many verdicts, out."""
    vectors, weights, bias = load(model, sha256)
    sums, words = embed(vectors, [document["text"] for document in documents])
    # Whole numbers are exact in any order, so a verdict does not depend on the batch.
    return (sums @ weights > words * bias).tolist()


def embed(vectors, texts):
    """The sum of the vectors of each text's words, shape (texts, SIZE), and how many these are."""
    # One word more, which is empty, because a text may have none.
    words = [["", *re.findall(r"\w+", text.lower())] for text in texts]
    counts = np.array([len(each) for each in words])
    # Python's own hash is another one in each process.
    hashes = np.array([zlib.crc32(word.encode()) % HASHES for each in words for word in each])
    starts = np.cumsum(counts) - counts
    return np.add.reduceat(vectors[hashes], starts, axis=0, dtype=np.int64), counts


# 2. The model: a linear one, in whole numbers.


def train(path):
    """Learns English from every other document of the sample, by ridge regression."""
    table = pq.read_table(SAMPLE).take(np.arange(0, pq.read_metadata(SAMPLE).num_rows, 2))
    vectors = np.random.default_rng(1).integers(-100, 101, (HASHES, SIZE)).astype(np.int8)
    sums, words = embed(vectors, table["text"].to_pylist())
    means = sums / words[:, None]
    wanted = np.where(np.array(table["language"].to_pylist()) == "en", 1, -1)
    centered = means - means.mean(axis=0)
    covariance = centered.T @ centered + 1e5 * np.eye(SIZE)
    found = 1e6 * np.linalg.solve(covariance, centered.T @ (wanted - wanted.mean()))
    bias = np.rint(means.mean(axis=0) @ found - 1e6 * wanted.mean()).astype(np.int64)
    np.savez(path, vectors=vectors, weights=np.rint(found).astype(np.int64), bias=bias)


def main():
    """Trains the model, builds the dataset, and verifies it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=Path("classified"), help="default: classified"
    )
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    model = args.output / "model.npz"
    if not model.exists():
        train(model)

    # 3. The build: at most 64 documents at a time.
    sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
    parameters = {"model": str(model), "sha256": sha256}
    step = UserFunction("classify:is_english", parameters=parameters, batch=64)
    recipe = fineshards.Recipe([step])
    dataset = args.output / "dataset"
    manifest = fineshards.build(input=SAMPLE, output=dataset, shard_tokens=50_000, recipe=recipe)
    kept = manifest.totals["documents"]
    print(f"{kept} of {pq.read_metadata(SAMPLE).num_rows} documents are English")

    # 4. Proof: all documents are judged again, from their sources.
    assert fineshards.verify(dataset, sample=100).problems == []


if __name__ == "__main__":
    main()
