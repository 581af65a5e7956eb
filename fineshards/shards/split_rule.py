"""The split rule: which documents, or which shards, are the test split.

A document's side is a function of its split key alone: not of its place, the other documents, the
block size or the order of the input. The rule `fraction`, for programs in any language:

    hash = upper 32 bits of XXH3_64bits_withSeed(key, SEED)
    test if hash < floor(fraction * 2**32), else train

The key is the UTF-8 bytes of one of these:

    text            the document's text
    id              the document's id, as in the document tables
    host            the host name of the URL in the column `url`, in lower case (`host_names`)
    row             FILE:ROW in decimal: the file's position in the input and the row's in the file,
                    both from 0, such as 3:1017
    column:NAME     the value of that column as text

A document without a key (null id, null value, a URL without a host) takes its `row` key.

With the rule `input`, the documents of test files are test, and nothing is hashed. With
`first_shards`, the first shards of the one stream are test, as in the seed script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fineshards.shards.record import Count, Record

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("test", "train")
# The stream of a job whose documents are not divided: its first shards are the test split.
ONE_STREAM = "all"

# A fraction as records hold it.
FRACTION = re.compile(r"[0-9]{1,40}(/[1-9][0-9]{0,39})?")

Hashes = npt.NDArray[np.uint32]
_KEYS = ("text", "id", "host", "row")
_COLUMN = "column:"


@dataclass(frozen=True, slots=True)
class SplitKey:
    """What decides a document's split. Raises ValueError for an unknown name.

    name: `text`, `id`, `host`, `row` or `column:NAME`.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in _KEYS and not (self.name.startswith(_COLUMN) and self.name != _COLUMN):
            raise ValueError(f"must be {', '.join(_KEYS)} or column:NAME")

    @property
    def column(self) -> str | None:
        """The column that is read for the key alone; None for text, id and row."""
        if self.name == "host":
            return "url"
        return self.name.removeprefix(_COLUMN) if self.name.startswith(_COLUMN) else None

    def hashes(self, sources: pa.RecordBatch, texts: pa.Array, column: pa.Array) -> Hashes:
        """The hashes of n documents, shape (n,).

        sources: their `file`, as a position in the input, `row` and `id`. column: the values of the
        key's column.
        """
        from fineshards.shards.split_hash import hash_keys, host_names  # loading lacks xxhash

        keys = {"row": None, "text": texts, "id": sources["id"]}.get(self.name, column)
        keys = host_names(keys) if self.name == "host" else keys
        return hash_keys(keys, sources["file"].to_numpy(), sources["row"].to_numpy())


class _Rule(Record, frozen=True, tag_field="rule"):
    """Base of the rules, and what those have in common that divide documents."""

    # Whether each document is in one split as a whole.
    by_document: ClassVar[bool] = True
    # The names of the streams that documents go to, in global order.
    streams: ClassVar[tuple[str, ...]] = SPLITS
    # The flags of a build whose splits share no text.
    flags_against_leaks: ClassVar[str] = "--split_key text"

    @property
    def may_leak(self) -> bool:
        """Whether the same text can be in both splits."""
        return True

    @property
    def threshold(self) -> int:
        """Hashes below this are test, from 0 to 2**32."""
        return 1

    def described(self) -> str:
        """The rule as flags of `build`, for a reader."""
        raise NotImplementedError

    def why_empty(self, split: str) -> str:
        """Why a split is empty, for a message."""
        what = "documents" if self.by_document else "shards"
        chosen = f"none of the {what}" if split == "test" else f"all {what}"
        return f"{self.described()} chose {chosen}"

    def asks_for_empty(self, split: str) -> bool:
        """Whether the flags say that a split is empty."""
        return False

    def hashes(
        self, sources: pa.RecordBatch, texts: pa.Array, column: pa.Array, is_test: bool
    ) -> Hashes:
        """The column `split_hash` of document tables.

        is_test: whether their file is one of the test split. The rest is as of `SplitKey.hashes`.
        """
        raise NotImplementedError

    def in_test(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Which documents are test, from their hashes; shape (documents,)."""
        chosen: npt.NDArray[np.bool_] = hashes < np.uint64(self.threshold)
        return chosen

    def streams_of(self, sources: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The position in `streams` of each document's stream, shape (n,)."""
        return (~self.in_test(sources["split_hash"].to_numpy())).astype(np.int64)

    def tokens_of_splits(
        self, tokens: Sequence[int], shard_tokens: int, appends: bool
    ) -> tuple[int, int]:
        """The tokens that a job adds to the test and to the train split.

        tokens: that it adds to each stream. appends: whether the dataset holds others already.
        """
        test, train = tokens
        return test, train


class ByFraction(_Rule, frozen=True, tag="fraction"):
    """Documents are test if the 32-bit hash of their split key is below a fraction.

    Args:
        test_fraction: Fraction from 0 to 1 as text, so that "1/10" is exactly one tenth.
        split_key: Split key: `text`, `id`, `host`, `row` or `column:NAME`.
        hash_version: Version of the hash (`split_hash.py`). Increment when it or a key changes.
    """

    test_fraction: str
    split_key: str
    hash_version: Literal[1]

    def __post_init__(self) -> None:
        SplitKey(self.split_key)
        if not FRACTION.fullmatch(self.test_fraction) or self.threshold > 1 << 32:
            raise ValueError(f"unknown fraction {self.test_fraction}")

    @property
    def may_leak(self) -> bool:
        return self.split_key != "text"

    @property
    def threshold(self) -> int:
        """floor(fraction * 2**32), from 0 to 2**32."""
        return int(Fraction(self.test_fraction) * 2**32)

    def described(self) -> str:
        fraction = float(Fraction(self.test_fraction))
        return f"--test_fraction {fraction:.15g} --split_key {self.split_key}"

    def asks_for_empty(self, split: str) -> bool:
        return self.test_fraction == {"test": "0", "train": "1"}[split]

    def hashes(
        self, sources: pa.RecordBatch, texts: pa.Array, column: pa.Array, is_test: bool
    ) -> Hashes:
        """The hashes of the documents' split keys."""
        return SplitKey(self.split_key).hashes(sources, texts, column)


class ByInput(_Rule, frozen=True, tag="input"):
    """The documents of test files are test: of `--test_input`, or of `--dataset_test_split`."""

    flags_against_leaks = "--dedup exact"

    def described(self) -> str:
        return "--test_input"

    def why_empty(self, split: str) -> str:
        """Why a split is empty, for a message."""
        return f"the files of {split} have no documents, or the recipe dropped all of them"

    def hashes(
        self, sources: pa.RecordBatch, texts: pa.Array, column: pa.Array, is_test: bool
    ) -> Hashes:
        """In place of hashes: 0 of a document of test, or else the largest number."""
        return np.full(len(sources), 0 if is_test else np.iinfo(np.uint32).max, np.uint32)


class FirstShards(_Rule, frozen=True, tag="first_shards"):
    """The first shards of the one stream are test, as in the seed script.

    Args:
        test_shards: Number of these shards.
    """

    test_shards: Count

    by_document = False
    streams = (ONE_STREAM,)
    flags_against_leaks = "--test_fraction instead of --test_shards"

    def described(self) -> str:
        return f"--test_shards {self.test_shards}"

    def asks_for_empty(self, split: str) -> bool:
        return split == "test" and self.test_shards == 0

    def streams_of(self, sources: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Zeros: all documents are in the one stream."""
        return np.zeros(len(sources), np.int64)

    def tokens_of_splits(
        self, tokens: Sequence[int], shard_tokens: int, appends: bool
    ) -> tuple[int, int]:
        """An append adds nothing to the test split, whose shards were asked for by number."""
        (total,) = tokens
        test = 0 if appends else min(self.test_shards * shard_tokens, total)
        return test, total - test


SplitRule = ByFraction | ByInput | FirstShards
