"""Special strings are found as tokenizers find them, and marked wherever content could have one."""

import doctest
import re

from hypothesis import given
from hypothesis import strategies as st

from fineshards.chat import rendering
from fineshards.chat.conversation import CONTENT, HIDDEN
from fineshards.chat.rendering import SpecialStrings, characters

STRINGS = ["<s>", "</s>", "<s", "ab", "bc", "[x]", "x", *(f"<|reserved_{n}|>" for n in range(30))]
PIECES = st.sampled_from([*STRINGS, "<", "s", ">", "a", "b", "c", "<|reserved_1", "|", "\n", "é"])


def test_examples() -> None:
    assert doctest.testmod(rendering).failed == 0


@given(st.lists(PIECES, max_size=8).map("".join))
def test_marks_and_names_are_those_of_a_plain_search(text: str) -> None:
    names = {string: HIDDEN + chr(0x100000 + number) for number, string in enumerate(STRINGS)}
    found = SpecialStrings(names)
    longest_first = "|".join(map(re.escape, sorted(STRINGS, key=len, reverse=True)))
    hidden = re.sub(longest_first, lambda part: names[part[0]], text)
    assert (found.hidden(text), found.shown(hidden)) == (hidden, text)
    assert found.written(text) == {*re.findall(longest_first, text)}
    marked = "".join(
        CONTENT + character if text.startswith(tuple(STRINGS), place) else character
        for place, character in enumerate(text)
    )
    assert found.marked({text: [text, None, 1]}, found.whole) == {marked: [marked, None, 1]}
    assert found.marked({text: text}, found.whole, {text}) == {text: marked}
    assert (found.written(marked), found.shown(marked)) == (set(), text)
    everywhere = re.sub("(?=[<s])", CONTENT, text)
    assert found.marked(text, characters({"<s", "s"})) == everywhere


def test_a_tokenizer_without_special_strings_has_none() -> None:
    found = SpecialStrings({})
    assert (found.hidden("<s>"), found.written("<s>")) == ("<s>", set())
