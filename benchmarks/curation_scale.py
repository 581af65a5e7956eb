"""Deduplication of many documents: the memory of a local build, and the shuffle at FineWeb's size.

Run as `python -m benchmarks.curation_scale` (`make bench-curation`): builds a dataset of made-up
short documents with `minhash`, and measures time and memory of all processes from outside. With
`--step passages` documents are longer, and quote earlier ones.
`--plan` (`make bench-scale`) only does the arithmetic of 15 trillion tokens.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.machine import describe_commit, describe_machine
from benchmarks.measure import measure
from fineshards.curation.batch import Batch
from fineshards.curation.step import Keyed, KeyedSpans
from fineshards.curation.steps.minhash import MinHash
from fineshards.curation.steps.passages import Passages
from fineshards.shards.tables.marks import key_dtype
from fineshards.transforms.mark_later import range_count

ROOT = Path(__file__).parents[1]
FILES = 20


class Measured(NamedTuple):
    """A step. words: of a document. copied: those that one in ten has of one a file before."""

    step: Keyed
    words: int
    copied: slice


STEPS = {
    "minhash": Measured(MinHash(), 16, slice(0, 16)),
    "passages": Measured(Passages(), 200, slice(50, 150)),
}
COPIED = 0.1
# Documents whose keys are counted.
COUNTED = 1000
# FineWeb: 15 trillion tokens in 23 billion documents, of 63 TB of text.
DOCUMENTS, TEXT_BYTES = 23_000_000_000, 63_000_000_000_000
BLOCK_BYTES = 64 << 20
KEYS = 14
# Assumed, not measured: how many documents share a key with an earlier one, with how many of those
# they are compared, and the bytes of a word with its space. A shingle is a hash of 8 bytes.
COMPARED, CANDIDATES, WORD_BYTES = 0.4, 1.5, 6
FILES_OF_FINEWEB = 27_000
# Assumed, not measured: what Dataflow asks for shuffled data and for a core, in dollars.
SHUFFLE_PRICE, CORE_PRICE = 0.011, 0.05


def write_documents(folder: Path, documents: int, measured: Measured) -> tuple[int, float]:
    """Writes files of made-up documents; returns the bytes of their text and keys per document."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    random = np.random.default_rng(1)
    words = pa.array(["".join(random.choice(letters, 6)) for _ in range(50_000)])
    count, before, size = documents // FILES, None, 0
    for file in range(FILES):
        chosen = (random.pareto(1.0, (count, measured.words)) * 10).astype(np.int64)
        if before is not None:
            copied = int(count * COPIED)
            chosen[:copied, measured.copied] = before[:copied, measured.copied]
        before = chosen
        listed = pa.ListArray.from_arrays(
            np.arange(0, chosen.size + 1, measured.words, dtype=np.int32),
            words.take(pa.array(chosen.ravel() % len(words))),
        )
        texts = pc.binary_join(listed, " ")
        size += pc.sum(pc.binary_length(texts)).as_py()
        pq.write_table(pa.table({"text": texts}), folder / f"{file:03d}.parquet")
    few = Batch.of_texts(texts[:COUNTED].to_pylist())
    return size, len(measured.step.keys(few).owners) / len(few)


def measure_build(name: str, documents: int, folder: Path) -> dict[str, object]:
    """Builds with a step; returns what it took."""
    (folder / "in").mkdir()
    step = STEPS[name].step
    text_bytes, keys = write_documents(folder / "in", documents, STEPS[name])
    (folder / "recipe.toml").write_text(f'[[steps]]\nuse = "{name}"\n')
    command = [sys.executable, "-m", "fineshards", "build", "--input", f"{folder}/in/*.parquet"]
    command += ["--output", f"{folder}/out", "--recipe", f"{folder}/recipe.toml"]
    measured = measure(command, folder / "log", ROOT)
    manifest = json.loads((folder / "out/metadata/manifest.json").read_text())
    key_bytes = key_dtype(step.key_bits, isinstance(step, KeyedSpans)).itemsize
    return {
        "step": name,
        "documents": documents,
        "text_bytes": text_bytes,
        "kept": manifest["totals"]["documents"],
        "tokens": manifest["totals"]["tokens"],
        "keys_per_document": keys,
        "key_bytes": round(documents * keys * key_bytes),
        "seconds": round(measured.wall, 1),
        "cpu_seconds": round(measured.cpu, 1),
        "peak_bytes_of_all_processes": measured.peak_tree,
        "peak_bytes_of_one_process": measured.peak_process,
    }


def plan() -> dict[str, object]:
    """The shuffle of minhash keys at FineWeb's size, by arithmetic."""
    keys = DOCUMENTS * KEYS
    key_bytes = keys * key_dtype(64).itemsize
    ranges, blocks = range_count(keys, None), TEXT_BYTES // BLOCK_BYTES
    pairs = round(DOCUMENTS * COMPARED * CANDIDATES)
    contents = round(pairs * TEXT_BYTES / DOCUMENTS / WORD_BYTES * 8)
    return {
        "documents": DOCUMENTS,
        "blocks": blocks,
        "keys": keys,
        "shuffled_bytes": key_bytes,
        "ranges": ranges,
        "bytes_of_keys_in_a_range": key_bytes // ranges,
        "elements": blocks * ranges,
        "bytes_per_element": key_bytes // (blocks * ranges),
        "wrong_joins_by_64_bits": round(KEYS * DOCUMENTS**2 / 2 / 2**64),
        "shuffle_dollars": round(key_bytes / 1e9 * SHUFFLE_PRICE),
        "core_hours_of_signatures_at_10_MB_per_s": round(TEXT_BYTES / 10e6 / 3600),
        "dollars_of_signatures": round(TEXT_BYTES / 10e6 / 3600 * CORE_PRICE),
        "pairs_compared": pairs,
        "bytes_of_contents": contents,
        "bytes_of_contents_for_a_file": contents // FILES_OF_FINEWEB,
        "dollars_of_contents": round(contents / 1e9 * SHUFFLE_PRICE),
        "bytes_read_twice_more": 2 * TEXT_BYTES,
        "hours_on_1000_cores": round(TEXT_BYTES / 10e6 / 3600 / 1000, 1),
    }


def main() -> None:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", action="store_true", help="only the arithmetic")
    parser.add_argument("--step", choices=STEPS, default="minhash", help="default: minhash")
    parser.add_argument("--documents", type=int, default=10_000_000)
    args = parser.parse_args()
    if args.plan:
        print(json.dumps(plan(), indent=1))
        return
    with tempfile.TemporaryDirectory(prefix="fineshards-bench-") as folder:
        figures = measure_build(args.step, args.documents, Path(folder))
    figures |= {"machine": describe_machine(ROOT), "commit": describe_commit(ROOT)}
    print(json.dumps(figures, indent=1, default=str))


if __name__ == "__main__":
    main()
