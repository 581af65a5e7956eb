"""Fast encoders with their references, and comparisons of the two."""

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.gigatoken.bounded_tokenizer import BoundedTokenizer, from_ranks
from fineshards.encoders.gigatoken.differences import Scheme, load_table
from fineshards.encoders.gigatoken.exact_encoder import ExactEncoder
from fineshards.encoders.loading import describe_tokenizer, load_encoder
from fineshards.encoders.vocabulary import TiktokenEncoder, Vocabulary, resolve_vocabulary
from fineshards.shards.job.settings import Tokenizer as Record
from fineshards.storage.open import open_storage
from tools.scheme_differences import revealing_ranks

SCHEMES = [name for name, x in load_table().schemes.items() if x.reference == "tiktoken"]


def scheme(name: str = "cl100k_base") -> Scheme:
    return load_table().schemes[name]


def pair(vocabulary: Vocabulary) -> ExactEncoder:
    """The exact encoder of a vocabulary, with tiktoken as its reference."""
    found = load_table().scheme("tiktoken", vocabulary.pattern)
    assert found is not None
    ranks, name = vocabulary.data, found.fast
    fast = BoundedTokenizer(lambda: from_ranks(ranks, name), vocabulary.eot)
    return ExactEncoder(fast, TiktokenEncoder(vocabulary), found)


def stored_encoder(
    tokenizer: str | Path, folder: str | Path, engine: str = "auto", eot: str | None = None
) -> tuple[Encoder, Record]:
    """The encoder and the record of a tokenizer, as a worker loads it from a dataset's folder."""
    record, data = describe_tokenizer(str(tokenizer), engine, eot)
    storage = open_storage(str(folder))
    storage.write(record.file, data)
    return load_encoder(record, storage, engine), record


def build_inherited_encoder() -> None:
    """Builds the encoder of cl100k_base as a launch does, so that children inherit it."""
    with TemporaryDirectory() as folder:
        stored_encoder("cl100k_base", folder)


@lru_cache
def cl100k() -> ExactEncoder:
    return pair(resolve_vocabulary("cl100k_base"))


@lru_cache
def revealing(name: str) -> ExactEncoder:
    """A scheme's pattern with ranks whose tokens show every boundary between pretokens."""
    special = (("<|endoftext|>", 1 << 17),)
    return pair(Vocabulary(name, revealing_ranks(), scheme(name).pattern, special))


def strings(*texts: str) -> pa.Array:
    return pa.array(texts, pa.large_string())


def must_be_exact(encoder: ExactEncoder, texts: pa.Array) -> int:
    """Compares with the reference; returns the number of documents that gigatoken encoded."""
    ours, theirs = encoder.encode(texts), encoder.reference.encode(texts)
    if np.array_equal(ours.tokens, theirs.tokens) and np.array_equal(ours.offsets, theirs.offsets):
        return len(texts) - ours.by_reference
    assert len(ours.offsets) == len(theirs.offsets)
    wrong = [
        text
        for number, text in enumerate(texts.to_pylist())
        if not np.array_equal(ours.document(number), theirs.document(number))
    ]
    shortest = sorted(wrong, key=len)[:10]
    raise AssertionError(f"{len(wrong)} documents of {len(texts)} differ, such as {shortest!a}")


def documents_with(codes: set[int], texts: list[str]) -> npt.NDArray[np.int64]:
    """The indices of texts with a code point of `codes`, by a plain scan."""
    found = [number for number, text in enumerate(texts) if any(ord(c) in codes for c in text)]
    return np.array(found, dtype=np.int64)
