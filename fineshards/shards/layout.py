"""Where every token goes: the arithmetic of windows, splits and shard names. Pure integers.

The stream is cut into windows of `shard_tokens` tokens: window k holds tokens
`[k*shard_tokens, (k+1)*shard_tokens)`. The first windows are the test split and the rest the train
split, as in the seed script; each window is one shard. All offsets are Python ints, so nothing
overflows at any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

SPLITS = ("test", "train")

# The seed names shards with four digits; ten thousand shards and more need a wider index.
MIN_INDEX_WIDTH = 4


@dataclass(frozen=True, slots=True, order=True)
class ShardKey:
    """Names a shard: its split (`test` or `train`) and its index within the split."""

    split: str
    index: int


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How many windows are the test split: a fraction of all, or a fixed number.

    Exactly one of the two is set. `test_fraction` is kept as text so that "0.1" means one tenth
    and not the binary number next to it.
    """

    test_fraction: str | None
    test_shards: int | None

    def test_windows(self, windows: int) -> int:
        """The number of leading windows, of `windows` in all, that form the test split.

        A fraction is rounded down to whole windows, but a positive one gives at least one window
        when there are two or more. A fixed number is the seed's rule: the first N, or all.
        """
        if self.test_shards is not None:
            return min(self.test_shards, windows)
        assert self.test_fraction is not None
        fraction = Fraction(self.test_fraction)
        rounded = int(fraction * windows)
        return max(rounded, 1) if fraction > 0 and windows >= 2 else rounded


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens `[start, stop)` of one run of tokens, to be put at `at` in the shard `key`."""

    key: ShardKey
    start: int
    stop: int
    at: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The shards of a stream of `tokens` tokens: printable, and a function of counts alone."""

    tokens: int
    shard_tokens: int
    test_windows: int

    @classmethod
    def plan(cls, tokens: int, shard_tokens: int, rule: SplitRule) -> Layout:
        """The layout of a stream of `tokens` tokens cut every `shard_tokens`."""
        windows = -(-tokens // shard_tokens)
        return cls(tokens, shard_tokens, rule.test_windows(windows))

    @property
    def windows(self) -> int:
        """The number of shards; all but the last hold exactly `shard_tokens` tokens."""
        return -(-self.tokens // self.shard_tokens)

    @property
    def index_width(self) -> int:
        """Digits of the index in shard names, the same for all shards of a dataset."""
        most = max(self.test_windows, self.windows - self.test_windows)
        return max(MIN_INDEX_WIDTH, len(str(max(most - 1, 0))))

    def key(self, window: int) -> ShardKey:
        """The shard that holds a window."""
        if window < self.test_windows:
            return ShardKey("test", window)
        return ShardKey("train", window - self.test_windows)

    def window(self, key: ShardKey) -> int:
        """The window that a shard holds; the inverse of `key`."""
        return key.index if key.split == "test" else key.index + self.test_windows

    def shard_length(self, key: ShardKey) -> int:
        """The number of tokens in a shard."""
        return min(self.shard_tokens, self.tokens - self.window(key) * self.shard_tokens)

    def shard_keys(self) -> Iterator[ShardKey]:
        """All shards, in the order of the stream."""
        return map(self.key, range(self.windows))

    def shard_name(self, key: ShardKey) -> str:
        """The shard's path below the output folder, such as `train/train_0017.npy`."""
        return f"{key.split}/{key.split}_{key.index:0{self.index_width}d}.npy"

    def slices(self, offset: int, count: int) -> Iterator[Slice]:
        """Cuts a run of `count` tokens that stands at `offset` in the stream at window borders."""
        position = offset
        end = offset + count
        while position < end:
            window, at = divmod(position, self.shard_tokens)
            stop = min(end, (window + 1) * self.shard_tokens)
            yield Slice(self.key(window), position - offset, stop - offset, at)
            position = stop


def shard_stem(shard_name: str) -> str:
    """A shard's name without folder and ending, such as `train_0017`."""
    return shard_name.rpartition("/")[2].removesuffix(".npy")


def table_name(shard_name: str) -> str:
    """The name of a shard's document table, such as `metadata/documents/train_0017.parquet`."""
    return f"metadata/documents/{shard_stem(shard_name)}.parquet"
