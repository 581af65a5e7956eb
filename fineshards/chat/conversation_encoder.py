"""Encodes conversations: the tokens of a chat template, and which of them are learned.

The tokens are those of transformers' `apply_chat_template`, except that only the template and the
usual names of roles make special tokens. All else that people and models wrote is ordinary text.

Learned are the turns of some roles. If these are the assistant's alone and the template has
`{% generation %}`, it says what is learned. Otherwise a turn is learned from the end of its header
to its last special token: the header ends where the template asks for an answer, or, of other
roles, where the content begins. For this the beginning of the conversation is rendered alone, and
must be the beginning of the whole.

A message with `weight: 0` or `train: false` is not learned. To see whose text a part holds, the
texts of all messages are rendered between marks, which must change nothing else. A part is learned
if it has text of messages that are learned, and is not if it has text of others; one that has both
or neither leaves doubt, and the conversation is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from fineshards.chat.chat_template import ChatTemplate
from fineshards.chat.conversation import (
    BEGIN,
    CONTENT,
    END,
    HIDDEN,
    LEARNED,
    UNLEARNED,
    BadConversation,
    between_marks,
    canonical,
    says_not_to_learn,
)
from fineshards.chat.placed_tokens import EncodedConversation, Rendered, hidden_names, text_encoder
from fineshards.chat.rendering import Renderer, SpecialStrings, characters
from fineshards.encoders.checked_encoder import GOLDEN_TEXTS
from fineshards.encoders.encoder import Encoder, TokenBatch, learned_lists
from fineshards.encoders.loading import encoder_of_vocabulary
from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.encoders.vocabulary import Vocabulary

_ASSISTANT = "assistant"
_MARK = re.compile(f"([{CONTENT}{BEGIN}{END}{LEARNED}{UNLEARNED}])")
_OWNER = re.compile(f"[{LEARNED}{UNLEARNED}]")
# Templates write special strings such as <|user|> around them.
_ROLES = {"system", "developer", "user", _ASSISTANT, "tool", "function", "observation"}
_MOVES = "the chat template moves what it marks as learned"
_IN_DOUBT = (
    "the chat template does not show which text is of messages with weight 0 or train false. "
    "Enclose each answer in {% generation %}"
)
_Messages = Sequence[Mapping[str, Any]]
_NO_DOCUMENT = EncodedConversation(np.empty(0, np.uint32), np.empty((0, 2), np.int32))

# Golden conversations, which show whether a worker encodes conversations as the launch did.
_TURNS = [
    {"role": ("user", "assistant")[number % 2], "content": text}
    for number, text in enumerate(GOLDEN_TEXTS)
]
_TOOL = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
_CALL = {"type": "function", "function": {"name": "add", "arguments": {"b": 2, "a": "1<2 & é"}}}
_ANSWER = {"role": "tool", "name": "add", "content": '{"sum": 3}'}
_GOLDEN: tuple[dict[str, object], ...] = (
    {"messages": _TURNS},
    {"messages": [{"role": "system", "content": " Be brief.\n"}, *_TURNS[2:4]]},
    {
        "messages": [
            _TURNS[2],
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            _ANSWER,
            _TURNS[3],
        ],
        "tools": [{"type": "function", "function": _TOOL}],
    },
)


class ConversationEncoder(Encoder):
    """Encodes the canonical JSON of conversations, each after the EOT. Threads can share one.

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
        self._eot, self._eot_text = vocabulary.eot, vocabulary.eot_text
        self._special = SpecialStrings(hidden_names(vocabulary))
        self._texts = text_encoder(vocabulary, fast)
        is_fast = self._texts.is_fast
        self._reference = ConversationEncoder(template, vocabulary, learn) if is_fast else self
        self._decoder = encoder_of_vocabulary(vocabulary)
        self.name = self._decoder.name
        strings = dict(template.special_strings)
        self._plain = Renderer(template.text, strings)
        self._renderer = Renderer(template.text, strings, self._special.hidden)
        self._learn = learn
        self._by_tags = self._renderer.has_generation and learn == (_ASSISTANT,)

    @property
    def reference(self) -> ConversationEncoder:
        return self._reference

    def encode(self, texts: pa.Array) -> TokenBatch:
        """See Encoder. A conversation is refused if its template does so, or hides what is learned.

        One that is refused has no tokens, not even an EOT.
        """
        rendered: dict[int, Rendered] = {}
        refused: dict[int, str] = {}
        documents = [_NO_DOCUMENT] * len(texts)
        for index, text in enumerate(texts.to_pylist()):
            try:
                rendered[index] = self._rendered(text)
            except BadConversation as error:
                refused[index] = error.reason
        encoded = self._texts.encode([*rendered.values()])
        for index, conversation in zip(rendered, encoded, strict=True):
            try:
                documents[index] = self._after_eot(conversation)
            except BadConversation as error:
                refused[index] = error.reason
        return TokenBatch(
            np.concatenate([_NO_DOCUMENT.tokens, *(each.tokens for each in documents)]),
            np.cumsum([0, *(len(each.tokens) for each in documents)], dtype=np.int64),
            by_reference=len(texts) - len(refused) if self._reference is self else 0,
            learned=learned_lists([each.learned for each in documents]),
            refused=tuple(sorted(refused.items())),
        )

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        return self._decoder.decode(tokens)

    def golden(self) -> tuple[str, set[int]]:
        """SHA-256, as hex, of the golden conversations' tokens and learned ranges; last tokens.

        It is in the job's fingerprint: a worker with another version of jinja2, or of the
        tokenizer's library, may differ, and stops. A template may refuse some; then all workers do.
        """
        digest, last_tokens = hashlib.sha256(), set[int]()
        batch = self.encode(pa.array(map(canonical, _GOLDEN), pa.large_string()))
        assert batch.learned is not None
        for index in range(len(_GOLDEN)):
            # Without the EOT, which is not the template's.
            tokens = batch.document(index)[1:]
            learned = np.array(batch.learned[index].as_py(), "<i4").reshape(-1, 2) - 1
            if index in dict(batch.refused):
                digest.update(b"refused")
                continue
            digest.update(len(tokens).to_bytes(8, "little") + tokens.astype("<u4").tobytes())
            digest.update(learned.astype("<i4").tobytes())
            last_tokens.update(tokens[learned[:, 1] - 1].tolist())
        return digest.hexdigest(), last_tokens

    def _rendered(self, conversation: str) -> Rendered:
        row = orjson.loads(conversation)
        messages, tools = row["messages"], row.get("tools")
        unlearned = [*map(says_not_to_learn, messages)]
        is_learned = [
            message["role"] in self._learn and not refuses
            for message, refuses in zip(messages, unlearned, strict=True)
        ]
        plain = self._plain.render(messages, tools)
        rendered = self._renderer.render(messages, tools, generation=self._by_tags)
        if self._special.shown(rendered) != plain:
            raise BadConversation(
                "the chat template writes other text where it looks for special strings, or where "
                "it marks what is learned"
            )
        if strings := self._special.written(rendered):
            messages, tools, rendered = self._told_apart(row, plain, strings)
            rendered = self._special.hidden(rendered)
        if any(unlearned):
            messages = [
                between_marks(message, UNLEARNED if refuses else LEARNED)
                for message, refuses in zip(messages, unlearned, strict=True)
            ]
            rendered = self._owned(messages, tools, rendered)
        if not self._by_tags:
            rendered = self._with_marks(rendered, messages, tools, is_learned)
        return self._parts(rendered, any(unlearned))

    def _owned(self, messages: _Messages, tools: Any, rendered: str) -> str:
        """What is rendered, with the marks of messages around their texts."""
        with suppress(BadConversation):
            text = self._renderer.render(messages, tools, generation=self._by_tags)
            text = self._special.hidden(text)
            if _OWNER.sub("", text) == rendered:
                return text
        raise BadConversation(_IN_DOUBT)

    def _told_apart(
        self, row: dict[str, Any], plain: str, strings: set[str]
    ) -> tuple[_Messages, Any, str]:
        """Messages and tools with CONTENT, and rendered; special strings without it are special.

        strings: those that are not whole in the template's text.
        """
        # Marks at whole strings disturb few templates; those at all characters leave no doubt.
        for places, is_sure in ((self._special.whole, False), (characters(strings), True)):
            messages, tools = (
                self._special.marked(row.get(key), places, self._renderer.words)
                for key in ("messages", "tools")
            )
            for message, given in zip(messages, row["messages"], strict=True):
                if given["role"] in _ROLES:
                    message["role"] = given["role"]
            with suppress(BadConversation):
                rendered = self._renderer.render(messages, tools, generation=self._by_tags)
                is_same = self._special.shown(rendered) == plain
                if is_same and (is_sure or not self._special.written(rendered)):
                    return messages, tools, rendered
        raise BadConversation(
            f"the chat template writes {', '.join(sorted(strings))} in pieces, and some may be "
            "content. Write special strings whole in the template"
        )

    def _parts(self, rendered: str, has_owners: bool) -> Rendered:
        """A rendered text with hidden names, and the ranges of it that are learned.

        BEGIN and END enclose them. has_owners: whether only those of messages that are learned.
        """
        pieces: list[str] = []
        parts: list[tuple[int, int]] = []
        open_parts: list[tuple[int, set[str]]] = []
        at = 0
        for piece in _MARK.split(rendered):
            if piece == BEGIN:
                open_parts.append((at, set()))
            elif piece == END:
                if not open_parts:
                    raise BadConversation(_MOVES)
                begin, owners = open_parts.pop()
                if has_owners and len(owners) != 1:
                    raise BadConversation(_IN_DOUBT)
                if UNLEARNED not in owners:
                    parts.append((begin, at))
            elif piece in (LEARNED, UNLEARNED):
                for _, owners in open_parts:
                    owners.add(piece)
            elif piece != CONTENT:
                pieces.append(piece)
                at += len(piece)
        if open_parts:
            raise BadConversation(_MOVES)
        # Of parts within each other, the inner ones end first.
        return Rendered("".join(pieces), sorted(parts))

    def _with_marks(
        self, rendered: str, messages: _Messages, tools: Any, is_learned: Sequence[bool]
    ) -> str:
        """A rendered text with BEGIN and END around what is learned, found by its beginnings."""
        pieces, at = [], 0
        for begin, end in self._turns(rendered, messages, tools, is_learned):
            begin = max(begin, at)
            pieces += [rendered[at:begin], BEGIN, rendered[begin:end], END]
            at = end
        return "".join([*pieces, rendered[at:]])

    def _turns(
        self, whole: str, messages: _Messages, tools: Any, is_learned: Sequence[bool]
    ) -> Iterator[tuple[int, int]]:
        for number in np.flatnonzero(is_learned).tolist():
            role = messages[number]["role"].replace(CONTENT, "")
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

    def _after_eot(self, encoded: EncodedConversation | BadConversation) -> EncodedConversation:
        """With the dataset's EOT first, which also stands for one that the template begins with."""
        if isinstance(encoded, BadConversation):
            raise encoded
        tokens, learned = encoded
        if not len(tokens) or tokens[0] != self._eot:
            tokens, learned = np.insert(tokens, 0, self._eot), learned + np.int32(1)
        if (tokens[1:] == self._eot).any():
            raise BadConversation(
                f"the chat template writes {self._eot_text}, the token that begins documents, "
                "inside the conversation. Choose another with --eot_token"
            )
        learned = np.maximum(learned, np.int32(1))
        return EncodedConversation(tokens, learned[learned[:, 1] > learned[:, 0]])
