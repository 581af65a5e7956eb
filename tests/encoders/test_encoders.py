"""The tiktoken encoder: exactly tiktoken's tokens, even for texts that tiktoken cannot split."""

import subprocess
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from support.fresh_interpreter import run_program
from support.oracle import ENCODING, EOT, read_texts
from tiktoken_ext import openai_public

from fineshards.encoders.vocabulary import (
    PIECEWISE_CHARACTERS,
    TiktokenEncoder,
    Vocabulary,
    resolve_vocabulary,
)

HOSTILE = {
    "empty": "",
    "a space": " ",
    "whitespace only": " \t\n\r\x0b\x0c\x85\u00a0\u2028\u3000 ",
    "special tokens": "<|endoftext|><|fim_prefix|>a<|fim_middle|>b<|fim_suffix|><|endofprompt|>",
    "half a special token": "<|endoftext|<|endoftext|>|>",
    "byte order mark": "\ufeffstart \ufeff middle \ufeff",
    "NUL": "\x00a\x00\x00b\x00 \x00",
    "controls": "".join(map(chr, range(32))) + "\x7f" + "".join(map(chr, range(0x80, 0xA0))),
    "composed": "café Ünïcödé Å",
    "decomposed": "cafe\u0301 U\u0308ni\u0308co\u0308de\u0301 A\u030a",
    "emoji joined": "👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 🇩🇪🇫🇷 ❤️ 👍🏽",
    "line ends": "a\r\nb\rc\nd\n\re\r\r\nf\r\n\r\n  \r\n\tg \n",
    "one letter": "a" * 10_000,
    "base64": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0NTY3ODkrLw" * 300,
    "Chinese": "这是一个没有空格的很长的中文句子用来测试分词器是否正确" * 200,
    "Thai": "ประเทศไทยมีอาหารอร่อยมากมาย" * 100,
    "digits": "1234567890" * 500,
    "apostrophes": "I'LL we'Ve 'ſ 'S K'RE ''s '' 'x don't DON'T'D",
    "noncharacters": "\ufffe\uffff\U0001ffff\U0010ffff\ue000\ufdd0",
    "private use": "\ue000\uf8ff\U000f0000",
    "unassigned": "\u0378\U000e0fff\u088f",
    "spaces before a letter": " " * 5_000 + "x",
    "many kinds of whitespace": " \u00a0\t\n \u3000\u2003\r\n" * 300 + "x",
    "combining": "a" + "\u0301" * 3_000 + "b",
    "right to left": "שלום \u202eעולם\u202c مرحبا",
}

# The published patterns with cl100k's ranks: their own ranks need a download, and only the
# splitting depends on the pattern.
_O200K_LETTERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_O200K_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERNS = {
    "cl100k_base": ENCODING._pat_str,
    "o200k_base": "|".join(
        [
            rf"[^\r\n\p{{L}}\p{{N}}]?{_O200K_LETTERS}*{_O200K_SMALL}+{_ENDING}",
            rf"[^\r\n\p{{L}}\p{{N}}]?{_O200K_LETTERS}+{_O200K_SMALL}*{_ENDING}",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    ),
    "p50k_base and r50k_base": openai_public.r50k_pat_str,
}


@lru_cache
def vocabulary(pattern: str = "cl100k_base") -> Vocabulary:
    published = resolve_vocabulary("cl100k_base")
    return Vocabulary(pattern, published.data, PATTERNS[pattern], (("<|endoftext|>", EOT),))


@lru_cache
def encoder(pattern: str = "cl100k_base") -> TiktokenEncoder:
    return TiktokenEncoder(vocabulary(pattern))


@lru_cache
def reference(pattern: str) -> tiktoken.Encoding:
    return vocabulary(pattern).encoding()


def encode(text: str, pattern: str = "cl100k_base") -> list[int]:
    """A text's tokens, without the leading EOT."""
    batch = encoder(pattern).encode(pa.array([text], pa.large_string()))
    assert batch.tokens[0] == EOT
    return batch.tokens[1:].tolist()


def piecewise(text: str, pattern: str = "cl100k_base") -> npt.NDArray[np.uint32]:
    return np.fromiter(encoder(pattern)._encode_piecewise(text), dtype=np.uint32)


def expected(*texts: str) -> list[int]:
    """tiktoken's tokens for the parts of a text, which the caller has split between pretokens."""
    return [token for text in texts for token in ENCODING.encode_ordinary(text)]


@pytest.fixture(scope="module")
def sample_texts(sample: Path) -> list[str]:
    return read_texts(sample)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        # Published in OpenAI's cookbook and in tiktoken's tests.
        ("hello world", [15339, 1917]),
        ("Hello, world!", [9906, 11, 1917, 0]),
        ("tiktoken is great!", [83, 1609, 5963, 374, 2294, 0]),
        ("antidisestablishmentarianism", [519, 85342, 34500, 479, 8997, 2191]),
        ("2 + 2 = 4", [17, 489, 220, 17, 284, 220, 19]),
        ("お誕生日おめでとう", [33334, 45918, 243, 21990, 9080, 33334, 62004, 16556, 78699]),
        ("rer", [38149]),
        ("'rer", [2351, 81]),
        ("today\n ", [31213, 198, 220]),
        ("today\n \n", [31213, 27907]),
        ("today\n  \n", [31213, 14211]),
    ],
)
def test_published_tokens(text: str, tokens: list[int]) -> None:
    assert encode(text) == tokens
    assert piecewise(text).tolist() == tokens


def test_documents_are_encode_ordinary_with_a_leading_eot(
    sample_texts: list[str],
) -> None:
    texts = [*sample_texts, *HOSTILE.values()]
    batch = encoder().encode(pa.array(texts, pa.large_string()))
    documents = [[EOT, *ENCODING.encode_ordinary(text)] for text in texts]
    assert batch.tokens.dtype == np.uint32
    assert batch.offsets.dtype == np.int64
    assert batch.tokens.tolist() == [token for document in documents for token in document]
    assert np.diff(batch.offsets).tolist() == [len(document) for document in documents]
    assert batch.offsets[0] == 0


def test_arrays_may_be_empty_or_slices() -> None:
    empty = encoder().encode(pa.array([], pa.large_string()))
    assert (empty.tokens.tolist(), empty.offsets.tolist()) == ([], [0])
    assert empty.tokens.dtype == np.uint32
    whole = pa.array(["left out", "hello world", "", "left out"], pa.large_string())
    batch = encoder().encode(whole.slice(1, 2))
    assert batch.tokens.tolist() == [EOT, 15339, 1917, EOT]
    assert batch.offsets.tolist() == [0, 3, 4]


def test_decode_omits_the_eot_and_marks_incomplete_characters() -> None:
    tokens = encoder().encode(pa.array(["hello 👩", " world"], pa.large_string())).tokens
    assert encoder().decode(tokens) == "hello 👩 world"
    cut = tokens[: tokens.tolist().index(EOT, 1) - 1]
    assert encoder().decode(cut).startswith("hello ")
    assert encoder().decode(cut).endswith("\ufffd")


def test_documents_are_decoded_together_as_each_by_itself(sample_texts: list[str]) -> None:
    texts = [*sample_texts[:200], *HOSTILE.values()]
    batch = encoder().encode(pa.array(texts, pa.large_string()))
    assert encoder().decode_all(batch.tokens, batch.offsets).to_pylist() == texts


@pytest.mark.long
@pytest.mark.parametrize("pattern", PATTERNS)
def test_piecewise_encoding_gives_the_same_tokens(sample_texts: list[str], pattern: str) -> None:
    for text in [*sample_texts, *HOSTILE.values()]:
        assert piecewise(text, pattern).tolist() == reference(pattern).encode_ordinary(text)


# Characters that the patterns distinguish, so that random strings reach every alternative.
_ALPHABET = (
    " \n\r\t\u00a0\u3000'sStTmMdDlLvVrReEſKKaAǅʰ中\u0301١1½.,/<|>_😀\u200d\x00\x1c\x85\ufeff"
)


@given(st.one_of(st.text(), st.text(alphabet=_ALPHABET, max_size=60)))
def test_piecewise_encoding_gives_the_same_tokens_for_any_string(text: str) -> None:
    for pattern in PATTERNS:
        assert piecewise(text, pattern).tolist() == reference(pattern).encode_ordinary(text)
    assert encode(text) == ENCODING.encode_ordinary(text)


# Planes 4 to 16 have only private and unassigned characters, tags and variation selectors.
@pytest.mark.long
@pytest.mark.parametrize(
    ("pattern", "codes", "context"),
    [
        ("cl100k_base", range(0x10000), "a{0}1{0} '{0}\n"),
        ("cl100k_base", range(0x10000, 0x40000), "a{0}1{0}\n"),
        pytest.param("cl100k_base", range(0x40000, 0x110000), "a{0}\n", marks=pytest.mark.heavy),
        ("o200k_base", range(0x10000), "A{0}a'{0}\n"),
        ("o200k_base", range(0x10000, 0x40000), "A{0}a\n"),
    ],
)
def test_piecewise_encoding_classifies_every_character_as_tiktoken_does(
    pattern: str, codes: range, context: str
) -> None:
    # Long texts, because one call costs as much as some hundred characters.
    characters = [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
    for start in range(0, len(characters), 20_000):
        lines = [context.format(character) for character in characters[start : start + 20_000]]
        text = "".join(lines)
        theirs = reference(pattern).encode_to_numpy(text, disallowed_special=())
        if not np.array_equal(piecewise(text, pattern), theirs):
            different = [
                line
                for line in lines
                if piecewise(line, pattern).tolist() != reference(pattern).encode_ordinary(line)
            ]
            pytest.fail(f"the tokens differ for {different[:20]}")


MILLION = 1_000_000
LONG = 1_200_000

# Texts and their pretokens. tiktoken panics on many of the texts, but can encode each pretoken on
# its own. All but the last character of a run of whitespace is one pretoken, and so is a run that
# ends with a line end.
LONG_TEXTS = {
    "a million spaces, a letter": [" " * (MILLION - 1), " a"],
    "more spaces, a letter": [" " * (LONG - 1), " a"],
    "spaces": [" " * LONG],
    "spaces, a line end, spaces, a letter": [" " * LONG + "\n", " " * (LONG - 1), " a"],
    "spaces, a digit": [" " * (LONG - 1), " ", "1"],
    "line ends, a letter": ["\n" * LONG, "a"],
    "wide spaces, a letter": ["\u3000" * (LONG - 1), "\u3000a"],
    "mixed whitespace, spaces, a letter": ["\t \n" * (LONG // 3), "\t \t", " a"],
    "one letter": ["a" * 1_500_000],
    "Chinese": ["中" * 1_500_000],
    "one digit": ["111" * 500_000],
    "words": ["words", *([" words"] * 250_000)],
}


# The others take seconds each.
_QUICK = {"more spaces, a letter", "spaces", "words"}


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        name if name in _QUICK else pytest.param(name, marks=pytest.mark.heavy)
        for name in LONG_TEXTS
    ],
)
def test_long_texts_are_encoded_exactly(name: str) -> None:
    pieces = LONG_TEXTS[name]
    text = "".join(pieces)
    assert len(text) >= MILLION
    tokens = encode(text)
    assert ENCODING.decode(tokens) == text
    once = {piece: ENCODING.encode_ordinary(piece) for piece in set(pieces)}
    assert tokens == [token for piece in pieces for token in once[piece]]


@pytest.mark.long
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    "unit", ["A", "aA", "中", "\u0301", "1", "!", "'", " ", "\n", "\r\n", " \n", "\u3000"]
)
def test_no_text_that_tiktoken_splits_makes_it_panic(pattern: str, unit: str) -> None:
    run = (unit * PIECEWISE_CHARACTERS)[: PIECEWISE_CHARACTERS - 1]
    half = run[: len(run) // 2 - 1]
    for text in (run[:-1] + "a", half + "\n" + half + "!"):
        assert len(text) < PIECEWISE_CHARACTERS
        tokens = encode(text, pattern)
        assert reference(pattern).decode(tokens) == text


def test_both_ways_agree_around_the_length_where_piecewise_begins() -> None:
    for length in (PIECEWISE_CHARACTERS - 1, PIECEWISE_CHARACTERS, PIECEWISE_CHARACTERS + 1):
        text = " " * (length - 1) + "é"
        assert encode(text) == expected(" " * (length - 2), " é")


def run_encoder(expression: str) -> subprocess.CompletedProcess[str]:
    return run_program(f"""
import pyarrow as pa
from fineshards.encoders.vocabulary import TiktokenEncoder
from fineshards.encoders.vocabulary import resolve_vocabulary
vocabulary = resolve_vocabulary("cl100k_base")
text = " " * 1_200_000 + "a"
{expression}
""")


@pytest.mark.long
def test_nothing_is_printed_for_a_text_on_which_tiktoken_panics() -> None:
    panics = run_encoder("vocabulary.encoding().encode_ordinary(text)")
    assert panics.returncode != 0
    assert "panicked" in panics.stderr
    ours = run_encoder(
        "texts = pa.array([text], pa.large_string())\n"
        "print(len(TiktokenEncoder(vocabulary).encode(texts).tokens))"
    )
    assert ours.returncode == 0
    assert ours.stderr == ""
    assert int(ours.stdout) == 1 + len(expected(" " * 1_199_999, " a"))
