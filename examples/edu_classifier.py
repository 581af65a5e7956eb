"""Scores documents with a classifier of Hugging Face on the processor, as FineWeb-Edu does.

pip install '.[build,curation,torch]' transformers
hf download HuggingFaceFW/fineweb-edu-classifier --local-dir edu
python examples/edu_classifier.py --model edu

A recipe names the function, by = "edu_classifier:score": `fineshards recipe show fineweb-edu`.
"""

import argparse
import functools
import hashlib
from pathlib import Path

import pyarrow.parquet as pq

import fineshards
from fineshards.curation.steps import Score

SAMPLE = Path(__file__).resolve().parent.parent / "samples/debian_text.parquet"


@functools.cache
def load(model, sha256):
    """Tokenizer and network. Each process loads them once; the SHA-256 is a part of the job."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if sha256_of(model) != sha256:
        raise ValueError(f"{model} has other weights than those of the job")
    # There is a worker for each core. The number of threads also decides how sums are rounded.
    torch.set_num_threads(1)
    network = AutoModelForSequenceClassification.from_pretrained(model, local_files_only=True)
    return AutoTokenizer.from_pretrained(model, local_files_only=True), network.eval()


def sha256_of(model):
    """The SHA-256 of a model's weights."""
    return hashlib.sha256((Path(model) / "model.safetensors").read_bytes()).hexdigest()


def score(documents, model, sha256):
    """A list of documents, in; a list of as many scores, from about 0 to 5, out."""
    import torch

    tokenizer, network = load(model, sha256)
    scores = []
    # One text at a time: what pads a text to the length of others would change the rounding.
    with torch.inference_mode():
        for document in documents:
            words = tokenizer(
                document["text"], truncation=True, max_length=512, return_tensors="pt"
            )
            scores.append(network(**words).logits.item())
    return scores


def main():
    """Scores the sample, says how many documents are educational, and verifies the dataset."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder with the classifier")
    parser.add_argument("--output", type=Path, default=Path("scored"), help="default: scored")
    parser.add_argument("--limit", type=int, default=200, help="documents to score; default: 200")
    args = parser.parse_args()
    arguments = {"model": args.model, "sha256": sha256_of(args.model)}
    recipe = fineshards.Recipe(
        [Score("edu", "edu_classifier:score", type="number", batch=64, arguments=arguments)]
    )
    fineshards.build(input=SAMPLE, output=args.output, limit=args.limit, recipe=recipe)
    scores = pq.read_table(args.output / "metadata/scores/00000.parquet")["edu"].to_numpy()
    print(f"{(scores > 2.5).sum()} of {len(scores)} documents are educational")
    assert fineshards.verify(args.output, sample=100).problems == []


if __name__ == "__main__":
    main()
