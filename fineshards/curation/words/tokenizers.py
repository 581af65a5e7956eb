"""The words of a batch in a language: by spaCy's rules, or by a segmenter."""

import logging
import os
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal, NamedTuple

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Rule, Unless
from fineshards.curation.words.special_cases import load_table
from fineshards.curation.words.word_ids import Words
from fineshards.curation.words.words import LIMIT, Tokenizer, WordTokenizer
from fineshards.extras import naming_the_extra

Segment = Callable[[str], list[str]]
# In place of a language: what stands between white space is a word.
SPACE = "space"
# SudachiPy takes at most 49,149 bytes. datatrove cuts longer texts at about this length.
_LONGEST = 40_000


class Segmenter(NamedTuple):
    """A library for a language.

    libraries: the distributions whose versions decide. load: makes the function that cuts a text.
    """

    libraries: tuple[str, ...]
    load: Callable[[], Segment]


def _chinese() -> Segment:
    import jieba

    # jieba itself would take its table from a file in the folder for temporary files, which anyone
    # may have written.
    segmenter = jieba.Tokenizer()
    segmenter.FREQ, segmenter.total = segmenter.gen_pfdict(segmenter.get_dict_file())
    segmenter.initialized = True
    return lambda text: list(segmenter.cut(text))


def _japanese() -> Segment:
    from sudachipy import Dictionary, SplitMode

    find = Dictionary(dict="core").tokenizer(mode=SplitMode.A).tokenize
    return lambda text: [word.surface() for part in parts(text) for word in find(part)]


def parts(text: str, longest: int = _LONGEST) -> Iterator[str]:
    """A text in parts of at most `longest` bytes of UTF-8, cut after the last line break of each.

    Example:
        >>> list(parts("ab\\ncd\\nefghé", 5))
        ['ab\\n', 'cd\\n', 'efgh', 'é']
    """
    data = text.encode("utf-8", "surrogatepass")
    while len(data) > longest:
        end = data.rfind(b"\n", 0, longest) + 1 or longest
        # Not within a character.
        while data[end] & 0xC0 == 0x80:
            end -= 1
        yield data[:end].decode("utf-8", "surrogatepass")
        data = data[end:]
    yield data.decode("utf-8", "surrogatepass")


def _thai() -> Segment:
    # So that it makes no folder in the user's home.
    os.environ.setdefault("PYTHAINLP_READ_ONLY", "1")
    from pythainlp.tokenize import word_tokenize

    return lambda text: list(word_tokenize(text, engine="newmm-safe", keep_whitespace=False))


def _khmer() -> Segment:
    from khmernltk.word_tokenize import word_tokenize

    # It would say where it has its model from.
    logging.getLogger("khmer-nltk").setLevel(logging.WARNING)
    return lambda text: list(word_tokenize(text, return_tokens=True))


def _lao() -> Segment:
    os.environ.setdefault("PYTHAINLP_READ_ONLY", "1")
    from laonlp.tokenize import word_tokenize

    return lambda text: list(word_tokenize(text))


SEGMENTERS = {
    "ja": Segmenter(("sudachipy", "sudachidict-core"), _japanese),
    "km": Segmenter(("khmer-nltk", "python-crfsuite"), _khmer),
    "lo": Segmenter(("laonlp", "pythainlp"), _lao),
    "th": Segmenter(("pythainlp",), _thai),
    "zh": Segmenter(("jieba",), _chinese),
}


class SegmentedTokenizer(Tokenizer):
    """Finds the words of texts in one of `SEGMENTERS`; raises MissingLibraryError without it."""

    @naming_the_extra()
    def __init__(self, language: str) -> None:
        self._segment = SEGMENTERS[language].load()
        super().__init__()

    def _tokens(self, text: str) -> list[str]:
        return self._segment(text)


class SpaceTokenizer(Tokenizer):
    """Takes what stands between white space for words."""

    def _tokens(self, text: str) -> list[str]:
        return text.split()


# By language, or SPACE; the process shares them.
_TOKENIZERS: dict[str, Tokenizer] = {}


def _one_of(*segmented: str) -> Rule:
    """A rule: a language of the stored table, or one of `segmented`."""

    def check(language: object) -> object:
        languages = [*load_table()["languages"], *segmented]
        if language in languages:
            return language
        raise ValueError(f"one of {', '.join(sorted(languages))}")

    return check


WordLanguage = Annotated[str, _one_of(*SEGMENTERS)]
WordRules = Annotated[str, _one_of(*SEGMENTERS, SPACE)]
SentenceLanguage = Annotated[str, _one_of()]
WordsOf = Literal["language", "space"]
LanguageOfWords = Annotated[WordLanguage, Unless(words=(SPACE,))]


class ByWords:
    """What steps with the parameters `language` and `words` have in common."""

    @property
    def _rules(self: Any) -> str:
        """What decides words: a language, or SPACE."""
        return SPACE if self.words == SPACE else str(self.language)

    def pins(self) -> dict[str, str]:
        return pins(self._rules)


def words(batch: Batch, language: str) -> list[Words]:
    """The words of a batch's documents; kept for later steps while the texts stay the same.

    language: that of the words, or SPACE.
    """
    return batch.derived(f"words {language}", tokenizer(language).words)


def tokenizer(language: str) -> Tokenizer:
    """The tokenizer of a language, or of SPACE. Raises as the classes do."""
    if language not in _TOKENIZERS:
        kind = SegmentedTokenizer if language in SEGMENTERS else WordTokenizer
        made = SpaceTokenizer() if language == SPACE else kind(language)
        _TOKENIZERS.setdefault(language, made)
    # Many languages take no more memory than one.
    tokenizers = list(_TOKENIZERS.values())
    if sum(shared.size for shared in tokenizers) > LIMIT:
        max(tokenizers, key=lambda shared: shared.size).forget()
    return _TOKENIZERS[language]


def sentence_tokenizer(language: str) -> WordTokenizer:
    """The tokenizer of a language whose sentences can be counted and cut, too."""
    shared = tokenizer(language)
    assert isinstance(shared, WordTokenizer)
    return shared


@naming_the_extra()
def pins(language: str = "en") -> dict[str, str]:
    """What decides words and sentences in addition to this code."""
    # It ships with Python and says what is punctuation, alphabetic or white space.
    from unicodedata import unidata_version

    versions = {"unicode": unidata_version}
    libraries = SEGMENTERS[language].libraries if language in SEGMENTERS else ()
    for name in () if language == SPACE else ("spacy", *libraries):
        try:
            versions[name] = version(name)
        except PackageNotFoundError as error:
            raise ModuleNotFoundError(name=name.replace("-", "_")) from error
    return versions
