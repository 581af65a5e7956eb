"""Encodes conversations: the tokens of a chat template, and which of them are learned.

The tokens are those of transformers' `apply_chat_template`, except that only the template and the
usual names of roles make special tokens. All else that people and models wrote is ordinary text.

Learned are the turns of some roles. If these are the assistant's alone and the template has
`{% generation %}`, it says what is learned. Otherwise a turn is learned from the end of its header
to its last special token: the header ends where the template asks for an answer, or, of other
roles, where the content begins. For this the beginning of the conversation is rendered alone, and
must be the beginning of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import orjson

from fineshards.chat.chat_template import ChatTemplate
from fineshards.chat.conversation import BEGIN, CONTENT, END, HIDDEN, BadConversation
from fineshards.chat.placed_tokens import EncodedConversation, Rendered, hidden_names, text_encoder
from fineshards.chat.rendering import Renderer, SpecialStrings, characters
from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.encoders.vocabulary import Vocabulary

_ASSISTANT = "assistant"
_MARK = re.compile(f"([{CONTENT}{BEGIN}{END}])")
# Templates write special strings such as <|user|> around them.
_ROLES = {"system", "developer", "user", _ASSISTANT, "tool", "function", "observation"}
_MOVES = "the chat template moves what it marks as learned"
_From = TypeVar("_From")
_To = TypeVar("_To")
_Messages = Sequence[Mapping[str, Any]]


class ConversationEncoder:
    """Encodes the conversations of a dataset. Threads can share one.

    learn: the roles whose turns are learned. fast: whether gigatoken may encode, where it is exact.
    Raises UsageError for a template or a tokenizer that cannot be used.
    """

    def __init__(
        self,
        template: ChatTemplate,
        vocabulary: Vocabulary | TokenizerJson,
        learn: tuple[str, ...],
        fast: bool = False,
    ) -> None:
        self.eot, self._eot_text = vocabulary.eot, vocabulary.eot_text
        self._special = SpecialStrings(hidden_names(vocabulary))
        self._texts = text_encoder(vocabulary, fast)
        self.is_fast = self._texts.is_fast
        strings = dict(template.special_strings)
        self._plain = Renderer(template.text, strings)
        self._renderer = Renderer(template.text, strings, self._special.hidden)
        self._learn = learn
        self._by_tags = self._renderer.has_generation and learn == (_ASSISTANT,)

    def encode(self, conversation: str) -> EncodedConversation:
        """The tokens of a conversation, given as canonical JSON.

        Raises BadConversation if the template refuses it, or does not show what is learned.
        """
        [found] = self.encode_all([conversation])
        if isinstance(found, BadConversation):
            raise found
        return found

    def encode_all(
        self, conversations: Sequence[str]
    ) -> list[EncodedConversation | BadConversation]:
        """As `encode`, of many at once, which is faster; those that are refused are not raised."""
        rendered = [_or_refused(self._rendered, each) for each in conversations]
        given = [each for each in rendered if isinstance(each, Rendered)]
        encoded = iter(self._texts.encode(given))
        found = [next(encoded) if isinstance(each, Rendered) else each for each in rendered]
        return [
            each if isinstance(each, BadConversation) else _or_refused(self._after_eot, each)
            for each in found
        ]

    def _rendered(self, conversation: str) -> Rendered:
        found = orjson.loads(conversation)
        messages, tools = found["messages"], found.get("tools")
        plain = self._plain.render(messages, tools)
        rendered = self._renderer.render(messages, tools, generation=self._by_tags)
        if self._special.shown(rendered) != plain:
            raise BadConversation(
                "the chat template writes other text where it looks for special strings, or where "
                "it marks what is learned"
            )
        if strings := self._special.written(rendered):
            messages, tools, rendered = self._told_apart(found, plain, strings)
            rendered = self._special.hidden(rendered)
        if not self._by_tags:
            rendered = self._with_marks(rendered, messages, tools)
        return self._parts(rendered)

    def _told_apart(
        self, found: dict[str, Any], plain: str, strings: set[str]
    ) -> tuple[_Messages, Any, str]:
        """Messages and tools with CONTENT, and rendered; special strings without it are special.

        strings: those that are not whole in the template's text.
        """
        # Marks at whole strings disturb few templates; those at all characters leave no doubt.
        for places, is_sure in ((self._special.whole, False), (characters(strings), True)):
            messages, tools = (
                self._special.marked(found.get(key), places, self._renderer.words)
                for key in ("messages", "tools")
            )
            for message, given in zip(messages, found["messages"], strict=True):
                if given["role"] in _ROLES:
                    message["role"] = given["role"]
            rendered = _or_refused(
                lambda view: self._renderer.render(*view, generation=self._by_tags),
                (messages, tools),
            )
            if isinstance(rendered, BadConversation) or self._special.shown(rendered) != plain:
                continue
            if is_sure or not self._special.written(rendered):
                return messages, tools, rendered
        raise BadConversation(
            f"the chat template writes {', '.join(sorted(strings))} in pieces, and some may be "
            "content. Write special strings whole in the template"
        )

    def _parts(self, rendered: str) -> Rendered:
        """A rendered text with hidden names, and the ranges that BEGIN and END enclose."""
        pieces: list[str] = []
        parts: list[tuple[int, int]] = []
        begins: list[int] = []
        at = 0
        for piece in _MARK.split(rendered):
            if piece == BEGIN:
                begins.append(at)
            elif piece == END and begins:
                parts.append((begins.pop(), at))
            elif piece == END:
                raise BadConversation(_MOVES)
            elif piece != CONTENT:
                pieces.append(piece)
                at += len(piece)
        if begins:
            raise BadConversation(_MOVES)
        # Of parts within each other, the inner ones end first.
        return Rendered("".join(pieces), sorted(parts))

    def _with_marks(self, rendered: str, messages: _Messages, tools: Any) -> str:
        """A rendered text with BEGIN and END around what is learned, found by its beginnings."""
        pieces, at = [], 0
        for begin, end in self._turns(rendered, messages, tools):
            begin = max(begin, at)
            pieces += [rendered[at:begin], BEGIN, rendered[begin:end], END]
            at = end
        return "".join([*pieces, rendered[at:]])

    def _turns(self, whole: str, messages: _Messages, tools: Any) -> Iterator[tuple[int, int]]:
        for number, message in enumerate(messages):
            role = message["role"].replace(CONTENT, "")
            if role not in self._learn:
                continue
            if role == _ASSISTANT:
                before = self._beginning(messages[:number], tools, prompt=True)
            else:
                before = self._until_content(messages[: number + 1], tools, role)
            after = self._beginning(messages[: number + 1], tools)
            if not whole.startswith(before) or not whole.startswith(after):
                raise BadConversation(
                    f"message {number + 1} ({role}): the chat template renders the conversation "
                    "up to it differently as part of the whole. Mark what is learned in the "
                    "template with {% generation %}"
                )
            end = self._end(after, len(before))
            if end > len(before):
                yield len(before), end

    def _beginning(self, messages: _Messages, tools: Any, prompt: bool = False) -> str:
        return self._special.hidden(self._renderer.render(messages, tools, prompt=prompt))

    def _until_content(self, messages: _Messages, tools: Any, role: str) -> str:
        """What is rendered before the content of the last message."""
        last = {**messages[-1], "content": BEGIN}
        before, found, _ = self._beginning([*messages[:-1], last], tools).partition(BEGIN)
        if not found:
            raise BadConversation(
                f"message {len(messages)} ({role}): the chat template does not write its content, "
                "so it cannot be learned"
            )
        return before

    def _end(self, text: str, begin: int) -> int:
        """Where a turn ends: after its last special token, if only whitespace follows."""
        # A hidden name has two characters.
        end = text.rfind(HIDDEN, begin) + 2
        return end if end > 1 and not text[end:].strip() else len(text)

    def _after_eot(self, encoded: EncodedConversation) -> EncodedConversation:
        """Without the EOT that the template begins with; the dataset's stands for it."""
        tokens, learned = encoded
        if len(tokens) and tokens[0] == self.eot:
            tokens, learned = tokens[1:], np.maximum(learned - 1, 0)
            learned = learned[learned[:, 1] > learned[:, 0]]
        if (tokens == self.eot).any():
            raise BadConversation(
                f"the chat template writes {self._eot_text}, the token that begins documents, "
                "inside the conversation. Choose another with --eot_token"
            )
        return EncodedConversation(tokens, learned.astype(np.int32))


def _or_refused(make: Callable[[_From], _To], given: _From) -> _To | BadConversation:
    try:
        return make(given)
    except BadConversation as error:
        return error
