"""Where every token goes: integer arithmetic of windows, splits and shard names.

The stream is cut into windows of `shard_tokens` tokens: window k holds tokens
`[k*shard_tokens, (k+1)*shard_tokens)`. Each window is one shard. The first windows are the test
split, the rest the train split, as in the seed script. All offsets are Python ints, so nothing
overflows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

SPLITS = ("test", "train")

# The seed script names shards with four digits; more than ten thousand shards need more.
MIN_INDEX_WIDTH = 4


@dataclass(frozen=True, slots=True, order=True)
class ShardKey:
    """A shard's split (`test` or `train`) and its index within the split."""

    split: str
    index: int


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How many windows form the test split: a fraction of all, or a fixed number.

    Exactly one of the two is set.

    Args:
        test_fraction: Fraction from 0 to 1 as text, so that "0.1" means exactly one tenth.
        test_shards: Number of test shards.
    """

    test_fraction: str | None
    test_shards: int | None

    def test_windows(self, windows: int) -> int:
        """The number of test windows among `windows` windows; they come first.

        A fraction is rounded down to whole windows, but a positive one gives at least one window
        if there are two or more. A fixed number is the seed script's rule: the first N, or all.
        """
        if self.test_shards is not None:
            return min(self.test_shards, windows)
        assert self.test_fraction is not None
        fraction = Fraction(self.test_fraction)
        rounded = int(fraction * windows)
        return max(rounded, 1) if fraction > 0 and windows >= 2 else rounded


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens `[start, stop)` of a run of tokens, which go to offset `at` of the shard `key`."""

    key: ShardKey
    start: int
    stop: int
    at: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The shards of a stream of tokens. A function of counts alone.

    Args:
        tokens: Tokens in the stream.
        shard_tokens: Tokens per shard; the last shard may have fewer.
        test_windows: Number of test shards; they come first in the stream.

    Example:
        >>> from fineshards.shards.layout import Layout
        >>> layout = Layout(tokens=665_971, shard_tokens=100_000, test_windows=1)
        >>> [layout.shard_name(key) for key in layout.shard_keys()][:2]
        ['test/test_0000.npy', 'train/train_0000.npy']
        >>> layout.windows, layout.shard_length(layout.key(6))
        (7, 65971)
    """

    tokens: int
    shard_tokens: int
    test_windows: int

    @classmethod
    def plan(cls, tokens: int, shard_tokens: int, rule: SplitRule) -> Layout:
        """The layout of a stream.

        Args:
            tokens: Tokens in the stream.
            shard_tokens: Tokens per shard.
            rule: How many of the shards are test shards.

        Returns:
            The layout.
        """
        windows = -(-tokens // shard_tokens)
        return cls(tokens, shard_tokens, rule.test_windows(windows))

    @property
    def windows(self) -> int:
        """Number of shards. All but the last hold exactly `shard_tokens` tokens."""
        return -(-self.tokens // self.shard_tokens)

    @property
    def index_width(self) -> int:
        """Digits of the index in shard names; the same for all shards of a dataset."""
        most = max(self.test_windows, self.windows - self.test_windows)
        return max(MIN_INDEX_WIDTH, len(str(max(most - 1, 0))))

    def key(self, window: int) -> ShardKey:
        """The shard of window `window`, from 0."""
        if window < self.test_windows:
            return ShardKey("test", window)
        return ShardKey("train", window - self.test_windows)

    def window(self, key: ShardKey) -> int:
        """The window of a shard; the inverse of `key`."""
        return key.index if key.split == "test" else key.index + self.test_windows

    def shard_length(self, key: ShardKey) -> int:
        """The number of tokens in a shard."""
        return min(self.shard_tokens, self.tokens - self.window(key) * self.shard_tokens)

    def shard_keys(self) -> Iterator[ShardKey]:
        """All shards, in the order of the stream."""
        return map(self.key, range(self.windows))

    def shard_name(self, key: ShardKey) -> str:
        """A shard's path below the output folder, such as `train/train_0017.npy`."""
        return f"{key.split}/{key.split}_{key.index:0{self.index_width}d}.npy"

    def slices(self, offset: int, count: int) -> Iterator[Slice]:
        """Cuts a run of `count` tokens at `offset` in the stream at the window boundaries."""
        position = offset
        end = offset + count
        while position < end:
            window, at = divmod(position, self.shard_tokens)
            stop = min(end, (window + 1) * self.shard_tokens)
            yield Slice(self.key(window), position - offset, stop - offset, at)
            position = stop


def shard_stem(shard_name: str) -> str:
    """A shard's file name without folder and extension, such as `train_0017`."""
    return shard_name.rpartition("/")[2].removesuffix(".npy")


def table_name(shard_name: str) -> str:
    """The file of a shard's document table, such as `metadata/documents/train_0017.parquet`."""
    return f"metadata/documents/{shard_stem(shard_name)}.parquet"
