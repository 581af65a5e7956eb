"""Loads encoders: from a tokenizer's name or record to a ready, checked encoder."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from fineshards.encoders.checked_encoder import ExactEncoder, golden_sha256
from fineshards.encoders.differences import Scheme, load_table
from fineshards.encoders.encoder import Encoder
from fineshards.encoders.tokenizer_json import (
    TokenizerJson,
    names_tokenizer_json,
    read_tokenizer_json,
)
from fineshards.encoders.vocabulary import Vocabulary, resolve_vocabulary
from fineshards.errors import FineshardsError, OutputError, UsageError
from fineshards.shards.job.settings import HUGGINGFACE, TIKTOKEN, Tokenizer
from fineshards.storage.base import Storage

# The library that defines what is correct, by kind of tokenizer.
_REFERENCES = {TIKTOKEN: "tiktoken", HUGGINGFACE: "tokenizers"}

_building = threading.Lock()
_log = logging.getLogger("fineshards.worker")


def describe_tokenizer(
    name: str, engine: str, eot_token: str | None = None
) -> tuple[Tokenizer, bytes]:
    """Returns the record of a tokenizer, and the content of its vocabulary file.

    The record follows from the reference alone, and `auto` takes any tokenizer, so the fast encoder
    is built only if it is asked for by name. Raises UsageError if the tokenizer cannot be loaded,
    or not with this engine.
    """
    vocabulary: Vocabulary | TokenizerJson
    if names_tokenizer_json(name):
        vocabulary = read_tokenizer_json(name, eot_token)
    else:
        vocabulary = resolve_vocabulary(name, eot_token)
    reference = encoder_of_vocabulary(vocabulary)
    if engine != "auto":
        _encoder(vocabulary, engine)
    record = Tokenizer(
        kind=vocabulary.kind,
        name=vocabulary.name,
        vocabulary_sha256=vocabulary.sha256,
        pattern=vocabulary.pattern,
        special_tokens=vocabulary.special_tokens,
        eot=vocabulary.eot,
        size=vocabulary.size,
        golden_sha256=golden_sha256(reference),
    )
    return record, vocabulary.data


def load_encoder(tokenizer: Tokenizer, storage: Storage, engine: str) -> Encoder:
    """Returns the encoder of a dataset, from the vocabulary stored with it.

    There is one per process and tokenizer, shared by threads. Raises FineshardsError if the
    vocabulary file is not the recorded one, or if the golden texts have other tokens here.
    """
    vocabulary = load_vocabulary(tokenizer, storage)
    _reference_of(vocabulary.kind)  # what its import raises is not about the vocabulary
    with _described(tokenizer):
        encoder_of_vocabulary(vocabulary)
    encoder = _encoder(vocabulary, engine)
    golden = golden_sha256(encoder)
    if golden != tokenizer.golden_sha256:
        raise FineshardsError(
            f"{encoder.name} gives different tokens for the golden texts (sha256 {golden}) than "
            f"at launch (sha256 {tokenizer.golden_sha256}). Install the pinned requirements on "
            "every worker."
        )
    return encoder


def load_vocabulary(tokenizer: Tokenizer, storage: Storage) -> Vocabulary | TokenizerJson:
    """Returns the vocabulary stored with a dataset.

    Raises FineshardsError if its file is not the recorded one.
    """
    data = storage.read(tokenizer.file)
    with _described(tokenizer):
        vocabulary = recorded_vocabulary(tokenizer, data)
    if vocabulary.sha256 != tokenizer.vocabulary_sha256:
        raise FineshardsError(
            f"{tokenizer.file} has sha256 {vocabulary.sha256}, but the dataset was started with "
            f"{tokenizer.vocabulary_sha256}. Restore the file, or start over with --overwrite."
        )
    return vocabulary


@contextmanager
def _described(tokenizer: Tokenizer) -> Iterator[None]:
    """Turns what a library raises for a tokenizer that is described wrongly into OutputError."""
    try:
        yield
    except BaseException as error:
        wrong = isinstance(error, ArithmeticError | LookupError | TypeError | ValueError)
        # A panic of Rust is not an Exception.
        if not wrong and type(error).__module__ != "pyo3_runtime":
            raise
        raise OutputError(
            f"{tokenizer.file} is not the tokenizer that the dataset's records describe "
            f"({type(error).__name__}). Copy the dataset from its origin again."
        ) from error


def load_reference(tokenizer: Tokenizer, storage: Storage) -> Encoder:
    """Returns the encoder that defines what is correct, for commands that check or decode."""
    return load_encoder(tokenizer, storage, _REFERENCES[tokenizer.kind])


def encoder_of_vocabulary(
    vocabulary: Vocabulary | TokenizerJson, engine: str | None = None
) -> Encoder:
    """Returns the encoder of a vocabulary; None for the engine that defines what is correct."""
    return _encoder(vocabulary, engine or _REFERENCES[vocabulary.kind])


def recorded_vocabulary(tokenizer: Tokenizer, data: bytes) -> Vocabulary | TokenizerJson:
    """The vocabulary of a record. data: the content of its file."""
    eot_text = {id_: text for text, id_ in tokenizer.special_tokens}[tokenizer.eot]
    if tokenizer.kind == HUGGINGFACE:
        return TokenizerJson(tokenizer.name, data, eot_text)
    return Vocabulary(tokenizer.name, data, tokenizer.pattern, tokenizer.special_tokens, eot_text)


def _encoder(vocabulary: Vocabulary | TokenizerJson, engine: str) -> Encoder:
    # Without the lock, threads that start at the same time would each build an encoder.
    with _building:
        return _build(vocabulary, engine)


@lru_cache(maxsize=4)
def _build(vocabulary: Vocabulary | TokenizerJson, engine: str) -> Encoder:
    library = _REFERENCES[vocabulary.kind]
    if engine in _REFERENCES.values() and engine != library:
        raise UsageError(
            f"--tokenizer_engine {engine}: cannot be used for {vocabulary.name}, which the "
            f"{library} library defines. Use {library} or auto."
        )
    if engine == library:
        return _reference_of(vocabulary.kind)(vocabulary)
    reference = _build(vocabulary, library)
    table = load_table()
    scheme = table.scheme(library, vocabulary.pattern)
    reasons = table.other_versions(library)
    if scheme is None:
        reasons.append("its way of splitting text has not been compared with gigatoken's")
    elif not reasons:
        fast = _fast(vocabulary, scheme, reference, reasons)
        if fast is not None:
            return fast
    reason = "; ".join(reasons)
    if engine == "gigatoken":
        raise UsageError(
            f"--tokenizer_engine gigatoken: cannot be used for {vocabulary.name} here: {reason}. "
            "Install the pinned requirements, or use --tokenizer_engine auto."
        )
    _log.warning("%s is encoded with %s only, which is slow: %s", vocabulary.name, library, reason)
    return reference


def _reference_of(kind: str) -> Callable[[Any], Encoder]:
    # Each library is imported only where it is needed.
    if kind == HUGGINGFACE:
        from fineshards.encoders.huggingface_encoder import HuggingFaceEncoder

        return HuggingFaceEncoder
    from fineshards.encoders.tiktoken_encoder import TiktokenEncoder

    return TiktokenEncoder


def _fast(
    vocabulary: Vocabulary | TokenizerJson, scheme: Scheme, reference: Encoder, reasons: list[str]
) -> Encoder | None:
    """Returns the fast encoder, or None after adding to `reasons` why there is none."""
    # Imported here, because gigatoken may not be installed.
    from fineshards.encoders.gigatoken_encoder import (
        GigatokenTokenizer,
        from_json,
        from_ranks,
        gigatoken_json,
        obstacles,
        trial,
    )

    try:
        if isinstance(vocabulary, Vocabulary):
            ranks, name = vocabulary.ranks, scheme.fast
            fast = GigatokenTokenizer(lambda: from_ranks(ranks, name), vocabulary.eot)
            return ExactEncoder(fast, reference, scheme)
        reasons += obstacles(vocabulary)
        if reasons:
            return None
        data = gigatoken_json(vocabulary)
        fast = GigatokenTokenizer(lambda: from_json(data), vocabulary.eot)
        encoder = ExactEncoder(fast, reference, scheme)
        different = trial(vocabulary, encoder, reference)
    except RuntimeError as error:
        reasons.append(f"gigatoken cannot read it ({str(error).splitlines()[0]})")
        return None
    if different is not None:
        reasons.append(f"gigatoken encodes {different!r} differently")
        return None
    return encoder
