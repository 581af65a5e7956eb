"""From a tokenizer's name or record to a ready, checked encoder."""

from __future__ import annotations

import threading
from functools import lru_cache

from encoders.encoder import Encoder
from encoders.golden import golden_sha256
from encoders.tiktoken_encoder import TiktokenEncoder
from encoders.vocabulary import Vocabulary, resolve_vocabulary
from shards.errors import FineshardsError
from shards.job import VOCABULARY_NAME, Tokenizer
from shards.storage import Storage

_building = threading.Lock()


def describe_tokenizer(name: str) -> tuple[Tokenizer, bytes]:
    """The record of a tokenizer and its rank file; raises UsageError if it cannot be had."""
    vocabulary = resolve_vocabulary(name)
    record = Tokenizer(
        name=name,
        vocabulary_sha256=vocabulary.sha256,
        pattern=vocabulary.pattern,
        special_tokens=vocabulary.special_tokens,
        eot=vocabulary.eot,
        size=vocabulary.size,
        golden_sha256=golden_sha256(_encoder(vocabulary)),
    )
    return record, vocabulary.ranks


def load_encoder(tokenizer: Tokenizer, storage: Storage) -> Encoder:
    """The encoder of a dataset, from the vocabulary stored with it.

    One per process and tokenizer, shared by its threads. Raises FineshardsError if the vocabulary
    file is not the one recorded, or if the golden texts come out as other tokens here.
    """
    ranks = storage.read(VOCABULARY_NAME)
    vocabulary = Vocabulary(tokenizer.name, ranks, tokenizer.pattern, tokenizer.special_tokens)
    if vocabulary.sha256 != tokenizer.vocabulary_sha256:
        raise FineshardsError(
            f"{VOCABULARY_NAME} has sha256 {vocabulary.sha256}, the dataset was begun with "
            f"{tokenizer.vocabulary_sha256}; put the right file back or start with --overwrite."
        )
    encoder = _encoder(vocabulary)
    golden = golden_sha256(encoder)
    if golden != tokenizer.golden_sha256:
        raise FineshardsError(
            f"this machine's tiktoken gives other tokens for the golden texts (sha256 {golden}) "
            f"than the job was launched with ({tokenizer.golden_sha256}); install the pinned "
            "requirements on every worker."
        )
    return encoder


def _encoder(vocabulary: Vocabulary) -> Encoder:
    # Without the lock every thread that starts at the same time would build one of its own.
    with _building:
        return _build(vocabulary)


@lru_cache(maxsize=1)
def _build(vocabulary: Vocabulary) -> Encoder:
    return TiktokenEncoder(vocabulary)
