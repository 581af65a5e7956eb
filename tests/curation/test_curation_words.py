"""The words of texts: those of spaCy, whatever was seen before."""

import random
import re
from functools import lru_cache
from importlib.util import find_spec
from itertools import accumulate, compress, pairwise
from typing import Any

import pytest
import spacy
from hypothesis import example, given
from hypothesis import strategies as st
from support.fresh_interpreter import run_program

from fineshards.curation.batch import Batch
from fineshards.curation.recipe import named_step
from fineshards.curation.steps.c4_quality import C4Quality
from fineshards.curation.steps.gopher_quality import GopherQuality
from fineshards.curation.words import special_cases, tokenizers
from fineshards.curation.words import words as words_module
from fineshards.curation.words.tokenizers import words
from fineshards.curation.words.words import WordTokenizer
from fineshards.errors import MissingLibraryError, UsageError
from tools import special_cases as derivation

# What special cases consist of, and what they can meet.
PIECES = (
    *("a", "co", "Mr", "10a.m", "o", "O", "8", "D", "I'm", "can't", "word", "Word,", "(it", "don"),
    *(":", ")", "(", "-", "'", "’", ".", "...", ";", "_", "<", ">", "3", "=", "*", "/", "|", "}"),
    *(":)", ":O(((", "2)", "e.g.", "U.S.", "'s", "''", "km", "5km", "°C.", "w/o", "—", "中文", "é"),
    *("https://a.org/x", "a@b.de", "IS_ALPHA", "\u0301", "x" * 50),
)
GAPS = ("", "", " ", " ", " ", " ", "  ", "\n", "\t", "\u00a0", " \u3000", "\x1c", "\u2028")
texts = st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(GAPS)), max_size=14).map(
    lambda parts: "".join(piece + gap for piece, gap in parts)
)
MET = "see 2) :O((("


@lru_cache
def tokenizer(language: str = "en", limit: int = 1 << 20) -> WordTokenizer:
    return WordTokenizer(language, limit)


@given(st.lists(texts, max_size=4))
@example([MET])
def test_words_are_those_of_spacy(some: list[str]) -> None:
    expected = [tokenizer().plain(text) for text in some]
    assert [found.strings for found in tokenizer().words(some)] == expected


@given(texts)
@example("Ends here.  Begins")
@example("One. \u00a0 two.\t!")
def test_sentences_are_those_of_the_plain_way(text: str) -> None:
    assert tokenizer().sentences([text]) == [len(tokenizer().split_sentences(text))]
    assert "".join(tokenizer().split_sentences(text)) == text


@pytest.mark.parametrize("limit", [0, 50, 1 << 20])
def test_a_small_limit_changes_no_words(limit: int) -> None:
    some = [f"Some words, {x}, that {'x' * x} differ." for x in range(100)]
    few = tokenizer("en", limit)
    for start in range(0, 100, 10):
        part = some[start : start + 10]
        assert [x.strings for x in few.words(part)] == [few.plain(text) for text in part]


def test_words_of_an_earlier_vocabulary_stay_what_they_are() -> None:
    few = WordTokenizer("en", 0)
    first = few.words(["one two"])
    few.words(["three four"])
    assert first[0].strings == ["one", "two"]


def test_where_a_special_case_is_cut_the_text_goes_to_spacy() -> None:
    found = WordTokenizer("en")
    found.words(["A plain text, Mr. Smith (e.g. this one :) )."])
    assert found.together == 0
    assert found.words([MET])[0].strings == found.plain(MET)
    assert found.together == 1
    # Only what depends on each other, with its own white space.
    for text in (f"One,  two\n{MET} three.\x1cFour {MET}", f"{MET}\n{MET}"):
        other = WordTokenizer("en")
        expected = [[], other.plain(text), ["five"]]
        assert [x.strings for x in other.words(["", text, "five"])] == expected
        assert other.together == 2


def test_special_cases_that_compete_across_spaces_are_those_of_spacy() -> None:
    found, generator = WordTokenizer("en"), random.Random(3)
    assert found._cases is not None
    emoticons = [(text,) for text in sorted(found._cases.texts) if not text.isalpha()]
    patterns = [*found._cases.patterns, *emoticons, *20 * [("2)",), (":O(((",), (";",), ("word",)]]

    def spaced(tokens: tuple[str, ...]) -> str:
        return "".join(token + generator.choice(["", "", " "]) for token in tokens)

    for _ in range(3000):
        chosen = generator.choices(patterns, k=generator.randint(2, 12))
        text = "".join(spaced(x) + generator.choice([" ", " ", "", "  ", "\n"]) for x in chosen)
        assert found.words([text])[0].strings == found.plain(text)
    assert found.together > 20


def test_another_version_of_spacy_has_no_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special_cases, "version", lambda name: "3.0")
    found = WordTokenizer("en")
    assert found.words(["One, two", MET])[0].strings == ["One", ",", "two"]
    assert found.together == 2


@pytest.mark.long
@pytest.mark.parametrize("language", ["de", "es", "fr"])
def test_other_languages_have_their_own_words(language: str) -> None:
    some = ["l'eau z.B. aujourd'hui EE. UU. del", "Das ist, d.h. ist's, u. a. gut :-) :O ((("]
    found = tokenizer(language)
    assert [x.strings for x in found.words(some)] == [found.plain(text) for text in some]


def test_languages_whose_words_or_sentences_are_not_found_are_refused() -> None:
    with pytest.raises(UsageError, match="gopher_quality: language is 'ko', expected one of"):
        GopherQuality(language="ko")
    assert GopherQuality(language="th").language == "th"
    with pytest.raises(UsageError, match="c4_quality: language is 'th', expected one of"):
        C4Quality(language="th")


@pytest.mark.skipif(find_spec("jieba") is not None, reason="needs a missing segmenter")
@pytest.mark.parametrize(
    ("language", "library"), [("zh", "jieba"), ("ja", "sudachipy"), ("km", "khmer_nltk")]
)
def test_a_missing_segmenter_is_named_with_its_extra(language: str, library: str) -> None:
    """Words by one are compared with datatrove's in tests/with_datatrove."""
    step = GopherQuality(language=language)
    install = f"{library} is not installed. Install it with: pip install 'fineshards[languages]'"
    with pytest.raises(MissingLibraryError, match=re.escape(install)):
        named_step(step).record()
    with pytest.raises(MissingLibraryError, match=r"'fineshards\[languages\]'"):
        step.apply(Batch.of_texts(["a"]))


@given(st.text(alphabet="ab\n語𠀀é", max_size=60), st.integers(4, 20))
def test_parts_are_as_long_as_lines_allow(text: str, longest: int) -> None:
    found = list(tokenizers.parts(text, longest))
    assert "".join(found) == text
    for part, following in pairwise([each.encode() for each in found]):
        assert 0 < len(part) <= longest
        if not part.endswith(b"\n"):
            assert b"\n" not in part
            assert len(part) + len(following.decode()[0].encode()) > longest


def test_many_languages_need_no_more_memory_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "LIMIT", 300)
    languages = ["en", "it", "nl"]
    for start in range(0, 400, 20):
        some = [f"Some {x} words, {'x' * x}." for x in range(start, start + 20)]
        for language in languages:
            found = words(Batch.of_texts(some), language)
            assert [each.strings for each in found] == [tokenizer().plain(text) for text in some]
        # What the last batch added is not counted before the next one.
        assert sum(tokenizers.tokenizer(each).size for each in languages) < 300 + 3 * 80


def test_words_are_kept_for_the_next_step_while_the_text_is_the_same() -> None:
    batch = Batch.of_texts(["one", "two"])
    first = words(batch, "en")
    second = words(batch.with_texts(["one", "three"]), "en")
    assert second[0] is first[0]
    assert second[1].strings == ["three"]


def test_the_table_is_of_the_installed_rules() -> None:
    found = special_cases.load_table()
    for language in ("en", "de"):
        loaded = words_module._load(language)
        assert special_cases.SpecialCases(loaded).sha256 == found["languages"][language]
    proven = map(derivation.rule_tokenizer, found["languages"])
    bounded = map(derivation.is_bounded, proven)
    assert list(compress(found["languages"], bounded)) == found["bounded"]


@lru_cache
def rules(language: str) -> Any:
    return spacy.blank(language).tokenizer


MARKS = st.sampled_from([*"()[]{}<>_#*&!?.,:;'\"+-=/|\\%$@~^`…—’“€²☺", "...", "US$", "'s", "°C."])
LETTERS = st.sampled_from(
    [*"abZ019éж中", "km", "http://", "www.", "a.b", "x@y.de", "u:p@", "don't"]
)
SPECIAL = st.sampled_from(
    [":)", ":O(((", "(-:", "8)", "a.m.", "U.S.", "e.g.", "can't", "C++", "''"]
)
runs = st.lists(st.tuples(st.one_of(MARKS, LETTERS, SPECIAL), st.sampled_from([1, 1, 1, 2, 9, 40])))
chunks = runs.map(lambda parts: "".join(piece * count for piece, count in parts))


@pytest.mark.parametrize("language", ["en", "de", "es", "pl", "ro", "ru", "xx"])
@given(chunks)
@example(":(" * 9 + "<" + "." * 40)
@example("<a.m.")
@example("(a.m.'s")
def test_long_chunks_are_cut_like_those_of_spacy(language: str, chunk: str) -> None:
    genuine = rules(language)
    plain = special_cases.without_matcher(genuine, genuine.rules)
    ends = list(accumulate(len(token.text) for token in plain(chunk)))
    assert words_module.cuts(genuine, genuine.url_match, chunk) == ends[:-1]


@pytest.mark.parametrize("language", ["en", "de", "ru"])
@given(chunks)
@example(":(" * 90 + "a.m." + "<" * 90)
def test_words_of_long_chunks_are_those_of_spacy(language: str, chunk: str) -> None:
    text = f"2) {chunk * 8} :O((( {chunk}"
    genuine = [token.text for token in rules(language)(text)]
    assert [word for word in genuine if word.strip()] == tokenizer(language).plain(text)
    assert tokenizer(language).words([text])[0].strings == tokenizer(language).plain(text)


def test_long_chunks_need_linear_work() -> None:
    searched = 0

    class Counting:
        """The rules for long chunks, and the characters that they are asked about."""

        rules = rules("en").rules

        def find_prefix(self, text: str) -> int:
            nonlocal searched
            searched += len(text)
            return int(rules("en").find_prefix(text))

        def find_suffix(self, text: str) -> int:
            nonlocal searched
            searched += len(text)
            return int(rules("en").find_suffix(text))

        def infix_finditer(self, text: str) -> Any:
            nonlocal searched
            searched += len(text)
            return rules("en").infix_finditer(text)

    marks = [
        *"!\"#$%&'()*+,-./:;<=>?[]^_",
        "‹",
        "☺",
        "http://",
        "a:",
        "...a",
        "'s",
        "!?",
        ".",
        "x@",
    ]
    for mark in marks:
        text = (mark * 20_000)[:20_000]
        searched = 0
        words_module.cuts(Counting(), rules("en").url_match, text)
        assert searched < 40 * len(text), mark


def test_pieces_of_long_chunks_need_linear_work() -> None:
    searched = 0
    genuine = rules("fr")

    def counting(rule: Any) -> Any:
        def count(text: str) -> Any:
            nonlocal searched
            searched += len(text)
            return rule(text)

        return count

    counted = type(genuine)(
        genuine.vocab,
        genuine.rules,
        prefix_search=counting(genuine.prefix_search),
        suffix_search=counting(genuine.suffix_search),
        infix_finditer=genuine.infix_finditer,
        token_match=counting(genuine.token_match),
        url_match=genuine.url_match,
    )
    work = []
    for size in (10_000, 20_000):
        searched = 0
        linear = words_module.linear(counted, bounded=False)
        assert [token.text for token in linear("<" * size)] == ["<"] * size
        work.append(searched)
    # A tokenizer knows a piece that it has cut before.
    assert 0 < work[1] <= work[0]


@pytest.mark.parametrize("language", ["el", "fr", "hu", "it", "tr"])
@given(chunks)
def test_short_chunks_without_bounded_rules_are_cut_like_those_of_spacy(
    language: str, chunk: str
) -> None:
    genuine = [token.text for token in rules(language)(chunk[: words_module.PIECE])]
    assert tokenizer(language).plain(chunk[: words_module.PIECE]) == genuine


MANY_CASES = "°°C." * 200 + " " + "_:O((( " * 400


@lru_cache
def cases(language: str) -> special_cases.SpecialCases:
    return special_cases.SpecialCases(rules(language))


@pytest.mark.parametrize("language", ["en", "es", "fr"])
@given(st.lists(st.one_of(SPECIAL, MARKS, LETTERS, st.sampled_from([" ", "°C.", "Est-ce"]))))
@example(["°", "°C."] * 2 + [" _:O((( "] * 3)
def test_special_cases_are_matched_like_spacy_does(language: str, parts: list[str]) -> None:
    text = "".join(parts)
    if not cases(language).may_crash(text):
        genuine = [(token.idx, token.text) for token in rules(language)(text)]
        assert cases(language).tokens(text) == genuine


def test_texts_on_which_spacy_writes_beyond_its_memory_have_words() -> None:
    program = (
        "from fineshards.curation.words.tokenizers import tokenizer\n"
        f"tokenizers, text = map(tokenizer, ['en', 'es']), {MANY_CASES!r}\n"
        "for words in tokenizers:\n"
        "    for size in range(4, 800):\n"
        "        words.plain(text[: 4 * size] + text[-14 * size :])\n"
        "    words.split_sentences(text)\n"
        "    print(len(words.plain(text)), len(words.words([text])[0].numbers))\n"
    )
    assert run_program(program).stdout.split() == ["2800", "2800", "2799", "2799"]
