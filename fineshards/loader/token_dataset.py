"""One split of a finished dataset as numbered samples of a fixed length."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fineshards.errors import OutputError, UsageError
from fineshards.loader.arguments import checked_integer, checked_numbers
from fineshards.loader.sample_sources import Samples
from fineshards.loader.tokens.local_shards import OPEN_SHARDS
from fineshards.loader.tokens.split_documents import SampleDocument, SplitDocuments
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.loader.tokens.token_stream import (
    LearnedTokens,
    Reading,
    ReadingOrder,
    RedactedTokens,
    TokenStream,
)
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage


class TokenDataset(SplitDocuments):
    """The samples of one split: sample i is tokens `[i*T, i*T + T + 1)` of the split.

    T is the sequence length. `sample[:-1]` is the model's input and `sample[1:]` its labels. Each
    of the split's first `len(dataset) * T` tokens is an input exactly once; the rest, at most T
    tokens, is left out. Shards are one continuous stream, so samples cross from shard to shard.

    Opening reads only the manifest. A shard is opened and checked when one of its samples is first
    read. Threads can share a dataset. A dataset can be pickled and used after a fork.

    Args:
        path: The dataset's folder, local, or a URL such as `gs://bucket/folder` or
            `s3://bucket/folder`.
        split: `train` or `test`. `val` and `validation` are other names for `test`.
        sequence_length: T, tokens per sample without the last label.
        cache_folder: A folder on a local disk, into which shards are copied whole before they are
            read. Processes and datasets can share it. Needs google-crc32c. Default: none, so on far
            storage each sample is a request.
        cache_folder_bytes: The size of all files in that folder. The least recently opened shards
            are deleted. Default: nine tenths of what is free on its disk.
        generation: Which generation to read, from 1, of a dataset that grows. Its samples are
            always the same, whatever is appended later. Default: the latest.
        after_generation: Leaves out the samples that this earlier generation has. Sample 0 is the
            first one that it has not, and begins with its last tokens, which were too few for a
            sample. Default: all samples.
        mapped: Whether local shards are mapped into memory. A mapped shard that is cut short while
            it is in use kills the process by SIGBUS. False reads from open files and raises
            OutputError instead, which takes more processor time per sample.

    Attributes:
        sequence_length: T.
        tokens: The number of tokens in the split, from the first of sample 0 on.
        fingerprint: Identifies the split by the names, sizes and checksums of its shards. So it is
            the same for a copy, for shards that were built again, from whatever files, and when
            documents are redacted, because nothing moves then.
        generation: The generation that is read, from 1.
        dtype: Of the tokens on disk: uint16 or uint32.
        eot: The token that starts every document; others have it only if they were tokens.
        vocabulary_size: One more than the largest token that can occur: the rows of a model's
            embedding.
        vocabulary: What the tokens stand for; the sources of a mixture must have equal ones.
        has_loss_mask: Whether the documents are conversations, of which only some tokens are
            learned.

    Raises:
        UsageError: The split is unknown, empty or shorter than one sample, or a number is not a
            positive integer.
        OutputError: The dataset is not finished, or its manifest is damaged, or there is no such
            generation. Reading a sample raises it if a shard is missing or damaged.

    Example:
        >>> from fineshards import TokenDataset
        >>> dataset = TokenDataset(dataset_folder, sequence_length=1024)
        >>> len(dataset), dataset.tokens
        (552, 565971)
        >>> dataset[0].shape, dataset[0].dtype
        ((1025,), dtype('uint32'))
        >>> bool(dataset[0][-1] == dataset[1][0])
        True
        >>> dataset.gather(np.array([3, 1, 4])).shape
        (3, 1025)
        >>> dataset.close()
    """

    def __init__(
        self,
        path: str | Path,
        split: str = "train",
        *,
        sequence_length: int,
        cache_folder: str | Path | None = None,
        cache_folder_bytes: int | None = None,
        generation: int | None = None,
        mapped: bool = True,
        after_generation: int | None = None,
    ) -> None:
        self.sequence_length = checked_integer("sequence_length", sequence_length, 1)
        if generation is not None:
            generation = checked_integer("generation", generation, 1)
        storage = open_storage(path)
        opened = OPEN_SHARDS.with_room(lambda: SplitShards.open(storage, split, generation))
        super().__init__(opened)
        self.generation, self.dtype, self.eot = opened.generation, opened.dtype, opened.eot
        self.vocabulary_size, self.vocabulary = opened.vocabulary_size, opened.vocabulary
        self.has_loss_mask = opened.learned
        if after_generation is not None:
            self._begin = self._tokens_of(after_generation)
        self.tokens = opened.tokens - self._begin
        # Where sample 0 begins is part of the fingerprint.
        self._from = f"/from token {self._begin}" if self._begin else ""
        self.fingerprint = opened.fingerprint + self._from
        if len(self) == 0:
            which, advice = "", "Choose a smaller sequence_length."
            if self._begin:
                which = f"after generation {after_generation} "
                advice = "Wait until more is appended."
            raise UsageError(
                f"{path}: {which}the {split} split has {self.tokens:,} tokens, but a sample of "
                f"sequence_length {sequence_length:,} needs {sequence_length + 1:,}. {advice}"
            )
        reading = Reading.checked(opened, mapped, cache_folder, cache_folder_bytes)
        # Without an underscore for what reads several datasets together.
        self.stream = TokenStream(opened, self._begin, self.sequence_length + 1, reading)
        self._hinted = False
        self._redacted = RedactedTokens(opened)
        self._learned: LearnedTokens | None = None
        if self.has_loss_mask:
            self._learned = LearnedTokens(opened, self.sequence_length, reading)

    def latest(self) -> int:
        """The latest generation of the dataset now; larger than `generation` if there is more.

        Returns:
            Its number. To read it, open the dataset again.

        Raises:
            OutputError: The manifest is missing or damaged.
        """
        return Manifest.load_finished(self._split.storage).generation

    def generation_of(self, fingerprint: str) -> int | None:
        """The first generation of the dataset that has a fingerprint.

        Args:
            fingerprint: What `fingerprint` is in that generation.

        Returns:
            The generation, from 1; None if none of the dataset's has it.

        Raises:
            OutputError: The manifest is missing or damaged.
        """
        for generation in range(1, self.latest() + 1):
            try:
                split = SplitShards.open(self._split.storage, self._split.name, generation)
            except UsageError:
                continue  # the split was empty
            if fingerprint == split.fingerprint + self._from:
                return generation
        return None

    @property
    def shard_bounds(self) -> npt.NDArray[np.int64]:
        """int64, shape (shards + 1,): samples `[b[s], b[s + 1])` begin in shard s."""
        begins = self._split.layout.begins(self._split.name)
        # Without the shards before sample 0.
        starts = begins[np.searchsorted(begins, self._begin, "right") - 1 :] - self._begin
        return np.clip(-(-starts // self.sequence_length), 0, len(self))

    def __len__(self) -> int:
        return (self.tokens - 1) // self.sequence_length

    def __getitem__(self, index: int | slice) -> npt.NDArray[np.uint32]:
        """One sample: uint32, shape (T + 1,). A negative index counts from the end.

        A slice of n samples has the shape (n, T + 1).
        """
        if isinstance(index, slice):
            return self.gather(np.array(range(len(self))[index], np.int64))
        sample: npt.NDArray[np.uint32] = self.gather(np.array([self._number(index)]))[0]
        return sample

    def __getitems__(self, indices: Sequence[int]) -> list[npt.NDArray[np.uint32]]:
        """Several samples; torch's DataLoader reads a batch through this method."""
        if not self._hinted:
            self._hinted = True
            warnings.warn(
                "torch's DataLoader chooses samples itself, so a run cannot resume within an "
                "epoch, and tokens stay uint32. For the order and the states of a BatchLoader, "
                "wrap one: DataLoader(fineshards.TorchBatches(loader), batch_size=None).",
                stacklevel=2,
            )
        return list(self.gather(np.array([self._number(index) for index in indices])))

    def gather(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Several samples in one array, faster than one by one.

        Args:
            indices: Sample numbers from 0 to len(dataset) - 1: integers, shape (n,), any order.

        Returns:
            uint32, shape (n, T + 1); row i is sample `indices[i]`.

        Raises:
            IndexError: A number is out of range; negative ones are.
            UsageError: The numbers are not integers in one dimension.
            OutputError: A shard is missing or damaged.
        """
        numbers = checked_numbers(indices, len(self))
        out = np.empty((len(numbers), self.sequence_length + 1), np.uint32)
        self.gather_into(out, np.arange(len(numbers)), numbers)
        if out.max(initial=0) >= self.vocabulary_size:
            self.refuse_unknown(numbers)
        return out

    def gather_into(
        self, out: Samples, rows: npt.NDArray[np.int64], indices: npt.NDArray[np.int64]
    ) -> None:
        """Copies samples into rows of an array; see `Source`.

        Raises IndexError for a number out of range, OutputError for a shard that is damaged.
        """
        self.stream.fill(out, rows, checked_numbers(indices, len(self)) * self.sequence_length)

    def refuse_unknown(self, indices: npt.NDArray[np.int64]) -> None:
        """Raises OutputError if samples have a token beyond the vocabulary; see `Source`.

        The shard is closed, so that a repaired one is found.
        """
        length = self.sequence_length
        for start in (checked_numbers(indices, len(self)) * length).tolist():
            tokens = self.read_tokens(start, start + length + 1)
            wrong = np.flatnonzero(tokens >= self.vocabulary_size)
            if len(wrong):
                shard, offset = self.stream.place(start + int(wrong[0]))
                token = int(tokens[wrong[0]])
                self.close()
                raise OutputError(
                    f"the shard {self._split.storage.path(self._split.shard_name(shard))} has the "
                    f"token {token} at {offset:,}, but the vocabulary ends before "
                    f"{self.vocabulary_size}: it is damaged. Copy it again from its origin, or run "
                    "fineshards repair."
                )

    def expect(self, shuffle: bool, shuffle_shards: int | None = None) -> None:
        """Decides in which order shards are copied; warns if the cache folder is too small."""
        order = ReadingOrder(bool(shuffle), shuffle_shards)
        self.stream.expect(order)
        if self._learned is not None:
            self._learned.expect(order)

    def request(self, indices: npt.NDArray[np.int64]) -> None:
        """Asks far storage for samples, as many as the cache has room for; see `Source`."""
        starts = checked_numbers(indices, len(self)) * self.sequence_length
        stops = starts + self.sequence_length + 1
        self.stream.request(starts, stops)
        self.request_masks(starts + 1, stops)

    def read_tokens(self, start: int, stop: int) -> npt.NDArray[np.unsignedinteger]:
        """Consecutive tokens of the split, wherever samples begin.

        Args:
            start: The first token, from 0, which is the first token of sample 0.
            stop: The end, exclusive; at most `tokens`.

        Returns:
            Shape (stop - start,), in the dtype on disk: uint16 or uint32. A read-only view of the
            file where all tokens are in one mapped shard, which stays open as long as the view is
            used; else a copy.

        Raises:
            IndexError: The range is not within the split.
            OutputError: A shard is missing or damaged.

        Example:
            >>> from fineshards import TokenDataset
            >>> dataset = TokenDataset(dataset_folder, sequence_length=1024)
            >>> bool((dataset.read_tokens(1024, 2049) == dataset[1]).all())
            True
        """
        start, stop = checked_integer("start", start), checked_integer("stop", stop)
        self._check_tokens(start, stop)
        return self.stream.read(start, stop)

    def request_tokens(self, start: int, stop: int) -> None:
        """As `request`, of consecutive tokens; see `Source`."""
        self.stream.request(np.array([start]), np.array([stop]))
        starts = np.arange(start + 1, stop - self.sequence_length + 1, self.sequence_length)
        self.request_masks(starts, starts + self.sequence_length)

    def request_masks(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
        """Asks far storage for what `masks_between` needs."""
        if self._learned is not None:
            self._learned.request(self._begin + starts, self._begin + stops)

    def loss_mask(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which labels of samples are learned: all, except in conversations.

        Args:
            indices: Sample numbers, as in `gather`; integers, shape (n,).

        Returns:
            bool, shape (n, T): False where `gather(indices)[:, 1:]` is not learned.

        Raises:
            IndexError: A sample number is out of range.
            OutputError: A loss mask is missing or damaged.
        """
        starts = checked_numbers(indices, len(self)) * self.sequence_length + 1
        masks = self.masks_between(starts, starts + self.sequence_length)
        return masks.reshape(-1, self.sequence_length)

    def masks_between(
        self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """As `loss_mask`, of tokens [starts[i], stops[i]) of each i, one range after the other."""
        if self._learned is None:
            return np.ones((stops - starts).sum(), np.bool_)
        return self._learned.of(self._begin + starts, self._begin + stops)

    def within_redacted(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which EOTs are in a redacted document, behind its first one; see `Source`."""
        return self._redacted.within(self._begin + places)

    def documents(self, index: int) -> list[SampleDocument]:
        """The documents that a sample touches, in order, with the source of each.

        Reads the document tables, which needs pyarrow.

        Args:
            index: The sample's number; a negative one counts from the end.

        Returns:
            One SampleDocument per document. Together they cover all T + 1 tokens of the sample.

        Raises:
            IndexError: The number is out of range.
            UsageError: pyarrow is not installed.
            OutputError: A document table is missing or damaged.

        Example:
            >>> from fineshards import TokenDataset
            >>> dataset = TokenDataset(dataset_folder, sequence_length=1024)
            >>> for document in dataset.documents(0)[:2]:
            ...     print(document.row, document.begin, document.end, document.position)
            175 0 151 109
            176 151 888 0
        """
        begin = self._number(index) * self.sequence_length
        return self.documents_between(begin, begin + self.sequence_length + 1)

    def close(self) -> None:
        """Closes all files. The dataset can still be used and reopens them."""
        self.stream.close()
        self._dataset = None
        if self._learned is not None:
            self._learned.close()

    def __repr__(self) -> str:
        return (
            f"TokenDataset({self._split.storage.root!r}, {self._split.name!r}, "
            f"sequence_length={self.sequence_length}): {len(self):,} samples, "
            f"{self.tokens:,} tokens"
        )

    def _tokens_of(self, earlier: int) -> int:
        """The tokens that are inputs of the samples of an earlier generation."""
        earlier = checked_integer("after_generation", earlier, 1)
        if earlier >= self.generation:
            raise UsageError(
                f"after_generation is {earlier}, but generation {self.generation} is read. Give an "
                "earlier one."
            )
        split = SplitShards.open(self._split.storage, self._split.name, earlier)
        return (split.tokens - 1) // self.sequence_length * self.sequence_length

    def _number(self, index: int) -> int:
        index = checked_integer("the sample's number", index)
        try:
            return range(len(self))[index]
        except IndexError:
            raise IndexError(
                f"there is no sample {index}: there are {len(self)}, numbered from 0"
            ) from None
