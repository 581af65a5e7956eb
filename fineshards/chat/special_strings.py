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
        # The longest first, as tokenizers match.
        longest = sorted(strings, key=len, reverse=True)
        whole = "|".join(map(re.escape, longest)) or "(?!)"
        begun = {text[:length] for text in longest for length in range(1, len(text))}
        partly = "|".join(map(re.escape, sorted(begun))) or "(?!)"
        self._in_content = re.compile(f"(?={whole}|(?:{partly})\\Z)")
        self.written = re.compile(f"(?<!{CONTENT})(?:{whole})")

    def marked(self, value: Any) -> Any:
        """A value of JSON with CONTENT before each special string in its texts and keys."""
        if isinstance(value, str):
            return self._in_content.sub(CONTENT, value)
        if isinstance(value, dict):
            return {self.marked(key): self.marked(each) for key, each in value.items()}
        if isinstance(value, list):
            return [*map(self.marked, value)]
        return value
