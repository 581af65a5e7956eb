"""Tells special strings that a template writes from those in what people and models wrote.

In the template's own text each is given its hidden name before anything is rendered. So whatever
else a rendered conversation holds is ordinary text.

Some templates write special strings in pieces, such as `<|` and `|>` around a role. To tell these,
CONTENT is put into the conversation, before each character that could be a part of one. Special
strings without it are the template's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fineshards.chat.conversation import BEGIN, CONTENT, END, HIDDEN

_MARKS = re.compile(f"[{CONTENT}{BEGIN}{END}]")
_NAME = re.compile(f"{HIDDEN}.", re.DOTALL)


class SpecialStrings:
    """The special strings of a tokenizer.

    names: their hidden names. whole: matches where one begins.

    Example:
        >>> strings = SpecialStrings({"<s>": "1", "</s>": "2"})
        >>> marked = strings.marked({"role": "<s>user"}, strings.whole)["role"]
        >>> marked.replace(CONTENT, "*"), strings.hidden(marked + "</s>").replace(CONTENT, "*")
        ('*<s>user', '*<s>user2')
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        tree: _Tree = {}
        for text in names:
            node = tree
            for character in text:
                node = node.setdefault(character, {})
            node[""] = {}
        self._names, self._strings = names, {name: text for text, name in names.items()}
        self.whole = re.compile(f"(?={_longest(tree)})")
        self._written = re.compile(f"(?<!{CONTENT}){_longest(tree)}")

    def hidden(self, text: str) -> str:
        """A text with hidden names for all special strings without CONTENT."""
        return self._written.sub(lambda found: self._names[found[0]], text)

    def shown(self, text: str) -> str:
        """A text without marks and hidden names."""
        return _NAME.sub(lambda found: self._strings[found[0]], _MARKS.sub("", text))

    def written(self, text: str) -> set[str]:
        """The special strings without CONTENT that have no hidden names."""
        return {*self._written.findall(text)}

    def marked(self, value: Any, places: re.Pattern[str], known: Collection[str] = ()) -> Any:
        """A value of JSON with CONTENT at places of its texts and keys, but not of known keys."""
        if isinstance(value, str):
            return places.sub(CONTENT, value)
        if isinstance(value, dict):
            return {
                key if key in known else places.sub(CONTENT, key): self.marked(each, places, known)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self.marked(each, places, known) for each in value]
        return value


def characters(strings: Iterable[str]) -> re.Pattern[str]:
    """Matches before each character that is in one of the strings."""
    return re.compile(f"(?=[{re.escape(''.join(sorted({*''.join(strings)})))}])")


# The next characters of strings with the same beginning; "" where one of them ends.
_Tree = dict[str, "_Tree"]


def _longest(tree: _Tree) -> str:
    """A pattern of the strings of a tree, which matches the longest, as tokenizers do.

    A list of all strings would be tried one by one, and some tokenizers have a thousand.
    """
    found = [re.escape(character) + _longest(tree[character]) for character in tree if character]
    if "" in tree:
        return f"(?:{'|'.join([*found, ''])})" if found else ""
    return f"(?:{'|'.join(found)})" if found else "(?!)"
