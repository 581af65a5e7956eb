"""tokenizer.json files: exactly the tokens of `tokenizers`, with gigatoken or without."""

import json
import logging
import unicodedata
from functools import lru_cache
from pathlib import Path

import gigatoken
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.encoding import stored_encoder
from support.fresh_interpreter import run_program
from support.tokenizer_files import (
    ADDED,
    EOT,
    SPECIALS,
    STYLES,
    added,
    arrow,
    oracle_documents,
    path_of,
    sample_texts,
    save,
    trained,
)
from tokenizers import Tokenizer, models, pre_tokenizers

from fineshards.encoders.checked_encoder import GOLDEN_TEXTS
from fineshards.encoders.encoder import Encoder
from fineshards.encoders.gigatoken.bounded_tokenizer import BoundedTokenizer
from fineshards.encoders.gigatoken.differences import SchemeTable, load_table
from fineshards.encoders.gigatoken.exact_encoder import (
    ExactEncoder,
    gigatoken_json,
    obstacles,
    trial,
)
from fineshards.encoders.loading import (
    describe_tokenizer,
    encoder_of_vocabulary,
)
from fineshards.encoders.tokenizer_files import read_tokenizer
from fineshards.errors import UsageError
from fineshards.shards.job.settings import Tokenizer as Record
from tools import scheme_differences
from tools.huggingface_schemes import PIPELINES


@lru_cache
def loaded(style: str) -> tuple[Encoder, Record]:
    return stored_encoder(path_of(style), path_of(style).parent / "out", "gigatoken")


def assert_exact(style: str, texts: list[str]) -> int:
    """Compares with the library; returns the number of texts that the reference encoded."""
    encoder, _ = loaded(style)
    batch = encoder.encode(arrow(texts))
    expected = oracle_documents(path_of(style), EOT, texts)
    assert batch.tokens.dtype == np.uint32
    assert batch.offsets.dtype == np.int64
    found = [batch.document(index).tolist() for index in range(len(texts))]
    wrong = [text for text, a, b in zip(texts, found, expected, strict=True) if a != b]
    assert wrong == []
    return batch.by_reference


@pytest.mark.long
@pytest.mark.parametrize("style", STYLES)
def test_the_fast_path_is_exact_on_the_whole_sample(style: str) -> None:
    encoder, record = loaded(style)
    assert isinstance(encoder, ExactEncoder)
    assert "gigatoken" in encoder.name
    assert "tokenizers" in encoder.name
    by_reference = assert_exact(style, [*sample_texts(), *GOLDEN_TEXTS])
    assert by_reference < 10
    assert record.size == trained(style).get_vocab_size()


# Texts that split, compose or are added tokens, and characters newer than the libraries' Unicode.
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
def test_the_fast_path_is_exact_on_hostile_texts(style: str, texts: list[str]) -> None:
    assert_exact(style, texts)


@pytest.mark.long
@pytest.mark.parametrize("style", ["gpt2", "qwen2"])
def test_the_fast_path_is_exact_on_every_character_of_the_lower_planes(style: str) -> None:
    codes = [code for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    texts = [f"a{chr(code)}1{chr(code)}A\u0301" for code in codes]
    encoder, _ = loaded(style)
    batch, reference = (x.encode(arrow(texts)) for x in (encoder, encoder.reference))
    assert np.array_equal(batch.offsets, reference.offsets)
    assert np.array_equal(batch.tokens, reference.tokens)
    assert 0 < batch.by_reference < 2_000


@pytest.mark.long
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("unit", ["a", " ", "\n", "1", "中", "\u0301", "=-", "<tool_call>"])
def test_the_fast_path_is_exact_on_long_runs(style: str, unit: str) -> None:
    assert_exact(style, [unit * (200_000 // len(unit)) + end for end in ("", "a")])


@pytest.mark.parametrize("style", STYLES)
def test_special_tokens_in_a_text_are_text_and_other_added_tokens_match(style: str) -> None:
    encoder, record = loaded(style)
    text = "".join(SPECIALS) + "<tool_call>x</tool_call>"
    tokens = encoder.encode(arrow([text])).tokens.tolist()
    ids = dict(record.special_tokens)
    assert sorted(ids) == sorted(SPECIALS)
    assert tokens[0] == record.eot == ids[EOT]
    assert not set(ids.values()) & set(tokens[1:])
    for text_of_added in ADDED:
        assert trained(style).token_to_id(text_of_added) in tokens
    assert encoder.decode(np.array(tokens, np.uint32)) == text


def test_ignore_merges_matches_tokens_that_no_merge_produces() -> None:
    content = json.loads(path_of("llama3").read_text())["model"]
    merged = {"".join(pair) for pair in content["merges"]}
    others = [token for token in content["vocab"] if len(token) > 1 and token not in merged]
    assert len(others) > 200
    words = [token for token in others if token.isascii() and token.isalpha()]
    encoder, _ = loaded("llama3")
    batch = encoder.encode(arrow(words))
    assert np.diff(batch.offsets).tolist() == [2] * len(words)
    assert assert_exact("llama3", words) == 0


def test_the_trial_detects_a_different_merge() -> None:
    """A vocabulary with which gigatoken's tokens would differ is detected before any text."""
    tokenizer = read_tokenizer(str(path_of("gpt2")), None)
    assert obstacles(tokenizer) == []
    encoder, _ = loaded("gpt2")
    assert trial(tokenizer, encoder) is None
    other = json.loads(gigatoken_json(tokenizer))
    assert other["added_tokens"] == []
    del other["model"]["merges"][100]
    fast = BoundedTokenizer(
        lambda: gigatoken.Tokenizer.from_json(json.dumps(other).encode()), tokenizer.eot
    )
    scheme = load_table().schemes["huggingface gpt2"]
    assert trial(tokenizer, ExactEncoder(fast, encoder.reference, scheme)) is not None


def test_a_special_token_that_merges_make_is_not_in_documents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = json.loads(path_of("gpt2").read_text())["model"]
    word, id_ = max(model["vocab"].items(), key=lambda item: item[1])
    special = added(word.replace("Ġ", " "), special=True) | {"id": id_, "content": word}
    tokens = json.loads(path_of("gpt2").read_text())["added_tokens"]
    path = save(trained("gpt2"), tmp_path / "t.json", added_tokens=[special, *tokens])
    tokenizer = read_tokenizer(str(path), None)
    with caplog.at_level(logging.WARNING, "fineshards"):
        encoder = encoder_of_vocabulary(tokenizer, "auto")
    assert "gigatoken encodes" in caplog.text
    text = word.replace("Ġ", " ")
    batch = encoder.encode(arrow(["a", text, ""]))
    assert [index for index, _ in batch.refused] == [1]


@pytest.mark.long
@pytest.mark.parametrize("name", PIPELINES)
def test_the_table_lists_where_the_libraries_differ(name: str) -> None:
    """Checks both ends of every range of the table, and the code points next to them."""
    scheme = load_table().schemes[name]
    ends = {end + step for pair in scheme.ranges for end in pair for step in (-1, 0, 1)}
    codes = sorted(code for code in ends if not 0xD800 <= code < 0xE000)
    contexts = scheme_differences.CONTEXTS + (
        scheme_differences.NORMAL_CONTEXTS if "qwen" in name else ""
    )
    texts = [contexts.replace("_", chr(code)) for code in codes]
    differing = {codes[index] for index in scheme_differences._differing_texts(name, texts)}
    inside = {code for code in codes if any(a <= code <= b for a, b in scheme.ranges)}
    assert differing <= inside
    # Compositions differ only in pairs; all other code points differ alone.
    assert len(inside - differing) <= (40 if "qwen" in name else 0)
    assert all(first >= 128 for first, _ in scheme.ranges)


def test_versions_of_one_reference_do_not_affect_the_other() -> None:
    table = load_table()
    assert table.other_versions("tiktoken") == table.other_versions("tokenizers") == []
    changed = SchemeTable(table.versions | {"tokenizers": "0.1"}, table.schemes)
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


def reference_only(path: Path, caplog: pytest.LogCaptureFixture, reason: str) -> Encoder:
    """Checks that only the library encodes, and that one warning gives the reason."""
    with pytest.raises(UsageError, match=r"--tokenizer_engine gigatoken: cannot be used for "):
        describe_tokenizer(str(path), "gigatoken")
    with caplog.at_level(logging.WARNING, "fineshards"):
        encoder, _ = stored_encoder(path, path.parent / "out")
    assert [reason in line.getMessage() for line in caplog.records] == [True]
    assert "is encoded with tokenizers only" in caplog.text
    assert encoder.reference is encoder
    texts = ["a b", "the <|endoftext|> end.", *sample_texts()[:20]]
    batch = encoder.encode(arrow(texts))
    expected = oracle_documents(path, EOT, texts)
    assert [batch.document(index).tolist() for index in range(len(texts))] == expected
    assert batch.by_reference == len(texts)
    return encoder


@pytest.mark.parametrize(
    ("style", "token"),
    [
        ("gpt2", added(single_word=True)),
        ("qwen2", added(normalized=True)),
    ],
)
def test_added_tokens_that_no_search_finds(
    style: str, token: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = json.loads(path_of(style).read_text())["added_tokens"]
    path = save(trained(style), tmp_path / "t.json", added_tokens=[*tokens, token])
    reference_only(path, caplog, "'<extra>' matches only as a word, or after normalization")


def test_many_added_tokens_are_left_to_the_reference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a vocabulary that was extended for another language."""
    tokens = json.loads(path_of("gpt2").read_text())["added_tokens"]
    tokens += [added(f"w{number}w") | {"id": 2_005 + number} for number in range(501)]
    path = save(trained("gpt2"), tmp_path / "t.json", added_tokens=tokens)
    reference_only(path, caplog, f"it has {501 + len(ADDED)} added tokens")


@pytest.mark.parametrize(
    "token",
    [
        added(lstrip=True),
        added(rstrip=True),
        added("|><tool", normalized=True),
        added("im_end"),
        added(">x"),
        added("  "),
        added("éé"),
        added("+*("),
        added("\n\n"),
        added("a\tb"),
    ],
    ids=lambda token: f"{token['content']}",
)
def test_documents_with_an_added_token_go_to_the_reference(
    token: dict[str, object], tmp_path: Path
) -> None:
    """However it matches, and whatever it overlaps: gigatoken knows no added tokens."""
    tokens = json.loads(path_of("gpt2").read_text())["added_tokens"]
    path = save(trained("gpt2"), tmp_path / "t.json", added_tokens=[*tokens, token])
    tokenizer = read_tokenizer(str(path), None)
    encoder = encoder_of_vocabulary(tokenizer, "gigatoken")
    text = str(token["content"])
    contexts = ["{0}", "a{0}b", " {0} ", "<|im_end|>x<tool_call>{0}>x", "a {0}\n<|im_end{0}|>"]
    texts = [context.format(text) for context in contexts] + ["a b <tool", "x", "", text[:-1]]
    batch = encoder.encode(arrow(texts))
    expected = oracle_documents(path, EOT, texts)
    assert [batch.document(index).tolist() for index in range(len(texts))] == expected
    assert batch.by_reference == len(contexts)


def test_merges_in_another_order_than_the_ids(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    merges = json.loads(path_of("gpt2").read_text())["model"]["merges"]
    shuffled = {"merges": merges[::2] + merges[1::2]}
    path = save(trained("gpt2"), tmp_path / "t.json", model=shuffled)
    reference_only(path, caplog, "not in the order of the ids")


def test_a_vocabulary_without_some_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = json.loads(path_of("gpt2").read_text())["model"]
    vocab = {text.replace("Ď", "一"): id_ for text, id_ in model["vocab"].items()}
    path = save(trained("gpt2"), tmp_path / "t.json", model={"vocab": vocab})
    reference_only(path, caplog, "1 of the 256 bytes have no token")


@pytest.mark.parametrize("reason", ["merge listed twice", "splitting"])
def test_other_reasons_for_the_reference_only(
    reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = json.loads(path_of("gpt2").read_text())
    if reason == "splitting":
        step = {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}],
        }
        step["pretokenizers"].append(content["pre_tokenizer"])
        path = save(trained("gpt2"), tmp_path / "t.json", pre_tokenizer=step)
        reference_only(path, caplog, "has not been compared")
    else:
        merges = content["model"]["merges"]
        path = save(trained("gpt2"), tmp_path / "t.json", model={"merges": [*merges, merges[-1]]})
        reference_only(path, caplog, "lists a merge twice")


def test_other_models_are_encoded_by_their_library(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = {word: id_ for id_, word in enumerate(["[UNK]", "the", "a", "b", "end", "."])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([EOT])
    path = save(tokenizer, tmp_path / "t.json")
    encoder = reference_only(path, caplog, "has not been compared")
    assert encoder.encode(arrow(["the end"])).tokens.tolist() == [6, 1, 4]
    assert encoder.decode(np.array([6, 1, 4], np.uint32)) == "the end"
