"""Drops documents with words of a list, as C4 does, in datatrove's version."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any
from unicodedata import unidata_version

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import nonempty
from fineshards.curation.reference_files import Pinned, pin, pinned, read
from fineshards.curation.step import Judge, Outcome
from fineshards.errors import InputError
from fineshards.extras import naming_the_extra

# Languages without spaces between words. There a listed word counts wherever it is.
_UNSPACED = ("ja", "th", "zh")
# Parts of ordinary words in such languages; datatrove removes them from all lists.
_ALLOWED = {"sm", "グロ", "女の子", "性"}
_REASON = "document_removed_with_badwords"


@dataclass(frozen=True)
class C4BadWords(Judge, name="c4_badwords"):
    """Drops a document that has one of the words of a list.

    The rule, names and reason are those of datatrove's C4BadWordsFilter:
    `document_removed_with_badwords`. Words are looked for in the text in lower case, between
    characters that are not letters, digits or underscores. Four entries that are parts of ordinary
    Japanese and Chinese words are left out. The list is a file of yours, and no share of such
    documents is kept.

    Args:
        words: The path of the list, local or gs://, in UTF-8, one word or phrase per line.
        language: The language of the list. In ja, th and zh words need nothing around them.
    """

    words: Annotated[str, nonempty("the path of a file")]
    language: Annotated[str, nonempty("the name of a language, such as en")] = "en"

    def pins(self) -> dict[str, str]:
        # It says how upper case becomes lower case.
        return {"unicode": unidata_version, self.words: pin(self.words).sha256}

    def apply(self, batch: Batch) -> Outcome:
        find = _finder(pinned(self.words), self.language)
        return Outcome([_REASON if find.is_in(text.lower()) else None for text in batch.strings])

    def apply_again(self, document: Batch) -> Outcome:
        pattern = _finder(pinned(self.words), self.language).pattern
        (text,) = document.strings
        return Outcome([_REASON if pattern.search(text.lower()) else None])


class _Finder:
    """Looks for words in texts. pattern: the same as a regular expression, which is slower."""

    def __init__(self, words: list[str], spaced: bool) -> None:
        with naming_the_extra():
            import ahocorasick
        self._spaced = spaced
        self._automaton: Any = ahocorasick.Automaton()
        for word in words:
            self._automaton.add_word(word, len(word))
        self._automaton.make_automaton()
        either = "|".join(map(re.escape, words))
        self.pattern = re.compile(rf"(?:\W|^)(?:{either})(?:\W|$)" if spaced else either)

    def is_in(self, text: str) -> bool:
        """Whether a word is in a text, which is in lower case."""
        return any(
            not self._spaced
            or not (
                (end >= length and _in_word(text[end - length]))
                or (end + 1 < len(text) and _in_word(text[end + 1]))
            )
            for end, length in self._automaton.iter(text)
        )


def _in_word(character: str) -> bool:
    r"""Whether a character is \w of regular expressions."""
    return character.isalnum() or character == "_"


@lru_cache(maxsize=8)
def _finder(file: Pinned, language: str) -> _Finder:
    try:
        lines = read(file).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(
            f"c4_badwords: {file.path} is not UTF-8 at byte {error.start}: convert it."
        ) from error
    words = sorted({line.strip() for line in lines} - _ALLOWED - {""})
    if not words:
        raise InputError(f"c4_badwords: words: {file.path} has no words, expected one per line.")
    return _Finder(words, language not in _UNSPACED)
