"""Tells special strings that a template writes from those in what people and models wrote.

Before a conversation is rendered, CONTENT is put before each special string in it, and before what
could become one with the text that follows. In the rendered text, special strings without it are
the template's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fineshards.chat.conversation import CONTENT

_END = r"\Z"


class SpecialStrings:
    """The special strings of a tokenizer.

    written: matches one that a template has written.

    Example:
        >>> strings = SpecialStrings(["<s>", "</s>"])
        >>> marked = strings.marked({"role": "user", "content": "<s> <"})["content"]
        >>> marked.replace(CONTENT, "*"), strings.written.findall("<s>" + marked + "s></s>")
        ('*<s> *<', ['<s>', '</s>'])
    """

    def __init__(self, strings: Iterable[str]) -> None:
        tree: _Tree = {}
        for text in strings:
            node = tree
            for character in text:
                node = node.setdefault(character, {})
            node[""] = {}
        self._in_content = re.compile(f"(?={_begun(tree)})")
        self.written = re.compile(f"(?<!{CONTENT}){_longest(tree)}")

    def marked(self, value: Any) -> Any:
        """A value of JSON with CONTENT before each special string in its texts and keys."""
        if isinstance(value, str):
            return self._in_content.sub(CONTENT, value)
        if isinstance(value, dict):
            return {self.marked(key): self.marked(each) for key, each in value.items()}
        if isinstance(value, list):
            return [*map(self.marked, value)]
        return value


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


def _begun(tree: _Tree, start: bool = True) -> str:
    """A pattern of one of the strings, or of the beginning of one at the end of a text."""
    if "" in tree:
        return ""
    found = [re.escape(character) + _begun(tree[character], False) for character in tree]
    return f"(?:{'|'.join(found if start else [*found, _END])})" if found else "(?!)"
