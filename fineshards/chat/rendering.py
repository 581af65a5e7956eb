"""Renders conversations by a Jinja template as transformers does, without a clock or chance.

The template sees `messages`, `tools`, `documents`, `add_generation_prompt` and the tokenizer's
special strings. Around what `{% generation %}` encloses it writes BEGIN and END.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fineshards.chat.conversation import BEGIN, CONTENT, END, HIDDEN_NAME, THINKING, BadConversation
from fineshards.errors import UsageError

_MARKS = re.compile(f"[{CONTENT}{BEGIN}{END}]")


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
        return self._written.sub(lambda string: self._names[string[0]], text)

    def shown(self, text: str) -> str:
        """A text without marks and hidden names."""
        return HIDDEN_NAME.sub(lambda name: self._strings[name[0]], _MARKS.sub("", text))

    def written(self, text: str) -> set[str]:
        """The special strings without CONTENT that have no hidden names."""
        return {*self._written.findall(text)}

    def marked(self, value: Any, places: re.Pattern[str], words: Collection[str] = ()) -> Any:
        """JSON with CONTENT at places of its texts, and of keys that are not among the words."""
        if isinstance(value, str):
            return places.sub(CONTENT, value)
        if isinstance(value, dict):
            return {
                key if key in words else places.sub(CONTENT, key): self.marked(field, places, words)
                for key, field in value.items()
            }
        if isinstance(value, list):
            return [self.marked(item, places, words) for item in value]
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
    patterns = [re.escape(character) + _longest(tree[character]) for character in tree if character]
    if "" in tree:
        return f"(?:{'|'.join([*patterns, ''])})" if patterns else ""
    return f"(?:{'|'.join(patterns)})" if patterns else "(?!)"


_BEGIN, _END = "generation_begins", "generation_ends"


class _Generation(Extension):
    """{% generation %}...{% endgeneration %}: what the model writes."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Its body, between two variables."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        begin, end = (nodes.Output([nodes.Name(name, "load")]) for name in (_BEGIN, _END))
        # Variables that are set inside do not exist outside.
        return [node.set_lineno(line) for node in (begin, nodes.Scope(body), end)]


class Renderer:
    """A compiled template.

    special_strings: bos_token, eos_token and others, by name. hidden: makes another text of each
    that the template itself has. Raises UsageError if the template is not one, or depends on a
    clock.

    Example:
        >>> Renderer("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"}).render(
        ...     [{"role": "user", "content": "Hi"}], None
        ... )
        '<s>Hi'
    """

    def __init__(
        self,
        template: str,
        special_strings: Mapping[str, str],
        hidden: Callable[[str], str] = str,
    ) -> None:
        self._strings = {name: hidden(text) for name, text in special_strings.items()}
        environment = _environment()
        try:
            parsed = environment.parse(template)
            # Names of fields that are asked for, and the template's other words, changed if hidden.
            self.words = {field.attr for field in parsed.find_all(nodes.Getattr)}
            self.words.update(("role", *THINKING))
            for text in parsed.find_all(nodes.TemplateData):
                text.data = hidden(text.data)
            for const in parsed.find_all(nodes.Const):
                if isinstance(const.value, str):
                    const.value = hidden(const.value)
                    self.words.add(const.value)
            self._template = environment.from_string(parsed)
        except TemplateError as error:
            raise UsageError(f"--chat_template: not a template of Jinja ({error}).") from error
        # Whether it says what the model writes.
        self.has_generation = any(name.name == _BEGIN for name in parsed.find_all(nodes.Name))
        if _asks_for_the_time(parsed):
            raise UsageError(
                "--chat_template: the template asks for the time (strftime_now), so a dataset "
                "would depend on the day. Give a copy that has a fixed date instead."
            )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Any,
        *,
        prompt: bool = False,
        generation: bool = False,
    ) -> str:
        """The text of a conversation.

        prompt: whether the header of the next answer follows. generation: whether BEGIN and END
        enclose what is in the tags.

        Raises BadConversation if the template refuses it.
        """
        marks = (BEGIN, END) if generation else ("", "")
        try:
            return self._template.render(
                self._strings,
                messages=[*map(_with_reasoning, messages)],
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                **dict(zip((_BEGIN, _END), marks, strict=True)),
            )
        # Whatever a program in Jinja may raise.
        except Exception as error:
            raise BadConversation(f"the chat template refuses it ({error})") from error


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    reasoning = next((message[key] for key in THINKING if message.get(key) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


@lru_cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = _refuse
    # They would make other data each time.
    del environment.filters["random"], environment.globals["lipsum"]
    return environment


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own would escape what has a meaning in HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _asks_for_the_time(template: nodes.Template) -> bool:
    """Whether it calls `strftime_now` without asking first whether it is defined."""
    clock = nodes.Name("strftime_now", "load")
    tests = (test for test in template.find_all(nodes.Test) if test.name == "defined")
    asks = any(test.node == clock for test in tests)
    return not asks and any(call.node == clock for call in template.find_all(nodes.Call))
