"""The words of texts, exactly those of spaCy, found once per chunk of text between white space.

Words are those that datatrove's English tokenizer gives: `spacy.blank("en")`, without white space.
spaCy needs 2 µs per word, and nearly all chunks have been seen before. So each process remembers
what spaCy made of a chunk, in a `WordTable`. Where that is not exact (`special_cases.py`), the
chunks that may depend on each other go to spaCy together; with other versions of spaCy than the
table's, every text does.
"""

import re
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fineshards.curation.words.special_cases import (
    CHANGED_LEFT,
    CHANGED_RIGHT,
    LEFT,
    RIGHT,
    SpecialCases,
    load_table,
    proven_sha256,
    without_matcher,
)
from fineshards.curation.words.word_ids import BEGINNING, ENDING, Words, WordTable
from fineshards.extras import naming_the_extra

_CHUNK = re.compile(r"\S+")  # what `str.split` finds

# White space that spaCy makes a token: all of it but single spaces.
_TOKEN_SPACE = re.compile(r"[^\S ]\s*| \s+")

# Half of the chunks that a worker has not seen yet are ASCII letters with a bracket or quotation
# mark before them and a comma, a point or the like after them. spaCy's rules cut these off one by
# one, unless a special case is met on the way: so there must be none.
# `tools/special_cases.py` compares with spaCy.
BEFORE = '("“['
AFTER = ',;:!?)]"”'

# A point is cut off after a small letter only, and not before another one.
_SIMPLE = re.compile(
    rf"([{re.escape(BEFORE)}]?)([A-Za-z]+)((?:(?<=[a-z])\.|[{re.escape(AFTER)}])?)"
    rf"([{re.escape(AFTER)}]?)"
)

# spaCy cuts one prefix and one suffix at a time off a chunk, and for each searches and copies all
# that is left: quadratic time. Longer chunks are cut here. No special case is that long.
LONG = 256
# In the other languages, such chunks are cut into pieces of so many characters.
PIECE = 500
# The most characters that a prefix or suffix rule looks at, besides a run of points, in the
# languages that the table calls bounded.
REACH = 16
_POINTS, _NOTHING = re.compile(r"\.*"), re.compile("")

# The size at which a vocabulary is replaced by a new one: about 300 MB, or 50 MB of English text.
# Steps may still hold the old one for the batch that they work on.
LIMIT = 1_000_000
# Characters that are looked up before new words are described, and the size is compared.
_GROUP = 1 << 20


class Tokenizer:
    """Finds the words of texts in one language. Safe for threads.

    limit: the size at which the vocabulary is replaced.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._sentence_ends = _sentence_ends()
        self.forget()

    @property
    def size(self) -> int:
        """A measure of the memory, as of `WordTable`."""
        return self._vocabulary.size

    def forget(self) -> None:
        """Begins a new vocabulary."""
        self._vocabulary = WordTable(self._sentence_ends)

    def words(self, texts: Sequence[str]) -> list[Words]:
        """The words of each text."""
        results: list[Words] = []
        with self._lock:
            for group in groups(texts):
                if self.size > self._limit:
                    self.forget()
                results += self._of_group(group)
        return results

    def plain(self, text: str) -> list[str]:
        """The words of a text, from the library itself."""
        with self._lock:
            return self._plain(text)

    def _of_group(self, texts: Sequence[str]) -> list[Words]:
        vocabulary = self._vocabulary
        return [Words(vocabulary, vocabulary.number(self._plain(text))) for text in texts]

    def _plain(self, text: str) -> list[str]:
        stripped = map(str.strip, self._tokens(text))
        return [word for word in stripped if word]

    def _tokens(self, text: str) -> list[str]:
        raise NotImplementedError


def simple_words(chunk: str, special_cases: Container[str]) -> list[str] | None:
    """The words of a plain word between common punctuation; None for any other chunk.

    special_cases: the texts of all special cases.
    """
    if chunk.isascii() and chunk.isalpha():
        return None if chunk in special_cases else [chunk]
    match = _SIMPLE.fullmatch(chunk)
    if not match:
        return None
    words = [part for part in match.groups() if part]
    count = len(words)
    joined = ("".join(words[a:b]) for a in range(count) for b in range(a + 1, count + 1))
    return None if any(text in special_cases for text in joined) else words


class WordTokenizer(Tokenizer):
    """Finds the words of texts in one language. Safe for threads.

    Args:
        language: spaCy's name of the language.
        limit: The size at which the vocabulary is replaced.

    Raises:
        MissingLibraryError: If spaCy is not installed.

    Example:
        >>> [words.strings for words in WordTokenizer("en").words(["Don't  stop.", ""])]
        [['Do', "n't", 'stop', '.'], []]
    """

    def __init__(self, language: str, limit: int = LIMIT) -> None:
        self._tokenizer = _load(language)
        self._cases = SpecialCases(self._tokenizer)
        self._proven = self._cases.sha256 == proven_sha256(language)
        self._simple = self._proven and language in load_table()["simple"]
        super().__init__(limit)
        # How many texts, or parts of them with several chunks, went to spaCy.
        self.together = 0

    def sentences(self, lines: Sequence[str]) -> list[int]:
        """The number of sentences that spaCy's sentencizer finds in each line; 1 if it is empty.

        A sentence begins with a word that is neither punctuation nor an end of a sentence, if the
        last word before it that is not mere punctuation is an end. White space that is a token is
        such a word.
        """
        pieces = [_TOKEN_SPACE.split(line) for line in lines]
        words_of_pieces = iter(self.words([piece for parts in pieces for piece in parts]))
        return [_sentences([next(words_of_pieces) for _ in parts]) for parts in pieces]

    def split_sentences(self, text: str) -> list[str]:
        """A text cut into its sentences by spaCy's tokens, with the white space before each."""
        with self._lock, self._tokenizer.vocab.memory_zone():
            cuts, ended, end = [], False, 0
            for index, word in self._placed(text):
                ends = word in self._sentence_ends
                if ended and not ends and not self._tokenizer.vocab[word].is_punct:
                    cuts.append(end)
                    ended = False
                elif ends:
                    ended = True
                end = index + len(word)
        return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def _of_group(self, texts: Sequence[str]) -> list[Words]:
        vocabulary = self._vocabulary
        if not self._proven:
            self.together += len(texts)
            return super()._of_group(texts)
        number = vocabulary.chunks.__getitem__
        split = [text.split() for text in texts]
        counts = list(map(len, split))
        chunks = np.fromiter(map(number, chain.from_iterable(split)), np.int64, sum(counts))
        if vocabulary.new:
            self._describe(vocabulary)
        words, ends = vocabulary.expand(chunks)
        begins = np.cumsum([0, *counts])
        places = np.concatenate([[0], ends])
        results = [Words(vocabulary, words[a:b]) for a, b in pairwise(places[begins].tolist())]
        for index, runs in _suspects(vocabulary.flags[chunks], begins).items():
            spans = [match.span() for match in _CHUNK.finditer(texts[index])]
            parts, done = [], int(begins[index])
            for first, last in runs:
                self.together += 1
                start, end = spans[first - begins[index]][0], spans[last - begins[index]][1]
                part = self._plain(texts[index][start:end])
                parts += [words[places[done] : places[first]], vocabulary.number(part)]
                done = last + 1
            parts.append(words[places[done] : places[begins[index + 1]]])
            results[index] = Words(vocabulary, np.concatenate(parts))
        return results

    def _describe(self, vocabulary: WordTable) -> None:
        new, texts = vocabulary.new, self._cases.texts
        simple = [simple_words(chunk, texts) if self._simple else None for chunk in new]
        rest = iter(self._of_chunks([x for x, y in zip(new, simple, strict=True) if y is None]))
        described = [next(rest) if part is None else part for part in simple]
        with self._tokenizer.vocab.memory_zone():
            flags = list(map(self._cases.flags, new, described))
        vocabulary.describe(described, flags)

    def _of_chunks(self, chunks: Sequence[str]) -> list[list[str]]:
        """The words of each chunk, from spaCy."""
        words: list[list[str]] = []
        for group in groups(chunks):
            # A line break is a token and in no special case: chunks do not touch.
            part: list[str] = []
            words.append(part)
            for token in self._tokens("\n".join(group)):
                if token == "\n":
                    part = []
                    words.append(part)
                else:
                    part.append(token)
        return words

    def _tokens(self, text: str) -> list[str]:
        # What spaCy keeps of new words is freed with the zone.
        with self._tokenizer.vocab.memory_zone():
            return [word for _, word in self._placed(text)]

    def _placed(self, text: str) -> list[tuple[int, str]]:
        """The tokens of a text and where each begins."""
        if self._cases.may_crash(text):
            return self._cases.tokens(text)
        return [(token.idx, token.text) for token in self._tokenizer(text)]


def linear(tokenizer: Any, bounded: bool) -> Any:
    """A tokenizer with the same words, in linear time also for long chunks.

    It peels nothing off a long chunk, and takes all its cuts as infixes without characters.

    bounded: whether the table calls the language so. If not, long chunks are cut into pieces first.
    """
    # Wherever this part of the rule holds, `\S+@` does, which needs no time for each colon.
    url = tokenizer.url_match.__self__.pattern.replace(r"(?:\S+(?::\S*)?@)?", r"(?:\S+@)?")
    is_url = re.compile(url).match
    longest = LONG if bounded else PIECE
    plain = without_matcher(tokenizer, tokenizer.rules)

    def infixes(text: str) -> Iterable[Any]:
        if len(text) <= longest:
            return tokenizer.infix_finditer(text)  # type: ignore[no-any-return]
        places = cuts(tokenizer, is_url, text) if bounded else cuts_of_pieces(plain, text)
        return (_NOTHING.match(text, place) for place in places)

    def short(rule: Callable[[str], Any] | None) -> Callable[[str], Any] | None:
        return rule and (lambda text: rule(text) if len(text) <= longest else None)

    return type(tokenizer)(
        tokenizer.vocab,
        tokenizer.rules,
        prefix_search=short(tokenizer.prefix_search),
        suffix_search=short(tokenizer.suffix_search),
        infix_finditer=infixes,
        token_match=short(tokenizer.token_match),
        url_match=short(is_url),
    )


def cuts_of_pieces(tokenizer: Any, chunk: str) -> list[int]:
    """The places where spaCy's rules cut the pieces of a chunk, and those between pieces."""

    @lru_cache  # pieces of the same mark repeat
    def lengths(piece: str) -> list[int]:
        return [len(token) for token in tokenizer(piece)]

    pieces = (chunk[start : start + PIECE] for start in range(0, len(chunk), PIECE))
    return list(accumulate(length for piece in pieces for length in lengths(piece)))[:-1]


def cuts(tokenizer: Any, is_url: Callable[[str], Any], chunk: str) -> list[int]:
    """The places where spaCy's rules cut a chunk, before special cases are matched.

    The steps are those of spaCy's own loop, but a rule sees only as much as it can look at.
    """
    from spacy.symbols import ORTH

    rules = tokenizer.rules
    longest = max(map(len, rules))
    find_prefix, find_suffix = lru_cache(tokenizer.find_prefix), lru_cache(tokenizer.find_suffix)

    def is_special(start: int, end: int) -> bool:
        return 0 < end - start <= longest and chunk[start:end] in rules

    start, end, size, places = 0, len(chunk), 0, {0}
    while start < end and end - start != size and not is_special(start, end):
        size = end - start
        points = _POINTS.match(chunk, start, end).end()  # type: ignore[union-attr]
        left = start + find_prefix(chunk[start : min(points + REACH, end)])
        if left > start and is_special(left, end):
            start = left
        else:
            points = end
            while points > left and chunk[points - 1] == ".":
                points -= 1
            right = end - find_suffix(chunk[max(points - REACH, left) : end])
            # If a special case is left with the prefix, that stays.
            start = start if right < end and is_special(start, right) else left
            end = right
        places |= {start, end}
    rest = chunk[start:end]
    if is_special(start, end):
        places.update(accumulate((len(part[ORTH]) for part in rules[rest]), initial=start))
    elif not is_url(rest):
        spans = [match.span() for match in tokenizer.infix_finditer(rest)]
        places.update(start + place for span in spans if span[0] for place in span)
    return sorted(places - {0, len(chunk)})


def _load(language: str) -> Any:
    with naming_the_extra():
        import spacy
        from spacy.attrs import IS_PUNCT
    tokenizer: Any = spacy.blank(language).tokenizer
    if proven_sha256(language):
        tokenizer = linear(tokenizer, language in load_table()["bounded"])
    # What spaCy finds out about each new word takes a quarter of its time. Only this is asked for.
    getters = tokenizer.vocab.lex_attr_getters
    tokenizer.vocab.lex_attr_getters = {IS_PUNCT: getters[IS_PUNCT]}
    # spaCy fails on this word, its first symbol, once a memory zone has freed it. datatrove removes
    # it then, but not from the first text that has it. Here it is a word like others.
    tokenizer("IS_ALPHA")
    return tokenizer


def _suspects(
    flags: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64]
) -> dict[int, list[tuple[int, int]]]:
    """By text, the first and the last chunk of each run in which a match across a space could
    change words: no match goes beyond it.

    flags: of the chunks of all texts. begins: the first chunk of each text, and the end.
    """
    left, right = flags[:-1], flags[1:]
    # Nearly always there are none.
    if not (flags & (CHANGED_LEFT | CHANGED_RIGHT)).any():
        return {}
    meeting = ((left & CHANGED_RIGHT) != 0) & ((right & LEFT) != 0)
    meeting |= ((left & RIGHT) != 0) & ((right & CHANGED_LEFT) != 0)
    apart = ((left & RIGHT) == 0) | ((right & LEFT) == 0)
    between = begins[(begins > 0) & (begins < len(flags))] - 1
    apart[between], meeting[between] = True, False
    firsts = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(flags)]])
    runs: dict[int, list[tuple[int, int]]] = {}
    for run in np.unique(np.searchsorted(firsts, np.flatnonzero(meeting), "right")).tolist():
        first, last = int(firsts[run - 1]), int(firsts[run]) - 1
        text = int(np.searchsorted(begins, first, "right")) - 1
        runs.setdefault(text, []).append((first, last))
    return runs


def _sentences(pieces: Sequence[Words]) -> int:
    parts = [piece.vocabulary.properties[piece.numbers] for piece in pieces]
    space = np.array([BEGINNING], np.uint8)
    joined = np.concatenate([x for part in parts for x in (space, part)][1:])
    joined = joined[(joined & (ENDING | BEGINNING)) != 0]
    begins = (joined[:-1] & ENDING).astype(np.bool_) & ((joined[1:] & BEGINNING) != 0)
    return 1 + int(np.count_nonzero(begins))


def groups(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """The texts, in groups of about _GROUP characters."""
    start, characters = 0, 0
    for end, text in enumerate(texts, 1):
        characters += len(text)
        if characters >= _GROUP:
            yield texts[start:end]
            start, characters = end, 0
    if start < len(texts):
        yield texts[start:]


@naming_the_extra()
def _sentence_ends() -> frozenset[str]:
    """The words that end a sentence, of all scripts."""
    from spacy.pipeline.sentencizer import Sentencizer

    return frozenset(Sentencizer.default_punct_chars)
