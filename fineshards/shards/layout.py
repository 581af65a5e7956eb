"""Where every token goes: integer arithmetic of splits, windows and shard names.

What a build, or an append, adds to a split is cut into windows of `shard_tokens` tokens, of which
the last one may have fewer. Each window is one shard, and stays as it is: what is added later
begins new ones. All offsets are Python ints, so nothing overflows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Final, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from fineshards.shards.record import Count, Record

SPLITS = ("test", "train")
MASKS_FOLDER = "metadata/masks"
REJECTED_FOLDER = "metadata/rejected"

# The stream of a job whose documents are not divided: its first windows are the test split.
ONE_STREAM = "all"
# Begins the split key of a dataset whose first files are the test split.
FILES = "files"

# Version of the hash of documents' split keys (`split_hash.py`), which is part of the fingerprint.
# Increment when the hash or a key changes.
HASH_VERSION: Final = 1
# Version of the keys that a shuffle sorts by (`shuffle_order.py`): part of the fingerprint.
KEY_VERSION: Final = 1

# A test fraction as a job record holds it.
FRACTION = re.compile(r"[0-9]{1,40}(/[1-9][0-9]{0,39})?")

# The seed script names shards with four digits; more than ten thousand shards need more.
MIN_INDEX_WIDTH = 4


@dataclass(frozen=True, slots=True, order=True)
class ShardKey:
    """A shard's split (`test` or `train`) and its index within the split."""

    split: str
    index: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard: which it is, its path below the output folder, and its number of tokens."""

    key: ShardKey
    name: str
    tokens: int


class SplitRule(Record, frozen=True):
    """Which documents, or which shards, form the test split.

    With a fraction, the split is by document: a document is test if the 32-bit hash of its split
    key is below the fraction (`fineshards/shards/split_hash.py`). With a number of shards, the
    first windows of one stream are test, as in the seed script. Exactly one of the two is set.

    Args:
        test_fraction: Fraction from 0 to 1 as text, so that "1/10" is exactly one tenth.
        test_shards: Number of test shards.
        key: Split key: `text`, `id`, `host`, `row` or `column:NAME`. `files:N` if the documents of
            the first N files are test. None for a number of shards.
        hash_version: Version of the hash; None without a key.
    """

    test_fraction: str | None
    test_shards: Count | None
    key: str | None = None
    hash_version: Literal[1] | None = None

    def __post_init__(self) -> None:
        fraction = FRACTION.fullmatch(self.test_fraction or "")
        if self.by_document:
            valid = fraction and self.hash_version and self.threshold <= 1 << 32
            if not valid or (self.test_files or 0) < 0:
                raise ValueError(f"unknown split {self}")

    @property
    def by_document(self) -> bool:
        """Whether each document is in one split as a whole."""
        return self.key is not None

    @property
    def may_leak(self) -> bool:
        """Whether the same text can be in both splits."""
        return self.key != "text"

    @property
    def test_files(self) -> int | None:
        """The number of files whose documents are test; None if something else decides."""
        kind, _, number = (self.key or "").partition(":")
        return int(number) if kind == FILES else None

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the streams that documents go to, in global order."""
        return SPLITS if self.by_document else (ONE_STREAM,)

    @property
    def threshold(self) -> int:
        """Hashes below this are test: floor(fraction * 2**32), from 0 to 2**32."""
        assert self.test_fraction is not None
        return int(Fraction(self.test_fraction) * 2**32)

    def described(self) -> str:
        """The rule as flags of `build`."""
        if self.test_fraction is None:
            return f"--test_shards {self.test_shards}"
        if self.test_files is not None:
            return f"--test_input, the first {self.test_files} of the files"
        fraction = f"--test_fraction {float(Fraction(self.test_fraction)):.15g}"
        return f"{fraction} --split_key {self.key}"

    def why_empty(self, split: str) -> str:
        """Why a split is empty, for a message."""
        what = "documents" if self.by_document else "shards"
        chosen = f"none of the {what}" if split == "test" else f"all {what}"
        return f"{self.described()} chose {chosen}"

    def in_test(self, hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Which documents are test, from the hashes of their split keys; shape (documents,)."""
        chosen: npt.NDArray[np.bool_] = hashes < np.uint64(self.threshold)
        return chosen


class Shuffle(Record, frozen=True):
    """The order of documents within each stream (`fineshards/shards/shuffle_order.py`).

    Args:
        seed: Seed of the keys that documents are sorted by, from 0 to 2**63 - 1.
        key_version: Version of the keys.
    """

    seed: Count
    key_version: Literal[1]


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens `[start, stop)` of a run of tokens, which go to offset `at` of the shard `key`."""

    key: ShardKey
    start: int
    stop: int
    at: int


class Layout(Record, frozen=True):
    """The shards of a dataset. A function of counts alone.

    Global order is the test split, then the train split. A build, and each append, begins new
    shards, so its last shard of a split may have fewer tokens.

    Args:
        shard_tokens: Tokens per shard.
        added: The tokens that the build, and then each append, added to the test and to the train
            split.
    """

    shard_tokens: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    added: tuple[tuple[Count, Count], ...]

    @classmethod
    def plan(
        cls,
        tokens: Sequence[int],
        shard_tokens: int,
        rule: SplitRule,
        before: tuple[tuple[int, int], ...] = (),
    ) -> Layout:
        """The layout of a dataset to whose streams, in the order of the rule, tokens are added.

        before: what was added before, if anything was. Then nothing more goes to test shards of
        which a number was asked for.
        """
        if rule.by_document:
            test, train = tokens
        else:
            assert rule.test_shards is not None
            (total,) = tokens
            test = 0 if before else min(rule.test_shards * shard_tokens, total)
            train = total - test
        return cls(shard_tokens, (*before, (test, train)))

    def tokens_of(self, split: str) -> int:
        """Tokens of a split."""
        return sum(self._added_to(split))

    def windows_of(self, split: str) -> int:
        """Number of shards of a split."""
        return sum(-(-new // self.shard_tokens) for new in self._added_to(split))

    @property
    def tokens(self) -> int:
        """Number of tokens in both splits."""
        return sum(map(self.tokens_of, SPLITS))

    @property
    def windows(self) -> int:
        """Number of shards."""
        return sum(map(self.windows_of, SPLITS))

    @property
    def index_width(self) -> int:
        """Digits of the index in shard names; the same for all shards of a dataset."""
        most = max(map(self.windows_of, SPLITS))
        return max(MIN_INDEX_WIDTH, len(str(max(most - 1, 0))))

    def begin(self, key: ShardKey) -> int:
        """The token of its split with which a shard begins."""
        return self._bounds(key)[0]

    def shard_length(self, key: ShardKey) -> int:
        """The number of tokens in a shard."""
        begin, end = self._bounds(key)
        return end - begin

    def _bounds(self, key: ShardKey) -> tuple[int, int]:
        begin, index = 0, key.index
        for new in self._added_to(key.split):
            windows = -(-new // self.shard_tokens)
            if index < windows:
                at = index * self.shard_tokens
                return begin + at, begin + min(at + self.shard_tokens, new)
            begin, index = begin + new, index - windows
        raise IndexError(key)

    def begins(self, split: str) -> npt.NDArray[np.int64]:
        """The tokens of a split with which its shards begin, and their number: (shards + 1,)."""
        found, end = list[npt.NDArray[np.int64]](), 0
        for new in self._added_to(split):
            found.append(np.arange(end, end + new, self.shard_tokens, dtype=np.int64))
            end += new
        return np.concatenate([*found, np.array([end], np.int64)])

    def place(self, split: str, token: int) -> tuple[int, int]:
        """The index of the shard in which a token of a split is, and the token's offset there."""
        index = 0
        for new in self._added_to(split):
            if token < new:
                more, at = divmod(token, self.shard_tokens)
                return index + more, at
            token, index = token - new, index - -new // self.shard_tokens
        raise IndexError(token)

    def places(
        self, split: str, tokens: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """As `place`, of many tokens: the indices of the shards, and the offsets there."""
        added = np.array(self._added_to(split), np.int64)
        if len(added) == 1:
            return np.divmod(tokens, self.shard_tokens)
        ends, windows = np.cumsum(added), -(-added // self.shard_tokens)
        part = np.searchsorted(ends, tokens, "right")
        shards, offsets = np.divmod(tokens - (ends - added)[part], self.shard_tokens)
        return shards + (np.cumsum(windows) - windows)[part], offsets

    def _added_to(self, split: str) -> list[int]:
        number = SPLITS.index(split)
        return [new[number] for new in self.added]

    def shards(self) -> Iterator[Shard]:
        """All shards with their names and lengths, in global order."""
        width, size = self.index_width, self.shard_tokens
        for split in SPLITS:
            lengths = (min(size, n) for new in self._added_to(split) for n in range(new, 0, -size))
            for index, tokens in enumerate(lengths):
                key = ShardKey(split, index)
                yield Shard(key, shard_name(key, width), tokens)

    def shard_name(self, key: ShardKey) -> str:
        """A shard's path below the output folder, such as `train/train_0017.npy`."""
        return shard_name(key, self.index_width)

    def shard(self, key: ShardKey) -> Shard:
        """A shard with its name and length."""
        return Shard(key, self.shard_name(key), self.shard_length(key))

    def slices(self, offset: int, count: int) -> Iterator[Slice]:
        """Cuts a run of `count` tokens at `offset` in global order at the borders of the shards."""
        position, end = offset, offset + count
        while position < end:
            split = "test" if position < self.tokens_of("test") else "train"
            first = 0 if split == "test" else self.tokens_of("test")
            index, at = self.place(split, position - first)
            key = ShardKey(split, index)
            stop = min(end, position - at + self.shard_length(key))
            yield Slice(key, position - offset, stop - offset, at)
            position = stop


def shard_name(key: ShardKey, width: int) -> str:
    """A shard's path below the output folder, with an index of `width` digits."""
    return f"{key.split}/{key.split}_{key.index:0{width}d}.npy"


def shard_stem(shard_name: str) -> str:
    """A shard's file name without folder and extension, such as `train_0017`."""
    return shard_name.rpartition("/")[2].removesuffix(".npy")


def table_name(shard_name: str) -> str:
    """The file of a shard's document table, such as `metadata/documents/train_0017.parquet`."""
    return f"metadata/documents/{shard_stem(shard_name)}.parquet"


def mask_name(shard_name: str) -> str:
    """The file of a shard's loss mask, such as `metadata/masks/train_0017.npy`."""
    return f"{MASKS_FOLDER}/{shard_stem(shard_name)}.npy"


def files_of(shard_name: str) -> tuple[str, str, str]:
    """A shard, its document table, and its loss mask, which only one of conversations has."""
    return shard_name, table_name(shard_name), mask_name(shard_name)


# What a recipe, and statistics, add: the decisions about the rows of a source file, if there are
# any; with `--keep_keys`, its keys for a step of the recipe; what the steps `score` gave its
# documents, if any has reached such a step; and what was counted of it.
_CURATED = ("decisions", "keys", "scores", "statistics")
CURATED_FOLDERS = tuple(f"metadata/{name}" for name in _CURATED)


def decisions_name(file: int) -> str:
    """The file of the decisions about a source file."""
    return f"metadata/decisions/{file:05d}.parquet"


def scores_name(file: int) -> str:
    """The file of the scores of a source file."""
    return f"metadata/scores/{file:05d}.parquet"


def keys_name(file: int, step: int) -> str:
    """The file of the sorted keys of a source file for a step of the recipe (`marks.key_dtype`)."""
    return f"metadata/keys/{file:05d}-{step:05d}.keys"


def statistics_name(file: int) -> str:
    """The file of the statistics of a source file."""
    return f"metadata/statistics/{file:05d}.parquet"
