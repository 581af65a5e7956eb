"""Loads encoders: from a tokenizer's name or record to a ready, checked encoder."""

import logging
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module

from fineshards.encoders.checked_encoder import golden_sha256
from fineshards.encoders.encoder import CannotEncodeError, Encoder, is_panic
from fineshards.encoders.tokenizer_files import names_tokenizer_json, read_tokenizer
from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.encoders.vocabulary import Vocabulary, resolve_vocabulary
from fineshards.errors import FineshardsError, OutputError, UsageError
from fineshards.plugin_registry import Plugins
from fineshards.shards.job.settings import HUGGINGFACE, TIKTOKEN, Tokenizer
from fineshards.storage.base import Storage

# By `--tokenizer_engine`: makes an encoder of a vocabulary, and a fast one also of its reference.
ENCODERS: Plugins[Callable[..., Encoder]] = Plugins("encoders")
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
    read = read_tokenizer if names_tokenizer_json(name) else resolve_vocabulary
    vocabulary: Vocabulary | TokenizerJson = read(name, eot_token)
    if engine != "auto":
        encoder_of_vocabulary(vocabulary, engine)
    record = Tokenizer(
        kind=vocabulary.kind,
        name=vocabulary.name,
        vocabulary_sha256=vocabulary.sha256,
        pattern=vocabulary.pattern,
        special_tokens=vocabulary.special_tokens,
        eot=vocabulary.eot,
        size=vocabulary.size,
        golden_sha256=golden_sha256(encoder_of_vocabulary(vocabulary)),
    )
    return record, vocabulary.data


def load_encoder(tokenizer: Tokenizer, storage: Storage, engine: str) -> Encoder:
    """Returns the encoder of a dataset, from the vocabulary stored with it.

    There is one per process and tokenizer, shared by threads. Raises FineshardsError if the
    vocabulary file is not the recorded one, or if the golden texts have other tokens here.
    """
    vocabulary = load_vocabulary(tokenizer, storage)
    encoder = encoder_of_vocabulary(vocabulary, engine)
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

    Raises FineshardsError if its file is not the recorded one, or if the record is wrong.
    """
    data = storage.read(tokenizer.file)
    import_module(_REFERENCES[tokenizer.kind])  # what this raises is not about the vocabulary
    try:
        vocabulary = recorded_vocabulary(tokenizer, data)
        if vocabulary.sha256 != tokenizer.vocabulary_sha256:
            raise FineshardsError(
                f"{tokenizer.file} has sha256 {vocabulary.sha256}, but the dataset was started "
                f"with {tokenizer.vocabulary_sha256}. Restore the file, or use --overwrite."
            )
        encoder_of_vocabulary(vocabulary)
    except BaseException as error:
        is_wrong = isinstance(error, ArithmeticError | LookupError | TypeError | ValueError)
        if not is_wrong and not is_panic(error):
            raise
        raise OutputError(
            f"{tokenizer.file} is not the tokenizer that the dataset's records describe "
            f"({type(error).__name__}). Copy the dataset from its origin again."
        ) from error
    return vocabulary


def load_reference(tokenizer: Tokenizer, storage: Storage) -> Encoder:
    """Returns the encoder that defines what is correct, for commands that check or decode."""
    return load_encoder(tokenizer, storage, _REFERENCES[tokenizer.kind])


def encoder_of_vocabulary(
    vocabulary: Vocabulary | TokenizerJson, engine: str | None = None
) -> Encoder:
    """Returns the encoder of a vocabulary; None for the engine that defines what is correct."""
    # Without the lock, threads that start at the same time would each build an encoder.
    with _building:
        return _build(vocabulary, engine or _REFERENCES[vocabulary.kind])


def recorded_vocabulary(tokenizer: Tokenizer, data: bytes) -> Vocabulary | TokenizerJson:
    """The vocabulary of a record. data: the content of its file."""
    eot_text = {id_: text for text, id_ in tokenizer.special_tokens}[tokenizer.eot]
    if tokenizer.kind == HUGGINGFACE:
        return TokenizerJson(tokenizer.name, data, eot_text)
    return Vocabulary(tokenizer.name, data, tokenizer.pattern, tokenizer.special_tokens, eot_text)


@lru_cache(maxsize=4)
def _build(vocabulary: Vocabulary | TokenizerJson, engine: str) -> Encoder:
    library = _REFERENCES[vocabulary.kind]
    if engine != "auto" and engine not in ENCODERS:
        raise UsageError(
            f"--tokenizer_engine {engine}: no package here has this encoder. Install the one that "
            "has it, on every worker too."
        )
    if engine in _REFERENCES.values() and engine != library:
        raise UsageError(
            f"--tokenizer_engine {engine}: cannot be used for {vocabulary.name}, which the "
            f"{library} library defines. Use {library} or auto."
        )
    if engine == library:
        return ENCODERS[library](vocabulary)
    reference = _build(vocabulary, library)
    try:
        return ENCODERS["gigatoken" if engine == "auto" else engine](vocabulary, reference)
    except CannotEncodeError as reason:
        if engine != "auto":
            raise UsageError(
                f"--tokenizer_engine {engine}: cannot be used for {vocabulary.name} here: "
                f"{reason}. Install the pinned requirements, or use --tokenizer_engine auto."
            ) from None
        name = vocabulary.name
        _log.warning("%s is encoded with %s only, which is slow: %s", name, library, reason)
        return reference
