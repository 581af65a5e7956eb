"""Where every token goes: integer arithmetic of splits, windows and shard names.

What a build, or an append, adds to a split is cut into windows of `shard_tokens` tokens, of which
the last one may have fewer. Each window is one shard, and stays as it is: what is added later
begins new ones. All offsets are Python ints, so nothing overflows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from fineshards.shards.record import Count, Record
from fineshards.shards.split_rule import SPLITS as SPLITS
from fineshards.shards.split_rule import SplitRule

# A shard's path below the output folder, as `shard_name` makes it.
SHARD_NAME = rf"^({'|'.join(SPLITS)})/\1_[0-9]{{4,}}\.npy$"
_UNFINISHED = re.compile(rf"/({'|'.join(SPLITS)})-([0-9]+)\.npy\Z")
MASKS_FOLDER = "metadata/masks"
REJECTED_FOLDER = "metadata/rejected"

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


class Shuffle(Record, frozen=True):
    """The order of documents within each stream (`fineshards/shards/shuffle_order.py`).

    Args:
        seed: Seed of the keys that documents are sorted by, from 0 to 2**63 - 1.
        key_version: Version of the keys (`shuffle_order.py`). Increment when they change.
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

        before: what was added before, if anything was.
        """
        added = rule.tokens_of_splits(tokens, shard_tokens, appends=bool(before))
        return cls(shard_tokens, (*before, added))

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
        begins, end = list[npt.NDArray[np.int64]](), 0
        for new in self._added_to(split):
            begins.append(np.arange(end, end + new, self.shard_tokens, dtype=np.int64))
            end += new
        return np.concatenate([*begins, np.array([end], np.int64)])

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


def unfinished_stem(key: ShardKey) -> str:
    """The file name, without an extension, of a shard whose name is not known yet."""
    return f"{key.split}-{key.index}"


def unfinished_key(path: str) -> ShardKey | None:
    """The shard of a file that is named by `unfinished_stem`; None of any other file."""
    match = _UNFINISHED.search(path)
    return match and ShardKey(match[1], int(match[2]))


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


def file_table(kind: str, file: int) -> str:
    """The file of a source file's `decisions`, `scores` or `statistics`."""
    return f"metadata/{kind}/{file:05d}.parquet"


def keys_name(file: int, step: int) -> str:
    """The file of the sorted keys of a source file for a step of the recipe (`marks.key_dtype`)."""
    return f"metadata/keys/{file:05d}-{step:05d}.keys"
