"""The lower bound: what the machine can do, with no framework and no guarantees.

One plain process per core, each with a share of the row groups, the fastest exact encoder, and one
`numpy.save` per run of row groups. No shards, order, restart, checks or document tables.

Run as `python bound.py INPUT OUTPUT`, in the peers' environment.
"""

import multiprocessing
import os
import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import awkward as ak
import gigatoken
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import tiktoken_ext

EOT = 100257
RANKS = Path(tiktoken_ext.__path__[0]) / "data/cl100k_base.tiktoken"


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a file; bytes: the uncompressed size of its text column."""

    path: Path
    index: int
    bytes: int


def row_groups(folder: Path) -> list[RowGroup]:
    """All row groups of a folder's parquet files, in order."""
    found = []
    for path in sorted(folder.glob("*.parquet")):
        metadata = pq.read_metadata(path)
        text = metadata.schema.to_arrow_schema().names.index("text")
        for index in range(metadata.num_row_groups):
            size = metadata.row_group(index).column(text).total_uncompressed_size
            found.append(RowGroup(path, index, size))
    return found


def share_out(groups: list[RowGroup], processes: int) -> list[list[RowGroup]]:
    """Consecutive shares of about the same size, one per process."""
    shares: list[list[RowGroup]] = [[] for _ in range(processes)]
    total, before = sum(group.bytes for group in groups), 0
    for group in groups:
        middle = before + group.bytes / 2
        shares[min(int(middle / total * processes), processes - 1)].append(group)
        before += group.bytes
    return shares


def encode(encoder: gigatoken.Tokenizer, texts: pa.Array) -> npt.NDArray[np.uint32]:
    """The tokens of all texts, EOT before each."""
    # gigatoken takes only strings without nulls.
    strings = ak.from_arrow(texts.drop_null().cast(pa.large_string()))
    layout = encoder.encode_batch(strings, parallel=False).layout
    starts = layout.offsets.data[:-1]
    tokens: npt.NDArray[np.uint32] = np.insert(layout.content.data, starts, np.uint32(EOT))
    return tokens


def work(number: int, share: list[RowGroup], output: Path) -> None:
    """Tokenizes the share of one process."""
    encoder = gigatoken.Tokenizer.from_tiktoken(str(RANKS), "gpt4", {})
    for path, groups in groupby(share, key=lambda group: group.path):
        parts = []
        with pq.ParquetFile(path) as file:
            for group in groups:
                table = file.read_row_group(group.index, columns=["text"], use_threads=False)
                parts.append(encode(encoder, table.column(0).combine_chunks()))
        np.save(output / f"{path.stem}-{number:02d}.npy", np.concatenate(parts))


def main(source: Path, output: Path) -> None:
    """Tokenizes a folder of parquet files, with one process per core."""
    output.mkdir(parents=True, exist_ok=True)
    shares = share_out(row_groups(source), os.cpu_count() or 1)
    processes = [
        multiprocessing.Process(target=work, args=(number, share, output))
        for number, share in enumerate(shares)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit("bound: a process failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
