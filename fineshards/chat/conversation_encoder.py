"""Encodes conversations: the tokens of a chat template, and which of them are learned.

The tokens are those of transformers' `apply_chat_template`, except that only the template and the
usual names of roles make special tokens. All else that people and models wrote is ordinary text.

Learned are the turns of some roles. If these are the assistant's alone and the template has
`{% generation %}`, it says what is learned. Otherwise a turn is learned from the end of its header
to its last special token: the header ends where the template asks for an answer, or, of other
roles, where the content begins.

To find a turn, the conversation is rendered up to its header and up to its end, with the number of
each message around its texts. What follows the last text there must follow the same text in the
whole: what is before may differ, because many templates leave out the thoughts of earlier answers.
A turn has all text of its message, and none of others.

The numbers also show whose text a part in `{% generation %}` has: it is learned if it has text of
messages that are, and is not if it has text of those with `weight: 0` or `train: false`. One with
both or neither leaves doubt, and the conversation is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from fineshards.chat.chat_template import ChatTemplate
from fineshards.chat.conversation import (
    ALL_TEXTS,
    ASSISTANT,
    BEGIN,
    CONTENT,
    END,
    HIDDEN_NAME,
    OWNER,
    TEXT,
    TEXT_END,
    BadConversation,
    canonical,
    says_not_to_learn,
    with_owner,
)
from fineshards.chat.placed_tokens import EncodedConversation, Rendered, hidden_names, text_encoder
from fineshards.chat.rendering import Renderer, SpecialStrings, characters
from fineshards.encoders.checked_encoder import GOLDEN_TEXTS
from fineshards.encoders.encoder import Encoder, TokenBatch, learned_lists
from fineshards.encoders.loading import encoder_of_vocabulary
from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.encoders.vocabulary import Vocabulary

_MARK = re.compile(f"({OWNER.pattern.replace('(', '(?:')}|[{CONTENT}{BEGIN}{END}])")
# Templates write special strings such as <|user|> around them.
_ROLES = {"system", "developer", "user", ASSISTANT, "tool", "function", "observation"}
_MOVES = "the chat template moves what it marks as learned"
_ENCLOSE = "Enclose each answer in {% generation %}"
_IN_DOUBT = (
    "the chat template does not show which text is of messages with weight 0 or train false. "
    + _ENCLOSE
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
_CALLING = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "name": "add", "content": '{"sum": 3}'}
_GOLDEN: tuple[dict[str, object], ...] = (
    {"messages": _TURNS},
    {"messages": [{"role": "system", "content": " Be brief.\n"}, *_TURNS[2:4]]},
    {
        "messages": [_TURNS[2], _CALLING, _RESULT, _TURNS[3]],
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
        thoughts = [name for text, name in hidden_names(vocabulary).items() if "think" in text]
        tags = "|".join([r"</?[\w:]*think\w*>", *thoughts])
        self._thoughts_begin = re.compile(rf"(?:(?:{tags})\s*)+\Z")
        self._texts = text_encoder(vocabulary, fast)
        is_fast = self._texts.is_fast
        self._reference = ConversationEncoder(template, vocabulary, learn) if is_fast else self
        self._decoder = encoder_of_vocabulary(vocabulary)
        self.name = self._decoder.name
        strings = dict(template.special_strings)
        self._plain = Renderer(template.text, strings)
        self._renderer = Renderer(template.text, strings, self._special.hidden)
        self._learn = learn
        self._by_tags = self._renderer.has_generation and learn == (ASSISTANT,)

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
                refused[index] = str(error)
        encoded = self._texts.encode([*rendered.values()])
        for index, conversation in zip(rendered, encoded, strict=True):
            try:
                documents[index] = self._after_eot(conversation)
            except BadConversation as error:
                refused[index] = str(error)
        return TokenBatch(
            np.concatenate([_NO_DOCUMENT.tokens, *(document.tokens for document in documents)]),
            np.cumsum([0, *(len(document.tokens) for document in documents)], dtype=np.int64),
            by_reference=len(texts) - len(refused) if self._reference is self else 0,
            learned=learned_lists([document.learned for document in documents]),
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
        unlearned = {n for n, message in enumerate(messages) if says_not_to_learn(message)}
        plain = self._plain.render(messages, tools)
        rendered = self._renderer.render(messages, tools, generation=self._by_tags)
        if self._special.shown(rendered) != plain:
            raise BadConversation(
                "the chat template writes other text where it looks for special strings, or where "
                "it marks what is learned"
            )
        if strings := self._special.written(rendered):
            messages, tools, rendered = self._with_marked_content(row, plain, strings)
            rendered = self._special.hidden(rendered)
        if self._by_tags and not unlearned:
            return self._parts(rendered)
        for level in range(ALL_TEXTS, -1, -1):
            owned = [with_owner(message, number, level) for number, message in enumerate(messages)]
            with suppress(BadConversation):
                with_owners = self._text(owned, tools)
                # Otherwise the template counts or compares what is in texts.
                if TEXT.sub(r"\2", with_owners) == rendered:
                    messages, rendered = owned, with_owners
                    break
        if unlearned and messages is not owned:
            raise BadConversation(_IN_DOUBT)
        if self._by_tags:
            return self._parts(rendered, unlearned)
        turns = [
            self._turn(rendered, messages[: number + 1], tools)
            for number, message in enumerate(row["messages"])
            if message["role"] in self._learn and number not in unlearned
        ]
        pieces, at = [], 0
        for begin, end in sorted(turns):
            begin = max(begin, at)
            pieces += [rendered[at:begin], BEGIN, rendered[begin:end], END]
            at = max(begin, end)
        return self._parts("".join([*pieces, rendered[at:]]))

    def _with_marked_content(
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
            for message, original in zip(messages, row["messages"], strict=True):
                if original["role"] in _ROLES:
                    message["role"] = original["role"]
            with suppress(BadConversation):
                rendered = self._renderer.render(messages, tools, generation=self._by_tags)
                is_same = self._special.shown(rendered) == plain
                if is_same and (is_sure or not self._special.written(rendered)):
                    return messages, tools, rendered
        raise BadConversation(
            f"the chat template writes {', '.join(sorted(strings))} in pieces, and some may be "
            "content. Write special strings whole in the template"
        )

    def _parts(self, rendered: str, unlearned: Collection[int] = ()) -> Rendered:
        """A rendered text with hidden names, and the ranges of it that are learned.

        BEGIN and END enclose them, except where all text is of messages that are unlearned.
        """
        pieces: list[str] = []
        parts: list[tuple[int, int]] = []
        open_parts: list[tuple[int, int]] = []
        owners: list[int] = []
        at = 0
        for piece in _MARK.split(rendered):
            if piece == BEGIN:
                open_parts.append((at, len(owners)))
            elif piece == END:
                if not open_parts:
                    raise BadConversation(_MOVES)
                begin, before = open_parts.pop()
                may_be_learned = {number not in unlearned for number in owners[before:]}
                if unlearned and len(may_be_learned) != 1:
                    raise BadConversation(_IN_DOUBT)
                if False not in may_be_learned:
                    parts.append((begin, at))
            elif owner := OWNER.fullmatch(piece):
                owners.append(int(owner[1]))
            elif piece != CONTENT:
                pieces.append(piece)
                at += len(piece)
        if open_parts:
            raise BadConversation(_MOVES)
        # Of parts within each other, the inner ones end first.
        return Rendered("".join(pieces), sorted(parts))

    def _turn(self, whole: str, messages: _Messages, tools: Any) -> tuple[int, int]:
        """Where the last of these messages is in the whole, without its header."""
        role = messages[-1]["role"].replace(CONTENT, "")
        where = f"message {len(messages)} ({role}): the chat template does not"
        if role == ASSISTANT:
            before = self._text(messages[:-1], tools, prompt=True)
            # Some templates do not ask for answers, or only for those to questions.
            if before == self._text(messages[:-1], tools):
                answer = {"role": messages[-1]["role"], "content": BEGIN}
                header, mark, _ = self._text([*messages[:-1], answer], tools).partition(BEGIN)
                asked = _since_last_text(before, whole)
                # Whitespace alone is the answer's, as that before it in Llama 2's.
                if mark and _since_last_text(header, whole).removeprefix(asked).strip():
                    before = header
        else:
            last = {**messages[-1], "content": BEGIN}
            before, mark, _ = self._text([*messages[:-1], last], tools).partition(BEGIN)
            if not mark:
                raise BadConversation(f"{where} write its content, so it cannot be learned")
        header = _since_last_text(before, whole)
        # Some templates ask for an answer with <think>, and write earlier answers without it.
        begin, header = _first_place([header, self._thoughts_begin.sub("", header)], whole)
        after = _since_last_text(self._text(messages, tools), whole)
        end, _ = _first_place(_turn_ends(after, header), whole)
        number = str(len(messages) - 1)
        texts = {text for text in TEXT.findall(whole) if text[0] == number}
        if begin < 0 or end < begin or texts != {*TEXT.findall(whole, begin, end)}:
            raise BadConversation(f"{where} show where it begins and ends. {_ENCLOSE}")
        return begin, end

    def _text(self, messages: _Messages, tools: Any, prompt: bool = False) -> str:
        text = self._renderer.render(messages, tools, prompt=prompt, generation=self._by_tags)
        return self._special.hidden(text)

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


def _since_last_text(beginning: str, whole: str) -> str:
    """A beginning, from the number after the last text that the whole has too, if there is one."""
    for end in reversed([*TEXT_END.finditer(beginning)]):
        if end[0] in whole:
            return beginning[end.start() :]
    return beginning


def _turn_ends(after: str, header: str) -> Iterator[str]:
    """What is rendered of a turn, or from its last text on, up to where it may end, best first.

    A turn ends with its last special token, if only whitespace follows.
    """
    within = len(header) if after.startswith(header) else 0
    specials = [name.end() for name in HIDDEN_NAME.finditer(after) if name.end() > within]
    ends_so = specials and not after[specials[-1] :].strip()
    yield after[: specials[-1]] if ends_so else after
    if TEXT_END.match(after):
        # Some templates end the whole, but no turn within it, with another special token.
        yield from (after[:end] for end in reversed(specials))


def _first_place(parts: Iterable[str], whole: str) -> tuple[int, str]:
    """The first of the parts that the whole has, and where it ends there; -1 if it has none.

    Parts that do not begin at the end of a text are beginnings of the whole.
    """
    for part in parts:
        begin = whole.rfind(part) if TEXT_END.match(part) else whole.find(part, 0, len(part))
        if begin >= 0:
            return begin + len(part), part
    return -1, ""
