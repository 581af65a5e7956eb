"""The words of a batch in a language: by spaCy's rules, or by a segmenter."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

from fineshards.curation.batch import Batch
from fineshards.curation.words.segmenters import SEGMENTERS, SegmentedTokenizer
from fineshards.curation.words.special_cases import load_table
from fineshards.curation.words.tokenizer import LIMIT, Tokenizer
from fineshards.curation.words.word_ids import Words
from fineshards.curation.words.words import WordTokenizer
from fineshards.extras import naming_the_extra

# By language; the process shares them.
_TOKENIZERS: dict[str, Tokenizer] = {}
# Sentences of other languages with a segmenter do not end with punctuation.
_PUNCTUATED = ("ja", "zh")


def _with_words(language: object) -> object:
    """A rule: a language whose words can be found."""
    return _one_of(language, [*load_table()["languages"], *SEGMENTERS])


def _with_sentences(language: object) -> object:
    """A rule: a language whose sentences can be found."""
    return _one_of(language, [*load_table()["languages"], *_PUNCTUATED])


def _one_of(language: object, languages: list[str]) -> object:
    if language in languages:
        return language
    raise ValueError(f"one of {', '.join(sorted(languages))}")


WordLanguage = Annotated[str, _with_words]
SentenceLanguage = Annotated[str, _with_sentences]


def words(batch: Batch, language: str) -> list[Words]:
    """The words of a batch's documents; kept for later steps while the texts stay the same."""
    return batch.derived(f"words {language}", tokenizer(language).words)


def tokenizer(language: str) -> Tokenizer:
    """The tokenizer of a language. Raises as the classes do."""
    if language not in _TOKENIZERS:
        kind = SegmentedTokenizer if language in SEGMENTERS else WordTokenizer
        _TOKENIZERS.setdefault(language, kind(language))
    # Many languages take no more memory than one.
    known = list(_TOKENIZERS.values())
    if sum(each.size for each in known) > LIMIT:
        max(known, key=lambda each: each.size).forget()
    return _TOKENIZERS[language]


@naming_the_extra()
def pins(language: str = "en") -> dict[str, str]:
    """What decides words and sentences in addition to this code."""
    # It ships with Python and says what is punctuation, alphabetic or white space.
    from unicodedata import unidata_version

    found = {"unicode": unidata_version}
    libraries = SEGMENTERS[language].libraries if language in SEGMENTERS else ()
    for name in ("spacy", *libraries):
        try:
            found[name] = version(name)
        except PackageNotFoundError as error:
            raise ModuleNotFoundError(name=name.replace("-", "_")) from error
    return found
