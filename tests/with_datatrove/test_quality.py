"""The filters on words and lines give datatrove's verdict and reason on every document."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4BadWordsFilter,
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    c4_filters,
    gopher_quality_filter,
    gopher_repetition_filter,
)
from datatrove.utils.text import PUNCTUATION_SET, TERMINAL_PUNCTUATION, split_into_words
from datatrove.utils.typeshelper import Languages
from datatrove.utils.word_tokenizers import load_word_tokenizer
from documents import ALL, Part, parts
from mutations import mutated

from fineshards.curation.batch import Batch
from fineshards.curation.punctuation import PUNCTUATION_OR_TERMINAL
from fineshards.curation.punctuation import TERMINAL_PUNCTUATION as OUR_TERMINAL_PUNCTUATION
from fineshards.curation.step import Judge
from fineshards.curation.steps.c4_badwords import C4BadWords
from fineshards.curation.steps.c4_quality import C4Quality
from fineshards.curation.steps.fineweb_quality import FineWebQuality
from fineshards.curation.steps.gopher_quality import GopherQuality
from fineshards.curation.steps.gopher_repetition import GopherRepetition
from fineshards.curation.words.tokenizers import words

MUTATED = 20_000
MUTATED_PARTS = 20

FRENCH = ("le", "de", "et", "à", "la", "les", "que", "dans")
# FineWeb-2's settings for a language, and one rule at a time, so that no earlier rule hides it.
GRAMS: dict[str, Any] = {
    "dup_line_frac": None,
    "dup_para_frac": None,
    "dup_line_char_frac": None,
    "dup_para_char_frac": None,
}
FINEWEB_2: dict[str, Any] = {"short_line_thr": 999, "char_duplicates_ratio": 0.1}
NO_COUNT: dict[str, Any] = {"min_doc_words": 1, "min_avg_word_length": None}


# So that datatrove, too, takes this for a word in every document (words.py says why).
load_word_tokenizer(Languages.english).tokenizer("IS_ALPHA")


@dataclass
class Pair:
    """A step of ours and datatrove's filter."""

    name: str
    step: Judge
    filter: Any

    def must_agree(self, batch: Batch) -> None:
        """Compares verdict, reason and text on all documents."""
        outcome = self.step.apply(batch)
        ours = outcome.reasons or [None] * len(batch)
        for index, text in enumerate(batch.strings):
            try:
                reason, rewritten = _judged(self.filter, text)
            except ZeroDivisionError:
                # Only without words; the docstrings say what we do then.
                assert ours[index] is not None, (self.name, text)
                assert not split_into_words(text), (self.name, text)
                continue
            assert ours[index] == reason, (self.name, int(batch.rows[index]), text[:4000])
            if outcome.texts is not None and reason is None:
                assert outcome.texts[index] == rewritten, (self.name, text[:4000])


def _judged(judge: Any, text: str) -> tuple[str | None, str]:
    document = Document(text=text, id="")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mean of nothing
        verdict = judge.filter(document)
    return (verdict[1] if isinstance(verdict, tuple) else None), document.text


FINEWEB = [
    Pair("repetition", GopherRepetition(), GopherRepetitionFilter()),
    Pair("quality", GopherQuality(), GopherQualityFilter()),
    Pair(
        "c4",
        C4Quality(filter_no_terminal_punct=False),
        C4QualityFilter(filter_no_terminal_punct=False),
    ),
    Pair("fineweb", FineWebQuality(), FineWebQualityFilter()),
    Pair(
        "fineweb 2",
        FineWebQuality(short_line_thr=None, char_duplicates_ratio=0.1, line_punct_thr=0.05),
        FineWebQualityFilter(**FINEWEB_2, line_punct_thr=0.05),
    ),
]
MORE = [
    Pair("grams", GopherRepetition(**GRAMS), GopherRepetitionFilter(**GRAMS)),
    Pair(
        "low grams",
        GopherRepetition(**GRAMS, top_n_grams=(), dup_n_grams=((3, 0.02), (2, 0.3), (10, 0.01))),
        GopherRepetitionFilter(
            **GRAMS, top_n_grams=(), dup_n_grams=((3, 0.02), (2, 0.3), (10, 0.01))
        ),
    ),
    Pair(
        "low top grams",
        GopherRepetition(**GRAMS, top_n_grams=((1, 0.07), (3, 0.05)), dup_n_grams=()),
        GopherRepetitionFilter(**GRAMS, top_n_grams=((1, 0.07), (3, 0.05)), dup_n_grams=()),
    ),
    Pair("short", GopherQuality(**NO_COUNT), GopherQualityFilter(**NO_COUNT)),
    Pair(
        "lines",
        GopherQuality(**NO_COUNT, max_symbol_word_ratio=None, max_avg_word_length=None),
        GopherQualityFilter(**NO_COUNT, max_symbol_word_ratio=None, max_avg_word_length=None),
    ),
    Pair(
        "stop words",
        GopherQuality(
            min_doc_words=None, max_non_alpha_words_ratio=0.5, stop_words=FRENCH, min_stop_words=1
        ),
        GopherQualityFilter(
            min_doc_words=None,
            max_non_alpha_words_ratio=0.5,
            stop_words=list(FRENCH),
            min_stop_words=1,
        ),
    ),
    Pair("c4 lines", C4Quality(), C4QualityFilter()),
    Pair(
        "c4 many",
        C4Quality(filter_no_terminal_punct=False, min_num_sentences=12, min_words_per_line=-1),
        C4QualityFilter(
            filter_no_terminal_punct=False, min_num_sentences=12, min_words_per_line=-1
        ),
    ),
    Pair(
        "duplicates",
        FineWebQuality(line_punct_thr=0, short_line_thr=1, stop_chars=(".", "...", "x")),
        FineWebQualityFilter(line_punct_thr=0, short_line_thr=1, stop_chars=(".", "...", "x")),
    ),
]


def must_agree(pairs: Sequence[Pair], batch: Batch) -> None:
    # A few documents at a time: datatrove remembers the words of five texts.
    for start in range(0, len(batch), 5):
        few = Batch.of_texts(batch.strings[start : start + 5])
        for text, found in zip(few.strings, words(few, "en"), strict=True):
            assert found.strings == split_into_words(text), text[:4000]
        for pair in pairs:
            pair.must_agree(few)


def test_documents_are_judged_as_by_datatrove(part: Part) -> None:
    must_agree(FINEWEB, part.batch())


@pytest.mark.parametrize("number", range(MUTATED_PARTS))
def test_mutated_documents_are_judged_as_by_datatrove(number: int) -> None:
    chosen = [part for part in parts() if ALL or part.start == 0]
    texts = [
        text
        for part in chosen[number % len(chosen) :: MUTATED_PARTS] or chosen[:1]
        for text in part.batch().strings
    ]
    count = MUTATED // MUTATED_PARTS
    made = [mutated(texts[x % len(texts)], number * count + x) for x in range(count)]
    must_agree([*FINEWEB, *MORE], Batch.of_texts(made))


def test_the_plain_way_gives_the_same() -> None:
    part = next(parts())
    texts = part.batch().strings[::10]
    texts += [mutated(text, seed) for seed, text in enumerate(texts)]
    batch = Batch.of_texts(texts)
    for pair in [*FINEWEB, *MORE]:
        fast = pair.step.apply(batch)
        for index, text in enumerate(texts):
            plain = pair.step.apply_again(batch.only(index))
            assert (plain.reasons or [None])[0] == (fast.reasons or [None] * len(texts))[index]
            if fast.texts is not None and plain.texts is not None and plain.reasons == [None]:
                assert plain.texts[0] == fast.texts[index], (pair.name, text)


def test_verdicts_with_words_by_white_space_are_those_of_datatrove(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """datatrove has no such words: its filters get them."""
    for module in (gopher_quality_filter, gopher_repetition_filter):
        monkeypatch.setattr(module, "split_into_words", lambda text, _: text.split())
    pairs = [
        Pair("repetition", GopherRepetition(words="space"), GopherRepetitionFilter()),
        Pair("quality", GopherQuality(words="space"), GopherQualityFilter()),
        Pair("grams", GopherRepetition(**GRAMS, words="space"), GopherRepetitionFilter(**GRAMS)),
    ]
    texts = next(parts()).batch().strings
    texts += [mutated(text, seed) for seed, text in enumerate(texts)]
    for pair in pairs:
        pair.must_agree(Batch.of_texts(texts))


def test_bad_words_are_those_of_datatrove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "words"
    path.write_text("file\nopen source\nc++\n.net\nuse\n性\nsm\n", "utf-8")
    monkeypatch.setattr(c4_filters, "cached_asset_path_or_download", lambda *_, **__: str(path))
    texts = next(parts()).batch().strings
    texts += [mutated(text, seed) for seed, text in enumerate(texts)]
    texts += ["file", "_file", "file.", "files", "a\nfile\n", "x c++", "a.net b", "性", "FILE"]
    for language in ("en", "zh"):
        pair = Pair(
            language,
            C4BadWords(str(path), language=language),
            C4BadWordsFilter(default_language=language),
        )
        pair.must_agree(Batch.of_texts(texts))
        again = [pair.step.apply_again(Batch.of_texts([text])).reasons for text in texts]
        assert [x for (x,) in again] == pair.step.apply(Batch.of_texts(texts)).reasons


def test_punctuation_is_that_of_datatrove() -> None:
    assert PUNCTUATION_OR_TERMINAL == PUNCTUATION_SET
    assert OUR_TERMINAL_PUNCTUATION == TERMINAL_PUNCTUATION
