"""tokenizer.json files: gigatoken gives exactly the tokens of `tokenizers`."""

from __future__ import annotations

import json
import unicodedata
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.fresh_interpreter import run_program
from support.tokenizer_files import (
    ADDED,
    EOT,
    SPECIALS,
    STYLES,
    arrow,
    oracle_documents,
    path_of,
    sample_texts,
    save,
    trained,
)
from tokenizers import Tokenizer

from fineshards.encoders import derive
from fineshards.encoders.differences import Table, load_table
from fineshards.encoders.encoder import Encoder
from fineshards.encoders.exact import ExactEncoder
from fineshards.encoders.gigatoken_json import gigatoken_json, obstacles, trial
from fineshards.encoders.golden import GOLDEN_TEXTS
from fineshards.encoders.huggingface_schemes import PIPELINES
from fineshards.encoders.loading import describe_tokenizer, load_encoder, load_reference
from fineshards.encoders.tokenizer_json import TokenizerJson, read_tokenizer_json
from fineshards.errors import FineshardsError
from fineshards.shards.job import TOKENIZER_JSON_NAME
from fineshards.shards.job import Tokenizer as Record
from fineshards.storage.base import open_storage


@lru_cache
def loaded(style: str) -> tuple[Encoder, Record]:
    record, data = describe_tokenizer(str(path_of(style)), "gigatoken")
    storage = open_storage(str(path_of(style).parent / "out"))
    storage.write(TOKENIZER_JSON_NAME, data)
    return load_encoder(record, storage, "gigatoken"), record


def assert_exact(style: str, texts: list[str]) -> int:
    """Compares with the library; returns how many texts the reference encoded."""
    encoder, _ = loaded(style)
    batch = encoder.encode(arrow(texts))
    expected = oracle_documents(path_of(style), EOT, texts)
    assert batch.tokens.dtype == np.uint32
    assert batch.offsets.dtype == np.int64
    found = [batch.document(index).tolist() for index in range(len(texts))]
    wrong = [text for text, a, b in zip(texts, found, expected, strict=True) if a != b]
    assert wrong == []
    return batch.by_reference


@pytest.mark.parametrize("style", STYLES)
def test_the_fast_path_gives_the_library_s_tokens_on_all_of_the_sample(style: str) -> None:
    encoder, record = loaded(style)
    assert isinstance(encoder, ExactEncoder)
    assert "gigatoken" in encoder.name
    assert "tokenizers" in encoder.name
    by_reference = assert_exact(style, [*sample_texts(), *GOLDEN_TEXTS])
    assert by_reference < 10
    assert record.size == trained(style).get_vocab_size()


# What splits, composes, stands for itself, or is newer than the libraries' Unicode.
HOSTILE = [
    *" \n\r\t\u00a0\u3000'sStTmMdDlLvVrReEſK'aA1½١.,/<|>_😀\u200d\x00\x85\ufeff中ǅʰ",
    *"\u0301\u0323\u0345\u0334e\u0301ñn\u0303Å\u212bÅ한각\u1112\u1161\u11ab\u0958\u2126",
    *"\u088f\u0c5c\u0cdc\ua7ce\U00010940\U00011db0\U000187f8\U0001e6c0\U000323b0",
    *"\u0378\u0897\U00011935\U00011930\U00016d67\U00016d63\U0001611e\U000e0fff\U0010ffff\ue000",
    *SPECIALS,
    *ADDED,
    "<|endof",
    "<tool_",
    "call>",
    " " * 40,
    "\n" * 9,
    "the ",
    "don't",
    "1234567",
]


@pytest.mark.parametrize("style", STYLES)
@hypothesis_settings(max_examples=30)
@given(
    texts=st.lists(
        st.one_of(
            st.lists(st.sampled_from(HOSTILE), max_size=30).map("".join),
            st.text(max_size=40),
            st.text(max_size=20).map(lambda text: unicodedata.normalize("NFD", text)),
        ),
        max_size=25,
    )
)
def test_hostile_texts_come_out_as_the_library_s(style: str, texts: list[str]) -> None:
    assert_exact(style, texts)


@pytest.mark.parametrize("style", ["gpt2", "qwen2"])
def test_every_character_of_the_lower_planes_comes_out_as_the_library_s(style: str) -> None:
    codes = [code for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    texts = [f"a{chr(code)}1{chr(code)}A\u0301" for code in codes]
    encoder, _ = loaded(style)
    batch, reference = (x.encode(arrow(texts)) for x in (encoder, encoder.reference))
    assert np.array_equal(batch.offsets, reference.offsets)
    assert np.array_equal(batch.tokens, reference.tokens)
    assert 0 < batch.by_reference < 2_000


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("unit", ["a", " ", "\n", "1", "中", "\u0301", "=-", "<tool_call>"])
def test_long_runs_come_out_as_the_library_s(style: str, unit: str) -> None:
    assert_exact(style, [unit * (200_000 // len(unit)) + end for end in ("", "a")])


@pytest.mark.parametrize("style", STYLES)
def test_special_tokens_in_a_text_are_text_and_other_added_tokens_are_not(style: str) -> None:
    encoder, record = loaded(style)
    text = "".join(SPECIALS) + "<tool_call>x</tool_call>"
    tokens = encoder.encode(arrow([text])).tokens.tolist()
    ids = dict(record.special_tokens)
    assert sorted(ids) == sorted(SPECIALS)
    assert tokens[0] == record.eot == ids[EOT]
    assert not set(ids.values()) & set(tokens[1:])
    for added in ADDED:
        assert trained(style).token_to_id(added) in tokens
    assert encoder.decode(np.array(tokens, np.uint32)) == text


def test_ignore_merges_finds_tokens_that_no_merge_makes() -> None:
    content = json.loads(path_of("llama3").read_text())["model"]
    made = {"".join(pair) for pair in content["merges"]}
    unmade = [token for token in content["vocab"] if len(token) > 1 and token not in made]
    assert len(unmade) > 200
    words = [token for token in unmade if token.isascii() and token.isalpha()]
    encoder, _ = loaded("llama3")
    batch = encoder.encode(arrow(words))
    assert np.diff(batch.offsets).tolist() == [2] * len(words)
    assert assert_exact("llama3", words) == 0


def test_ids_are_the_library_s_where_the_file_says_otherwise(tmp_path: Path) -> None:
    """tokenizers numbers added tokens itself; dropping special ones must not move the others."""
    content = json.loads(path_of("gpt2").read_text())
    for token in content["added_tokens"]:
        token["id"] += 100
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    tokenizer = read_tokenizer_json(str(path), None)
    assert dict(tokenizer.special_tokens) == {
        text: Tokenizer.from_file(str(path)).token_to_id(text) for text in SPECIALS
    }
    record, data = describe_tokenizer(str(path), "gigatoken")
    storage = open_storage(str(tmp_path / "out"))
    storage.write(TOKENIZER_JSON_NAME, data)
    texts = ["a<tool_call>b</tool_call><|im_end|>"]
    found = load_encoder(record, storage, "gigatoken").encode(arrow(texts)).tokens.tolist()
    assert [found] == oracle_documents(path, EOT, texts)


def test_the_record_knows_no_folder_and_the_data_is_the_user_s(tmp_path: Path) -> None:
    path = save(trained("gpt2"), tmp_path / "somewhere/mine.json")
    path.write_text(json.dumps(json.loads(path.read_text()), indent=3))
    record, data = describe_tokenizer(str(path), "auto")
    assert data == path.read_bytes()
    assert (record.kind, record.name, record.file) == (
        "huggingface",
        "mine.json",
        TOKENIZER_JSON_NAME,
    )
    assert "somewhere" not in repr(record)
    other, _ = describe_tokenizer(str(save(trained("gpt2"), tmp_path / "b/mine.json")), "auto")
    assert record.pattern == other.pattern
    assert record.vocabulary_sha256 != other.vocabulary_sha256
    storage = open_storage(str(tmp_path / "out"))
    storage.write(TOKENIZER_JSON_NAME, data)
    reference = load_reference(record, storage)
    assert reference.reference is reference
    assert reference.encode(arrow([])).offsets.tolist() == [0]
    storage.write(TOKENIZER_JSON_NAME, data + b" ")
    with pytest.raises(FineshardsError, match=r"metadata/tokenizer.json has sha256"):
        load_encoder(record, storage, "auto")


def test_what_changes_no_ids_is_left_out(tmp_path: Path) -> None:
    """Templates, truncation and padding are for models, not for a stream of documents."""
    tokenizer = Tokenizer.from_str(trained("gpt2").to_str())
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    path = save(tokenizer, tmp_path / "tokenizer.json")
    content = TokenizerJson("x", path.read_bytes(), EOT)
    text = sample_texts()[0]
    ids = content.library.encode(text, add_special_tokens=False).ids
    assert [[content.eot, *ids]] == oracle_documents(path_of("gpt2"), EOT, [text])


def test_the_trial_finds_another_merge(tmp_path: Path) -> None:
    """A vocabulary from which gigatoken would make other tokens is found before the first text."""
    tokenizer = read_tokenizer_json(str(path_of("gpt2")), None)
    assert obstacles(tokenizer) == []
    encoder, _ = loaded("gpt2")
    assert trial(tokenizer, encoder, encoder.reference) is None
    other = json.loads(gigatoken_json(tokenizer))
    assert {token["content"] for token in other["added_tokens"]} == set(ADDED)
    del other["model"]["merges"][100]
    changed = TokenizerJson("changed", json.dumps(other).encode(), EOT)
    from fineshards.encoders.gigatoken_encoder import GigatokenTokenizer, from_json

    fast = GigatokenTokenizer(lambda: from_json(changed.data), tokenizer.eot)
    assert trial(tokenizer, fast, encoder.reference) is not None


@pytest.mark.parametrize("name", PIPELINES)
def test_the_table_says_where_the_libraries_differ(name: str) -> None:
    """At both ends of every run of the table, and just beyond them."""
    scheme = load_table().schemes[name]
    ends = {end + step for pair in scheme.ranges for end in pair for step in (-1, 0, 1)}
    codes = sorted(code for code in ends if not 0xD800 <= code < 0xE000)
    contexts = derive.CONTEXTS + (derive.NORMAL_CONTEXTS if "qwen" in name else "")
    texts = [contexts.replace("_", chr(code)) for code in codes]
    unlike = {codes[index] for index in derive._unlike(name, texts)}
    inside = {code for code in codes if any(a <= code <= b for a, b in scheme.ranges)}
    assert unlike <= inside
    # Compositions are found in pairs; all else shows alone.
    assert len(inside - unlike) <= (40 if "qwen" in name else 0)
    assert all(first >= 128 for first, _ in scheme.ranges)


def test_versions_of_one_reference_do_not_concern_the_other() -> None:
    table = load_table()
    assert table.other_versions("tiktoken") == table.other_versions("tokenizers") == []
    changed = Table(table.versions | {"tokenizers": "0.1"}, table.schemes)
    assert changed.other_versions("tiktoken") == []
    (reason,) = changed.other_versions("tokenizers")
    assert reason.startswith("tokenizers is 0.")
    assert reason.endswith(", not 0.1")


def test_tiktoken_needs_no_tokenizers() -> None:
    program = """
import sys
sys.modules["tokenizers"] = None
from fineshards.encoders.loading import describe_tokenizer
record, _ = describe_tokenizer("cl100k_base", "gigatoken")
print(record.kind)
"""
    done = run_program(program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "tiktoken\n"
