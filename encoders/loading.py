"""From a tokenizer's name or record to a ready, checked encoder."""

from __future__ import annotations

import logging
import threading
from functools import lru_cache

from encoders.differences import load_table
from encoders.encoder import Encoder
from encoders.golden import golden_sha256
from encoders.tiktoken_encoder import TiktokenEncoder
from encoders.vocabulary import Vocabulary, resolve_vocabulary
from shards.errors import FineshardsError, UsageError
from shards.job import VOCABULARY_NAME, Tokenizer
from shards.storage import Storage

_REFERENCE = "tiktoken"

_building = threading.Lock()
_log = logging.getLogger("fineshards.worker")


def describe_tokenizer(name: str, engine: str) -> tuple[Tokenizer, bytes]:
    """The record of a tokenizer and its rank file.

    Raises UsageError if it cannot be had, or not by this engine.
    """
    vocabulary = resolve_vocabulary(name)
    record = Tokenizer(
        name=name,
        vocabulary_sha256=vocabulary.sha256,
        pattern=vocabulary.pattern,
        special_tokens=vocabulary.special_tokens,
        eot=vocabulary.eot,
        size=vocabulary.size,
        golden_sha256=golden_sha256(_encoder(vocabulary, engine).reference),
    )
    return record, vocabulary.ranks


def load_encoder(tokenizer: Tokenizer, storage: Storage, engine: str) -> Encoder:
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
    encoder = _encoder(vocabulary, engine)
    golden = golden_sha256(encoder)
    if golden != tokenizer.golden_sha256:
        raise FineshardsError(
            f"{encoder.name} gives other tokens here for the golden texts (sha256 {golden}) than "
            f"the job was launched with ({tokenizer.golden_sha256}); install the pinned "
            "requirements on every worker."
        )
    return encoder


def load_reference(tokenizer: Tokenizer, storage: Storage) -> Encoder:
    """The encoder that defines what is correct, for commands that check or decode."""
    return load_encoder(tokenizer, storage, _REFERENCE)


def _encoder(vocabulary: Vocabulary, engine: str) -> Encoder:
    # Without the lock every thread that starts at the same time would build one of its own.
    with _building:
        return _build(vocabulary, engine)


@lru_cache(maxsize=2)
def _build(vocabulary: Vocabulary, engine: str) -> Encoder:
    reference = TiktokenEncoder(vocabulary)
    if engine == _REFERENCE:
        return reference
    table = load_table()
    scheme = table.scheme(vocabulary.pattern)
    reasons = table.other_versions()
    if scheme is None:
        reasons.append("its way of splitting text was never compared with gigatoken's")
    if scheme is not None and not reasons:
        # Not imported where it may not be installed.
        from encoders.exact import ExactEncoder
        from encoders.gigatoken_encoder import GigatokenTokenizer

        try:
            fast = GigatokenTokenizer(vocabulary.ranks, scheme.fast, vocabulary.eot)
            return ExactEncoder(fast, reference, scheme)
        except ValueError as error:
            reasons.append(str(error))
    reason = "; ".join(reasons)
    if engine == "gigatoken":
        raise UsageError(
            f"--tokenizer_engine gigatoken: not for {vocabulary.name} here, since {reason}. "
            "Install the pinned requirements, or leave the choice to --tokenizer_engine auto."
        )
    _log.warning("%s is encoded by tiktoken alone, slowly: %s", vocabulary.name, reason)
    return reference
