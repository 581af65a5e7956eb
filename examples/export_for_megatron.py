"""Exports a dataset for Megatron, and reads a document.

pip install '.[build]'
python examples/export_for_megatron.py
"""

import argparse
from base64 import b64decode
from pathlib import Path

import numpy as np

import fineshards
from fineshards import TokenDataset

SAMPLE = Path(__file__).resolve().parent.parent / "samples/debian_text.parquet"
DTYPES = {4: "int32", 8: "uint16"}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--output", type=Path, default=Path("exported"), help="default: exported")
args = parser.parse_args()


def read_document(stem: Path, number: int) -> np.ndarray:
    """A document of STEM.bin, by the index STEM.idx: all there is to the format."""
    index = stem.with_suffix(".idx").read_bytes()
    assert index.startswith(b"MMIDIDX\0\0" + (1).to_bytes(8, "little"))
    dtype = np.dtype(DTYPES[index[17]])
    sequences = int.from_bytes(index[18:26], "little")
    # int32 lengths in tokens, then int64 offsets in bytes. A document is one sequence here.
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    offsets = np.frombuffer(index, "<i8", sequences, 34 + lengths.nbytes)
    return np.fromfile(stem.with_suffix(".bin"), dtype, lengths[number], offset=offsets[number])


# 1. Build once.
dataset = args.output / "dataset"
manifest = fineshards.build(input=SAMPLE, output=dataset, shard_tokens=100_000)
print(f"built {manifest.totals['tokens']:,} tokens")
# The vocabulary is stored with the dataset: a line per token, its bytes in base64 and its number.
lines = (dataset / "metadata/vocabulary.tiktoken").read_text().splitlines()
vocabulary = [b64decode(line.split()[0]) for line in lines]

# 2. Write the tokens into files of Megatron's.
folder = args.output / "megatron"
export = fineshards.export(dataset, folder, to="megatron")
verdict = fineshards.verify(folder)
assert verdict.ok, verdict.problems
written = sum(file.bytes for file in export.files)
print(f"{len(export.files)} files, {written:,} bytes written, verified")

# 3. Read it with ten lines of numpy.
tokens = read_document(folder / "train_0000", 1)
text = b"".join(vocabulary[token] for token in tokens[:12]).decode()
print(f"  document 1 of train_0000: {len(tokens)} tokens, {text!r} …")

# 4. Megatron's own reader returns the same, where megatron-core is installed.
try:
    from megatron.core.datasets.indexed_dataset import IndexedDataset
except ImportError:
    print("  megatron-core is not installed: pip install megatron-core")
else:
    # The documents are views of a mapped file, which is closed with the reader.
    reader = IndexedDataset(str(folder / "train_0000"))
    assert (reader[1] == tokens).all()
    print("  megatron-core reads the same tokens")

# 5. The lines for Megatron's command. The vocabulary size is that of the dataset's tokenizer.
train = sorted(folder.glob("train_*.bin"))
size = TokenDataset(dataset, sequence_length=1).vocabulary_size
print(f"""
--data-path {" ".join(str(file.with_suffix("")) for file in train)} --split 100,0,0
--tokenizer-type NullTokenizer --vocab-size {size} --eod-mask-loss --reset-position-ids""")
