"""A split of a finished dataset as samples of a fixed length, by number."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.loader.arguments import whole_number
from fineshards.loader.boundaries import document_starts
from fineshards.loader.mapped import MappedShards
from fineshards.loader.remote import RemoteShards
from fineshards.loader.split_shards import Split
from fineshards.storage.base import open_storage

if TYPE_CHECKING:
    from fineshards.shards.dataset import Dataset

BLOCK_BYTES = 8 << 20
CACHE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class SampleDocument:
    """The part of a document that lies in a sample.

    number: of the document in the stream. file, row, id: where its text came from.
    begin, end: its tokens in the sample, half-open. position: how many of the document's tokens
    lie before the sample; 0 when its EOT stands at `begin`.
    """

    number: int
    file: str
    row: int
    id: str | None
    begin: int
    end: int
    position: int


class TokenDataset:
    """The samples of one split: sample i is tokens `[i*T, i*T + T]` of it, T + 1 in all.

    So `sample[:-1]` is a model's input and `sample[1:]` what it should say; each of the split's
    first `len(self) * T` tokens is an input once, and the tokens behind them, T at most, are left
    out. Shards are one stream: samples go on across their ends.

    path: the dataset's folder, local or `gs://`. sequence_length: T. block_bytes, cache_bytes: on
    gs://, how much a request fetches, and how much is kept in memory.

    Only the manifest is read now; a shard is opened and checked when a sample of it is. Threads may
    share a dataset; it may be pickled, and goes on after a fork. Raises UsageError for what cannot
    be asked for, OutputError for what is not there or damaged, now and when samples are read.
    """

    def __init__(
        self,
        path: str | Path,
        split: str = "train",
        *,
        sequence_length: int,
        block_bytes: int = BLOCK_BYTES,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.tokens_a_sample = whole_number("sequence_length", sequence_length, 1)
        self._block_bytes = whole_number("block_bytes", block_bytes, 1)
        self._cache_bytes = whole_number("cache_bytes", cache_bytes, 1)
        self._split = Split.open(open_storage(str(path)), split)
        if len(self) == 0:
            raise UsageError(
                f"{path}: the split {split} has {self._split.tokens:,} tokens, but a sample of "
                f"sequence_length {sequence_length:,} needs {sequence_length + 1:,}; give a "
                "smaller sequence_length."
            )
        self._process: int | None = None
        self._reader: MappedShards | RemoteShards | None = None
        self._dataset: Dataset | None = None

    @property
    def fingerprint(self) -> str:
        """Names the dataset's content and the split; the same wherever the dataset lies."""
        return self._split.fingerprint

    @property
    def tokens(self) -> int:
        """The number of tokens in the split."""
        return self._split.tokens

    @property
    def eot(self) -> int:
        """The token that starts every document, and stands nowhere else."""
        return self._split.eot

    @property
    def shard_bounds(self) -> npt.NDArray[np.int64]:
        """int64, shape (shards + 1,): samples `[b[s], b[s+1])` begin in the shard s."""
        starts = np.arange(self._split.shards + 1) * self._split.layout.shard_tokens
        return np.minimum(-(-starts // self.tokens_a_sample), len(self))

    def __len__(self) -> int:
        return (self._split.tokens - 1) // self.tokens_a_sample

    def __getitem__(self, index: int) -> npt.NDArray[np.uint32]:
        """A sample, uint32, shape (T + 1,); negative numbers count from the end."""
        sample: npt.NDArray[np.uint32] = self.gather(np.array([self._number(index)]))[0]
        return sample

    def __getitems__(self, indices: Sequence[int]) -> list[npt.NDArray[np.uint32]]:
        """Several samples; torch's DataLoader asks for a batch in this way."""
        return list(self.gather(np.array([self._number(index) for index in indices])))

    def gather(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Samples by their numbers, in range(len(self)); uint32, shape (len(indices), T + 1)."""
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"sample numbers outside of range({len(self)})")
        rows = np.empty((len(indices), self.tokens_a_sample + 1), np.uint32)
        starts = indices.astype(np.int64) * self.tokens_a_sample
        shards, offsets = np.divmod(starts, self._split.layout.shard_tokens)
        self._files().fill(rows, shards.tolist(), offsets.tolist())
        return rows

    def boundaries(self, index: int) -> npt.NDArray[np.int64]:
        """Where documents begin in a sample; 0 is among them, though a document may begin before.

        int64, increasing. `loader.boundaries` makes `cu_seqlens` and position ids of whole batches.
        """
        return document_starts(self[index], self.eot)

    def documents(self, index: int) -> list[SampleDocument]:
        """The documents that a sample touches, in order, from the document tables (pyarrow)."""
        begin = self._number(index) * self.tokens_a_sample
        end = begin + self.tokens_a_sample + 1
        size = self._split.layout.shard_tokens
        found: list[SampleDocument] = []
        for shard in range(begin // size, (end - 1) // size + 1):
            at = shard * size
            table = self._tables().table(self._position(shard))
            number = table.index_of_token(max(begin - at, 0))
            while number < len(table) and at + table.offset[number] < end:
                piece = table.piece(number)
                number += 1
                first = max(at + piece.offset, begin)
                last = min(at + piece.offset + piece.length, end)
                if found and found[-1].number == piece.document:
                    before = found.pop()
                    first, position = begin + before.begin, before.position
                else:
                    position = first - at - piece.offset + piece.start
                found.append(
                    SampleDocument(
                        number=piece.document,
                        file=piece.file,
                        row=piece.row,
                        id=piece.id,
                        begin=first - begin,
                        end=last - begin,
                        position=position,
                    )
                )
        return found

    def close(self) -> None:
        """Closes what is open; the dataset may be used again."""
        if self._process == os.getpid() and self._reader is not None:
            self._reader.close()
        self._process = self._reader = self._dataset = None

    def __repr__(self) -> str:
        return (
            f"TokenDataset({self._split.storage.root!r}, {self._split.name!r}, "
            f"sequence_length={self.tokens_a_sample}): {len(self):,} samples"
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None, "_dataset": None, "_process": None}

    def _number(self, index: int) -> int:
        try:
            return range(len(self))[index]
        except IndexError:
            raise IndexError(f"sample {index} of {len(self)}") from None

    def _position(self, shard: int) -> int:
        """A shard's position in the manifest, where the test split comes first."""
        return shard + (self._split.layout.test_windows if self._split.name == "train" else 0)

    def _files(self) -> MappedShards | RemoteShards:
        # A fork has its parent's locks, but not the threads that would release them.
        reader = self._reader
        if reader is None or self._process != os.getpid():
            if self._split.storage.supports_mmap:
                reader = MappedShards(self._split)
            else:
                reader = RemoteShards(self._split, self._block_bytes, self._cache_bytes)
            self._reader, self._process = reader, os.getpid()
        return reader

    def _tables(self) -> Dataset:
        try:
            from fineshards.shards.dataset import Dataset
        except ModuleNotFoundError as error:
            raise UsageError(
                f"document tables are parquet files, and {error.name} is not installed: "
                "pip install pyarrow."
            ) from error
        if self._dataset is None:
            self._dataset = Dataset.open(self._split.storage)
        return self._dataset
