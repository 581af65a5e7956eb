"""The speed of MinHash keys, beside signatures of the same documents by its peers.

Run in the environment of `make test-curation`:

    .curation-venv/bin/python -m benchmarks.curation_minhash [FILE.parquet …]

All turn texts into what is compared: our 14 band keys, datatrove's 14 buckets of 8 minima, and the
112 minima of rensa and datasketch. These two take shingles: here of lower case words between white
space, which is less work than the normal form of ours and datatrove's.
Nothing is written. Seconds are those of the processor, of one thread, so that other programs matter
little. Before, ours read other documents of the file, since a worker remembers chunks of earlier
ones, and datatrove some, to load spaCy.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

import pyarrow.parquet as pq

from fineshards.curation.batch import Batch
from fineshards.curation.steps.minhash import MinHash
from fineshards.curation.words.normal_form import _memo, word_hashes

SAMPLE = Path(__file__).parents[1] / "samples/debian_text.parquet"
# Documents per record batch.
_BATCH = 1000
# 14 bands of 8.
_MINIMA = 112


@dataclass(frozen=True, slots=True)
class Speed:
    """What one way needs for the documents. times: of datatrove's speed."""

    name: str
    seconds: float
    documents_per_second: float
    megabytes_per_second: float
    times: float


def measure(earlier: Sequence[str], texts: Sequence[str], rounds: int = 4) -> list[Speed]:
    """The speeds of all ways on parts of the documents, in turn.

    earlier: What a worker has read before.
    """
    ways = {"datatrove": datatrove_signatures(), **ways_of_shingles(), **our_ways()}
    for name, way in ways.items():
        way(earlier[:20] if name == "datatrove" else earlier)
    seconds = dict.fromkeys(ways, 0.0)
    for part in range(rounds):
        for name, way in ways.items():
            # What another of ours has remembered of this part is forgotten.
            forget(earlier)
            start = process_time()
            way(texts[part::rounds])
            seconds[name] += process_time() - start
    size = sum(len(text.encode()) for text in texts) / 1e6
    return [
        Speed(name, each, len(texts) / each, size / each, seconds["datatrove"] / each)
        for name, each in seconds.items()
    ]


def forget(earlier: Sequence[str]) -> None:
    """Leaves in memory what workers remember of earlier documents."""
    _memo("space").clear()
    word_hashes(earlier)


def datatrove_signatures() -> Callable[[Sequence[str]], None]:
    """datatrove's signatures with its defaults, which are ours."""
    from datatrove.pipeline.dedup.minhash import MinhashDedupSignature

    step = MinhashDedupSignature(output_folder="/dev/null")

    def run(texts: Sequence[str]) -> None:
        for text in texts:
            shingles = step.get_shingles(text)
            if shingles.size:
                step.get_signature(shingles)

    return run


def ways_of_shingles() -> dict[str, Callable[[Sequence[str]], None]]:
    """rensa's and datasketch's minima of 5-grams, one document at a time."""
    from datasketch import MinHash as Datasketch
    from rensa import RMinHash

    def rensa(texts: Sequence[str]) -> None:
        for text in texts:
            signature = RMinHash(num_perm=_MINIMA, seed=1)
            signature.update(shingles(text))
            signature.digest()

    def datasketch(texts: Sequence[str]) -> None:
        for text in texts:
            signature = Datasketch(num_perm=_MINIMA, seed=1)
            signature.update_batch([shingle.encode() for shingle in shingles(text)])
            signature.digest()

    return {"rensa": rensa, "datasketch": datasketch}


def shingles(text: str) -> list[str]:
    """Runs of five words, in lower case; all words if there are fewer."""
    words = text.lower().split()
    return [" ".join(words[at : at + 5]) for at in range(max(len(words) - 4, 1))]


def our_ways() -> dict[str, Callable[[Sequence[str]], None]]:
    """MinHash as it runs, with its own words and with spaCy's."""

    def of(step: MinHash) -> Callable[[Sequence[str]], None]:
        def run(texts: Sequence[str]) -> None:
            for start in range(0, len(texts), _BATCH):
                step.keys(Batch.of_texts(texts[start : start + _BATCH]))

        return run

    return {
        "fineshards": of(MinHash(numbers="alike")),
        "fineshards, spaCy's words": of(MinHash(words="spacy", numbers="alike")),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the speeds as lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", type=Path, default=[SAMPLE], metavar="FILE")
    parser.add_argument("--documents", type=int, default=1000, help="of each file")
    parser.add_argument("--earlier", type=int, default=5000, help="documents read before, if any")
    options = parser.parse_args(arguments)
    for file in options.files:
        texts = pq.read_table(file, columns=["text"])["text"].to_pylist()
        earlier = min(options.earlier, len(texts) // 2)
        measured = texts[earlier : earlier + options.documents]
        for speed in measure(texts[:earlier], measured):
            sys.stdout.write(json.dumps({"file": file.name, **asdict(speed)}) + "\n")


if __name__ == "__main__":
    main()
