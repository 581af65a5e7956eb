"""The shards of one split: their number, lengths and file sizes, from the manifest."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fineshards.errors import OutputError, UsageError
from fineshards.shards import npy
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import content_fingerprint
from fineshards.shards.job.settings import Tokenizer
from fineshards.shards.layout import SPLITS, Layout, ShardKey, mask_name
from fineshards.shards.record import sha256_of
from fineshards.storage.base import Storage

# Names that other libraries use.
_OTHER_NAMES = {"val": "test", "validation": "test"}


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """What the tokens of a dataset stand for; equal if each stands for the same.

    A tokenizer.json is compared by its tokens where the files differ: those of a base model and of
    its chat model often differ in nothing else that counts.
    """

    storage: Storage
    tokenizer: Tokenizer

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        one, two = self.tokenizer, other.tokenizer
        if one.kind != two.kind or one.special_tokens != two.special_tokens:
            return False
        same_file = one.vocabulary_sha256 == two.vocabulary_sha256
        return same_file or (one.kind == "huggingface" and self._tokens() == other._tokens())

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.tokenizer.name} ({self.tokenizer.size:,} tokens, EOT {self.tokenizer.eot})"

    def _tokens(self) -> list[Any]:
        name = self.tokenizer.file
        try:
            stored = json.loads(self.storage.read(name))
            added = [(token["id"], token["content"]) for token in stored.get("added_tokens") or []]
            return [stored["model"]["vocab"], sorted(added)]
        except (KeyError, RecursionError, TypeError, ValueError):
            raise OutputError(
                f"{self.storage.path(name)} is not the tokenizer of the dataset: it is damaged. "
                "Copy it again from its origin."
            ) from None


@dataclass(frozen=True, slots=True)
class SplitShards:
    """The shards of one split of a finished dataset; small, so that pickling it is cheap.

    The split's tokens are one stream, which `layout` cuts into shards.

    name: the split. generation: of the dataset, from 1. fingerprint: identifies the tokens, their
    order and the split, and of conversations what is learned; the same after documents were
    redacted. tokens: in all shards. dtype: of the shard files. eot: the token that starts every
    document. vocabulary_size, vocabulary: of the tokenizer. learned: whether shards have loss
    masks. masks: whether these are the masks, read as shards of bytes.
    """

    storage: Storage
    name: str
    generation: int
    fingerprint: str
    layout: Layout
    tokens: int
    dtype: np.dtype[np.unsignedinteger]
    eot: int
    vocabulary_size: int
    vocabulary: Vocabulary | None = None
    learned: bool = False
    masks: bool = False
    _opened: list[object] = field(default_factory=lambda: [object()], compare=False, repr=False)

    @classmethod
    def open(cls, storage: Storage, name: str, generation: int | None = None) -> SplitShards:
        """The shards of a split in a generation; reads the manifest and nothing else.

        Raises UsageError if the split is empty or unknown, OutputError if the dataset is not
        finished, or its manifest is damaged, or if there is no such generation.
        """
        if not isinstance(name, str) or _OTHER_NAMES.get(name, name) not in SPLITS:
            splits = " or ".join(SPLITS)
            raise UsageError(f"{storage.root} has no split {name!r}; choose {splits}.")
        name = _OTHER_NAMES.get(name, name)
        manifest = Manifest.load_finished(storage, generation)
        layout = manifest.layout
        tokens = layout.tokens_of(name)
        if tokens == 0:
            raise UsageError(
                f"{storage.root}: the {name} split is empty, because "
                f"{manifest.settings.split.why_empty(name)}. Choose another split, or build the "
                "dataset again with another --test_fraction."
            )
        chat = manifest.settings.chat
        own = (shard for shard in manifest.shards if shard.split == name)
        content = content_fingerprint(own, manifest.settings.tokenizer.eot, redactions=False)
        # A redaction changes masks, and not what they are of: the template and the roles.
        of_masks = "" if chat is None else f"/learned {sha256_of(chat)[:16]}"
        return cls(
            storage=storage,
            name=name,
            generation=manifest.generation,
            fingerprint=f"{content}/{name}{of_masks}",
            layout=layout,
            tokens=tokens,
            dtype=manifest.settings.token_dtype,
            eot=manifest.settings.tokenizer.eot,
            vocabulary_size=manifest.settings.tokenizer.size,
            vocabulary=Vocabulary(storage, manifest.settings.tokenizer),
            learned=chat is not None,
        )

    def of_masks(self) -> SplitShards:
        """The loss masks of the shards, as shards of one byte for eight tokens."""
        size = self.layout.shard_tokens

        def packed(tokens: int) -> int:
            full, rest = divmod(tokens, size)
            return full * -(-size // 8) + -(-rest // 8)

        added = tuple((packed(test), packed(train)) for test, train in self.layout.added)
        layout = Layout(-(-size // 8), added)
        return replace(
            self,
            fingerprint=f"{self.fingerprint}/masks",
            layout=layout,
            tokens=layout.tokens_of(self.name),
            dtype=np.dtype(np.uint8),
            masks=True,
        )

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self.layout.windows_of(self.name)

    def shard_name(self, shard: int) -> str:
        """A shard's path, relative to the dataset's folder."""
        name = self.layout.shard_name(ShardKey(self.name, shard))
        return mask_name(name) if self.masks else name

    def length(self, shard: int) -> int:
        """The number of tokens in a shard."""
        return self.layout.shard_length(ShardKey(self.name, shard))

    def file_bytes(self, shard: int) -> int:
        """The size of a shard's file in bytes."""
        return npy.file_bytes(self.length(shard), self.dtype)

    def last_opened(self) -> object:
        """Another object after each shard that was opened."""
        return self._opened[0]

    def check(self, shard: int, size: int, first_bytes: bytes) -> None:
        """Raises OutputError if a file's size or its first 128 bytes are not those of the shard."""
        self._opened[0] = object()
        unchanged = self.file_bytes(shard), npy.header(self.length(shard), self.dtype)
        if (size, first_bytes) == unchanged:
            return  # without the time that the parser takes
        path = self.storage.path(self.shard_name(shard))
        problem = ""
        if size != self.file_bytes(shard):
            problem = f"has {size:,} bytes, expected {self.file_bytes(shard):,}"
        else:
            try:
                tokens = npy.parse_header(first_bytes, self.dtype)
            except ValueError as error:
                problem = str(error)
            else:
                if tokens != (expected := self.length(shard)):
                    problem = f"has {tokens:,} tokens in its header, expected {expected:,}"
        if problem:
            raise OutputError(
                f"the shard {path} {problem}: it is damaged. Copy it again from its origin, or "
                "run fineshards verify."
            )
