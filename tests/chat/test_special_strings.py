"""Special strings are found as tokenizers find them, and marked wherever content could have one."""

from __future__ import annotations

import doctest
import re

from hypothesis import given
from hypothesis import strategies as st

from fineshards.chat import special_strings
from fineshards.chat.conversation import CONTENT
from fineshards.chat.special_strings import SpecialStrings

STRINGS = ["<s>", "</s>", "<s", "ab", "bc", "[x]", "x", *(f"<|reserved_{n}|>" for n in range(30))]
PIECES = st.sampled_from([*STRINGS, "<", "s", ">", "a", "b", "c", "<|reserved_1", "|", "\n", "é"])


def test_examples() -> None:
    assert doctest.testmod(special_strings).failed == 0


@given(st.lists(PIECES, max_size=8).map("".join))
def test_marks_and_matches_are_those_of_a_plain_search(text: str) -> None:
    found = SpecialStrings(STRINGS)
    longest_first = sorted(STRINGS, key=len, reverse=True)
    assert found.written.findall(text) == re.findall("|".join(map(re.escape, longest_first)), text)
    begun = {string[:length] for string in STRINGS for length in range(1, len(string))}
    marked = "".join(
        CONTENT + character
        if text.startswith(tuple(STRINGS), place) or text[place:] in begun
        else character
        for place, character in enumerate(text)
    )
    assert found.marked({text: [text, None, 1]}) == {marked: [marked, None, 1]}
    assert found.written.findall(marked) == []


def test_a_tokenizer_without_special_strings_has_none() -> None:
    found = SpecialStrings([])
    assert (found.marked("<s>"), found.written.findall("<s>")) == ("<s>", [])
