"""Where spaCy's special cases look across a space, and so make words depend on their neighbours.

spaCy splits a text at white space into chunks, and each chunk into tokens by rules that see nothing
but the chunk. Then a matcher looks for special cases (emoticons, abbreviations) in the tokens of
the whole text, where a single space is invisible. A match across a space changes nothing by itself,
unless a special case contains a space. But matches compete: the longest wins, and those that share
tokens with it are dropped. So `2) :O(((` loses `:O(`.

Hence the words of a text are those of its chunks, one after the other, unless a possible match
across a space meets a chunk in which the matcher has changed something. This module finds out, for
each chunk by itself, whether it can be part of such a meeting.

`python -m tools.special_cases` compares this with spaCy and writes the table of languages
for which it holds, with spaCy's version and a hash of the special cases.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("special_cases.json")

# What a chunk can be part of, as bits. A possible match begins in one of its last tokens, or ends
# in one of its first, or covers it.
RIGHT, LEFT = 1, 2
# The same, and the matcher has changed a token of the chunk, or the match is a special case with a
# space.
CHANGED_RIGHT, CHANGED_LEFT = 4, 8
# Tokens for which spaCy has room behind those of a text.
_ROOM = 5

Pattern = tuple[str, ...]


class SpecialCases:
    """The special cases of one tokenizer that its matcher looks for.

    Args:
        tokenizer: A `spacy.tokenizer.Tokenizer` with its rules.

    Attributes:
        texts: The texts of all special cases, also of those that the matcher does not look for.
        patterns: What the matcher looks for: their tokens, where there are several.
        lefts, rights: What they can begin with before a space, and end with after one.
        growing: Those that the matcher makes more tokens of, and how many more.
    """

    def __init__(self, tokenizer: Any) -> None:
        from spacy.symbols import ORTH

        self.texts = frozenset(tokenizer.rules)
        rules = {text: [part[ORTH] for part in parts] for text, parts in tokenizer.rules.items()}
        matched = [text for text in rules if _is_matched(tokenizer, text)]
        plain = without_matcher(tokenizer, {})
        split = {text: tuple(token.text for token in plain(text)) for text in matched}
        self._unmatched = without_matcher(
            tokenizer, {x: y for x, y in tokenizer.rules.items() if " " not in x}
        )
        self._rules, self._matched = rules, set(split.values())
        sizes = {text: len(rules[text]) - len(tokens) for text, tokens in split.items()}
        self.growing = {text: size for text, size in sizes.items() if size > 0}
        # The first token of every special case whose tokens differ from those of its parts.
        self._results = {
            rules[text][0] for text in matched if tuple(rules[text]) != split[text] and rules[text]
        }
        self.patterns: list[Pattern] = sorted(
            {tokens for tokens in split.values() if len(tokens) > 1}
        )
        spaced = {split[text] for text in matched if len(text.split()) > 1}
        self.lefts, self.rights = _ends(self.patterns)
        self._spaced_lefts, self._spaced_rights = _ends(spaced)
        self._inner = {
            tokens[start:end]
            for tokens in self.patterns
            for start in range(1, len(tokens))
            for end in range(start + 1, len(tokens))
        }
        self._first = {tokens[0] for tokens in self.rights | self._inner}
        self._last = {tokens[-1] for tokens in self.lefts | self._inner}
        self._longest = max(map(len, self.patterns), default=1)

    @property
    def sha256(self) -> str:
        """Identifies the special cases: SHA-256 (hex) of the patterns and the results."""
        content = json.dumps([self.patterns, sorted(self._results)])
        return hashlib.sha256(content.encode()).hexdigest()

    def flags(self, chunk: str, words: Sequence[str]) -> int:
        """What a chunk can be part of; words: what the tokenizer makes of it by itself."""
        tokens, changed = words, False
        if not self._results.isdisjoint(words):
            tokens = [token.text for token in self._unmatched(chunk)]
            changed = tokens != list(words)
        flags = 0
        if tokens[-1] in self._last and self._has(tokens, self.lefts, end=True):
            flags |= RIGHT | changed * CHANGED_RIGHT
            if self._has(tokens, self._spaced_lefts, end=True):
                flags |= CHANGED_RIGHT
        if tokens[0] in self._first:
            if self._has(tokens, self.rights, end=False):
                flags |= LEFT | changed * CHANGED_LEFT
                if self._has(tokens, self._spaced_rights, end=False):
                    flags |= CHANGED_LEFT
            if tuple(tokens) in self._inner:
                flags |= RIGHT | LEFT | changed * (CHANGED_RIGHT | CHANGED_LEFT)
        return flags

    def may_crash(self, text: str) -> bool:
        """Whether spaCy's matcher may write beyond its memory.

        It does where special cases add tokens, and later ones take tokens away.
        """
        added = sum(text.count(case) * size for case, size in self.growing.items())
        return added > _ROOM

    def tokens(self, text: str) -> list[tuple[int, str]]:
        """The tokens of a text and where each begins, by a matcher of our own."""
        tokens = [(token.idx, token.text) for token in self._unmatched(text)]
        words = [word for _, word in tokens]
        firsts = {case[0] for case in self._matched}
        matches = [
            (start, start + size)
            for start, word in enumerate(words)
            if word in firsts
            for size in range(1, min(self._longest, len(words) - start) + 1)
            if tuple(words[start : start + size]) in self._matched
        ]
        # The longest match wins, then the first. One that loses takes its tokens from others, too.
        taken: set[int] = set()
        winners: dict[int, int] = {}
        for start, end in sorted(matches, key=lambda match: (match[0] - match[1], match[0])):
            if start not in taken and end - 1 not in taken:
                winners[start] = end
            taken.update(range(start, end))
        results: list[tuple[int, str]] = []
        place = 0
        while place < len(words):
            index, end = tokens[place][0], winners.get(place, place + 1)
            matched = text[index : tokens[end - 1][0] + len(words[end - 1])]
            parts = self._rules.get(matched) if place in winners else None
            if parts is None:
                results += tokens[place:end]
            else:
                results += zip(accumulate(map(len, parts), initial=index), parts, strict=False)
            place = end
        return results

    def _has(self, tokens: Sequence[str], ends: set[Pattern], end: bool) -> bool:
        """Whether the first or the last tokens of a chunk are one of `ends`."""
        lengths = range(1, min(self._longest, len(tokens)) + 1)
        return any(tuple(tokens[-n:] if end else tokens[:n]) in ends for n in lengths)


@lru_cache(maxsize=1)
def load_table() -> dict[str, Any]:
    """The stored table.

    `spacy`: its version. `languages`: the hash of each one's special cases. `simple`: the languages
    in which `simple_words` holds. `bounded`: those in which `cuts` does.
    """
    table: dict[str, Any] = json.loads(TABLE.read_text("utf-8"))
    return table


def proven_sha256(language: str) -> str | None:
    """The hash of the special cases for which the table holds; None with another spaCy."""
    table = load_table()
    return table["languages"].get(language) if table["spacy"] == version("spacy") else None


def _is_matched(tokenizer: Any, text: str) -> bool:
    """Whether the tokenizer's matcher looks for a special case, as spaCy decides it."""
    return bool(
        tokenizer.find_prefix(text)
        or tokenizer.find_infix(text)
        or tokenizer.find_suffix(text)
        or " " in text
    )


def without_matcher(tokenizer: Any, rules: dict[str, Any]) -> Any:
    """The tokenizer with other special cases, and without the matcher."""
    from spacy.tokenizer import Tokenizer

    # spaCy leaves out of the matcher what has no prefix, suffix or infix. So at first nothing has.
    on = False

    def switched(find: Callable[[str], Any] | None, nothing: object) -> Callable[[str], Any] | None:
        return find and (lambda text: find(text) if on else nothing)

    variant = Tokenizer(
        tokenizer.vocab,
        rules=rules,
        prefix_search=switched(tokenizer.prefix_search, None),
        suffix_search=switched(tokenizer.suffix_search, None),
        infix_finditer=switched(tokenizer.infix_finditer, ()),
        token_match=tokenizer.token_match,
        url_match=tokenizer.url_match,
    )
    on = True
    return variant


def _ends(patterns: Iterable[Pattern]) -> tuple[set[Pattern], set[Pattern]]:
    """What patterns can begin with before a space, and what they can end with after one."""
    cut = [(tokens, place) for tokens in patterns for place in range(1, len(tokens))]
    return {tokens[:place] for tokens, place in cut}, {tokens[place:] for tokens, place in cut}
