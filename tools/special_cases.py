"""Derives `special_cases.json`: the languages whose words follow from chunks (special_cases.py).

Run as `python -m tools.special_cases`; it takes minutes. With names of languages as
arguments, only those are derived again. For each language of spaCy, every
beginning of a special case is put before every end of one, with a space between, beside chunks that
the matcher changes, and the words are compared with those of spaCy. A language with a difference
that was not foreseen is left out, and so is one whose words spaCy does not find by rules.
"""

import json
import os
import pkgutil
import string
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.metadata import version
from itertools import product
from typing import Any

from fineshards.curation.words.special_cases import (
    CHANGED_LEFT,
    CHANGED_RIGHT,
    LEFT,
    RIGHT,
    TABLE,
    SpecialCases,
    load_table,
)
from fineshards.curation.words.words import AFTER, BEFORE, REACH, simple_words

# Python's own parser of patterns.
_parser: Any = import_module("re._parser")
# Texts of one call of the tokenizer. Lines do not touch each other.
_TOGETHER = 1000
# Beyond this many texts, those with equal neighbours are thinned out evenly.
LIMIT = 100_000


def languages() -> list[str]:
    """The names of spaCy's languages."""
    import spacy.lang

    return [module.name for module in pkgutil.iter_modules(spacy.lang.__path__) if module.ispkg]


def rule_tokenizer(language: str) -> Any | None:
    """The language's tokenizer if it is spaCy's own, by rules; None if not."""
    import spacy
    from spacy.tokenizer import Tokenizer

    try:
        tokenizer = spacy.blank(language).tokenizer
    except ImportError:
        return None
    return tokenizer if type(tokenizer) is Tokenizer else None


def derive(language: str) -> str | None:
    """The hash of a language's special cases, or None if the words do not follow from chunks."""
    tokenizer = rule_tokenizer(language)
    if tokenizer is None:
        return None
    cases = SpecialCases(tokenizer)
    # White space has tokens too. A special case with one, but the space alone, could cross a line.
    if any(token.isspace() for tokens in cases.patterns for token in tokens):
        return None
    return None if any(unforeseen(tokenizer, cases)) else cases.sha256


def unforeseen(tokenizer: Any, cases: SpecialCases) -> Iterator[str]:
    """Texts whose words are not those of their chunks, although no chunks meet."""
    words_of_chunks: dict[str, tuple[list[str], int]] = {}

    def of_chunk(chunk: str) -> tuple[list[str], int]:
        if chunk not in words_of_chunks:
            words = [token.text for token in tokenizer(chunk)]
            words_of_chunks[chunk] = words, cases.flags(chunk, words)
        return words_of_chunks[chunk]

    for texts in in_groups(meetings(cases)):
        with tokenizer.vocab.memory_zone():
            tokens = [token.text for token in tokenizer("\n".join(texts))]
            words_of_texts = "\x00".join(tokens).split("\x00\n\x00")
            for text, words in zip(texts, words_of_texts, strict=True):
                chunks = [of_chunk(chunk) for chunk in text.split(" ")]
                joined = [word for part, _ in chunks for word in part]
                flags = [flag for _, flag in chunks]
                if words.split("\x00") != joined and not any(map(meet, flags, flags[1:])):
                    yield text


def meet(left: int, right: int) -> bool:
    """Whether a match across the space between two chunks could change words, by their flags."""
    return bool((left & CHANGED_RIGHT and right & LEFT) or (left & RIGHT and right & CHANGED_LEFT))


def is_simple(tokenizer: Any) -> bool:
    """Whether the words of all simple chunks with up to three letters, and some more, hold."""
    texts = set(tokenizer.rules)
    for chunks in in_groups(simple_chunks()):
        with tokenizer.vocab.memory_zone():
            tokens = [token.text for token in tokenizer("\n".join(chunks))]
        words_of_chunks = "\x00".join(tokens).split("\x00\n\x00")
        for chunk, words in zip(chunks, words_of_chunks, strict=True):
            if simple_words(chunk, texts) not in (None, words.split("\x00")):
                return False
    return True


def simple_chunks() -> Iterator[str]:
    """All that spaCy's rules can tell apart: they look at no more than three letters in a row.

    Units, currencies and longer endings are letters after a digit or other characters.
    """
    for length in (1, 2, 3):
        for letters in product(string.ascii_letters, repeat=length):
            word = "".join(letters)
            yield word
            if length < 3:
                yield from (f"{a}{word}{b}" for a in ("", *BEFORE) for b in (".", *AFTER))
    for word in (
        "I",
        "US",
        "km",
        "Pa",
        "word",
        "Word",
        "WORD",
        "wOrD",
        "don",
        "cannot",
        "am",
        "ll",
    ):
        for before in ("", *BEFORE):
            for first in (".", *AFTER):
                yield from (f"{before}{word}{first}{second}" for second in AFTER)


def meetings(cases: SpecialCases) -> Iterator[str]:
    """Texts in which a special case is cut by spaces, beside other special cases."""
    whole = sorted({"".join(tokens) for tokens in cases.patterns})
    lefts, rights = (
        sorted({"".join(tokens) for tokens in ends}) for ends in (cases.lefts, cases.rights)
    )
    step = max(1, len(lefts) * len(rights) * 4 // LIMIT)
    for number, left in enumerate(lefts):
        for right in rights[number % step :: step]:
            yield f"{left} {right}"
            yield f"a({left} {right})"
            yield f"x{whole[number % len(whole)]}{left} {right}"
            yield f"{left} {right}{whole[(number + len(right)) % len(whole)]}y"
    for tokens in cases.patterns[:: max(1, len(cases.patterns) // 500)]:
        for before in whole[:: max(1, len(whole) // 100)]:
            for place in range(1, len(tokens)):
                left, right = "".join(tokens[:place]), "".join(tokens[place:])
                yield f"{before}{left} {right}{before}"
                yield f"({before}{left} {right}"
            yield " ".join(f"{before}{token}" for token in tokens)
            yield before + " ".join(tokens) + before


def in_groups(texts: Iterator[str]) -> Iterator[list[str]]:
    """The texts, some at a time."""
    group: list[str] = []
    for text in texts:
        group.append(text)
        if len(group) == _TOGETHER:
            yield group
            group = []
    if group:
        yield group


def is_bounded(tokenizer: Any) -> bool:
    """Whether no prefix or suffix looks at more than REACH characters, besides a run of points.

    Nor may there be a rule for whole tokens, which looks at all that is left.
    """
    if tokenizer.token_match:
        return False
    prefixes = tokenizer.prefix_search.__self__.pattern.replace(r"^\.\.+", r"^\.\.")
    suffixes = tokenizer.suffix_search.__self__.pattern.replace(r"\.\.+$", r"\.\.$")
    return all(reach(_parser.parse(pattern)) <= REACH for pattern in (prefixes, suffixes))


def reach(pattern: Any) -> int:
    """The most characters that a pattern of the module `re` takes, or looks at around them."""
    return int(pattern.getwidth()[1]) + around(pattern)


def around(pattern: Any) -> int:
    """The most characters that a pattern looks at beyond those that it takes."""
    widths = [0]
    for operation, value in pattern:
        name = str(operation)
        if name in ("ASSERT", "ASSERT_NOT"):
            widths.append(reach(value[1]))
        elif name == "BRANCH":
            widths += map(around, value[1])
        elif name == "SUBPATTERN":
            widths.append(around(value[3]))
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            widths.append(around(value[2]))
        elif name == "AT" and str(value) not in ("AT_BEGINNING", "AT_END"):
            widths.append(1)
    return max(widths)


def main(names: list[str]) -> None:
    """Derives the named languages, or all, and writes the table after each."""
    proven, simple = {}, set()
    if names and TABLE.exists():
        proven, simple = dict(load_table()["languages"]), set(load_table()["simple"])
    if proven and load_table()["spacy"] != version("spacy"):
        sys.exit(f"the table was derived with spaCy {load_table()['spacy']}: derive all again")
    names = names or languages()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, sha256 in zip(names, pool.map(derive, names), strict=True):
            print(f"{name}: {'proven' if sha256 else 'no'}", flush=True)
            proven.pop(name, None)
            proven |= {name: sha256} if sha256 else {}
            simple = simple - {name} | (
                {name} if sha256 and is_simple(rule_tokenizer(name)) else set()
            )
            content = {
                "spacy": version("spacy"),
                "simple": sorted(simple),
                "bounded": [x for x in sorted(proven) if is_bounded(rule_tokenizer(x))],
                "languages": dict(sorted(proven.items())),
            }
            TABLE.write_text(json.dumps(content) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
