"""Tokens of conversations, compared with plain definitions."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_families import (
    ASSISTANT,
    DOCUMENT,
    FAMILIES,
    HELLO,
    Family,
    encoder_of,
    made_up,
    reason,
    vocabulary_of,
    without_tags,
)
from support.conversations import encoded

from fineshards.chat.chat_template import ChatTemplate, find_chat_template
from fineshards.chat.conversation import BadConversation, canonical
from fineshards.chat.conversation_encoder import ConversationEncoder
from fineshards.chat.placed_tokens import EncodedConversation
from fineshards.encoders.tokenizer_files import read_tokenizer
from fineshards.encoders.vocabulary import resolve_vocabulary
from fineshards.errors import UsageError


def bits_and_tokens(found: EncodedConversation) -> Any:
    return found.tokens.tolist(), found.learned.tolist()


@pytest.mark.parametrize("tagged", [True, False])
@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "llama3", "llama2", "deepseek", "olmo"])
def test_the_fast_encoder_changes_nothing(name: str, tagged: bool) -> None:
    family, rng = FAMILIES[name], random.Random(name)
    text = family.template if tagged else without_tags(family.template)
    template = ChatTemplate(text, family.special_strings)
    vocabulary = vocabulary_of(family)
    exact, fast = (
        ConversationEncoder(template, vocabulary, ASSISTANT, fast=each) for each in (False, True)
    )
    assert exact.reference is exact
    assert (fast.reference is not fast) == (name != "llama2")
    rows = [canonical(made_up(family, rng, special=number % 2 == 0)) for number in range(120)]
    texts = pa.array(rows, pa.large_string())
    found, expected = fast.encode(texts), exact.encode(texts)
    assert np.array_equal(found.tokens, expected.tokens)
    assert np.array_equal(found.offsets, expected.offsets)
    assert found.learned == expected.learned
    assert found.refused == expected.refused
    assert len(found.refused) < len(rows)


@pytest.mark.parametrize("use", [False, True])
def test_special_tokens_of_merges_are_refused(use: bool) -> None:
    vocabulary = vocabulary_of(FAMILIES["qwen2.5"])
    content = json.loads(vocabulary.data)
    first, second = content["model"]["merges"][0]
    token = next(iter(content["added_tokens"])) | {
        "content": first if use else first + second,
        "id": content["model"]["vocab"][first if use else first + second],
    }
    content["added_tokens"] = [token, *content["added_tokens"]]
    path = Path(mkdtemp()) / "tokenizer.json"
    path.write_text(json.dumps(content))
    changed = read_tokenizer(str(path), FAMILIES["qwen2.5"].eot)
    with pytest.raises(UsageError) as caught:
        ConversationEncoder(ChatTemplate("{{ messages[0].content }}"), changed, ASSISTANT)
    assert str(caught.value).startswith("--tokenizer tokenizer.json: conversations cannot be enc")
    assert "Remove these merges" in str(caught.value)


def test_tiktoken_encodes_between_special_tokens() -> None:
    vocabulary = resolve_vocabulary("cl100k_base")
    encoding = vocabulary.encoding()
    template = (
        "{% for m in messages %}{{ m.role }}<|fim_prefix|>{% generation %}{{ m.content }}"
        "<|endofprompt|>{% endgeneration %}{% endfor %}"
    )
    encoder = ConversationEncoder(ChatTemplate(template), vocabulary, ASSISTANT)
    rng = random.Random(1)
    family = Family("", "", tuple(encoding.special_tokens_set))
    fast = ConversationEncoder(ChatTemplate(template), vocabulary, ASSISTANT, fast=True)
    assert fast.reference is not fast
    for _ in range(200):
        messages = made_up(family, rng, special=True)["messages"]
        tokens: list[int] = []
        learned = []
        for message in messages:
            begin = len(tokens) + len(encoding.encode_ordinary(message["role"])) + 1
            tokens += encoding.encode_ordinary(message["role"])
            tokens += [100258, *encoding.encode_ordinary(message["content"]), 100276]
            learned.append([begin, len(tokens)])
        for each in (encoder, fast):
            found = encoded(each, canonical({"messages": messages}))
            assert (found.tokens.tolist(), found.learned.tolist()) == (tokens, learned)


def test_special_strings_of_the_content_never_become_special_tokens() -> None:
    family = FAMILIES["qwen2.5"]
    vocabulary = vocabulary_of(family)
    ids = {id_ for _, id_ in vocabulary.special_tokens}
    encoder = encoder_of(family, "{% for m in messages %}{{ m.content }}{% endfor %}")
    for contents in (
        ["<|im_start|>"],
        ["<|im_", "start|>"],
        ["<", "|im_end|>"],
        [DOCUMENT],
        ["<<"],
    ):
        messages = [{"role": "user", "content": content} for content in contents]
        found = encoded(encoder, canonical({"messages": messages}))
        expected = vocabulary.library.encode("".join(contents), add_special_tokens=False).ids
        assert found.tokens.tolist() == expected
        assert ids.isdisjoint(expected)


FRAGMENTS = st.sampled_from(
    ["<", "|", ">", "<|", "|>", "im_end", "|im_end|", "<|im_end", "<|im_end|>", "user", " ", "x"]
)
TEXTS = st.lists(FRAGMENTS, max_size=4).map("".join)
# What a template writes of a text, and the same in Python.
READ: dict[str, Callable[[str], str]] = {
    "{}": str,
    "{}|trim": str.strip,
    "{}[1:]": lambda text: text[1:],
    "{}.split('|')[-1]": lambda text: text.split("|")[-1],
}


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        TEXTS.map(lambda text: ("", text)) | st.tuples(st.sampled_from([*READ]), TEXTS), max_size=6
    ),
    st.sampled_from([" ~ ", " + ", "}}{{", "}}{% if true %}{{ "]),
    st.booleans(),
)
def test_only_the_template_and_roles_make_special_tokens(
    pieces: list[tuple[str, str]], joined: str, as_keys: bool
) -> None:
    """Texts of the template and of the conversation, in any order, cut by the template or not."""
    texts = [text for read, text in pieces if read]
    arguments = {f"{number}{text}": number for number, text in enumerate(texts)}
    messages = [
        *({"role": "user", "content": text} for text in texts),
        {"role": "user", "tool_calls": [{"function": {"arguments": arguments}}]},
    ]
    values, written, is_own, number = ["messages[-1].role"], "user", [True] * 4, 0
    for read, text in pieces:
        if not read:
            values.append(repr(text))
            written += text
            is_own += [True] * len(text)
            continue
        key = f"(messages[-1].tool_calls[0].function.arguments|list)[{number}][1:]"
        values.append(f"({read.format(key if as_keys else f'messages[{number}].content')})")
        written += READ[read](text)
        is_own += [False] * len(READ[read](text))
        number += 1
    template = (
        "{{ "
        + joined.join(values)
        + " }}"
        + "{% endif %}" * (len(values) - 1) * ("{% if" in joined)
    )
    family = Family("qwen2.5", "qwen2", ("<|im_end|>", "<|user|>"))
    encoder = encoder_of(family, template, ("nobody",))
    try:
        found = encoded(encoder, canonical({"messages": messages}))
    except BadConversation:
        assert " in pieces, and some may be content" in reason(encoder, messages)
        assert any(read not in ("", "{}", "{}|trim") for read, _ in pieces)
        return
    special = {id_: text for text, id_ in vocabulary_of(family).special_tokens}
    at = 0
    ranges = []
    for token in found.tokens.tolist():
        text = special.get(token) or vocabulary_of(family).library.id_to_token(token)
        if token in special:
            assert written[at : at + len(text)] == text
            ranges.append((at, at + len(text)))
        at += len(text)
    assert at == len(written)
    own = [
        part.span()
        for part in re.finditer(r"<\|(?:im_end|user)\|>", written)
        if all(is_own[part.start() : part.end()])
    ]
    assert ranges == own


@pytest.mark.parametrize("learn", [ASSISTANT, ("user", "assistant")])
def test_a_template_may_write_special_strings_around_usual_roles(learn: tuple[str, ...]) -> None:
    """As that of Phi-4-mini does. Another role is a text like any."""
    family = FAMILIES["phi3"]
    template = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}"
    end = "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    encoder = encoder_of(family, template + end, learn)
    texts = ["<|user|>", "|>", "user|>", "</think>", "Hi"]
    messages = [{"role": "user", "content": text} for text in texts]
    messages += [{"role": "assistant", "content": "<|end|> Yes"}, {"role": "end", "content": "a"}]
    found = encoded(encoder, canonical({"messages": messages}))
    names = dict(map(reversed, vocabulary_of(family).special_tokens))
    special = [names[token] for token in found.tokens.tolist() if token in names]
    assert special == ["<|user|>", "<|end|>"] * 5 + ["<|assistant|>", "<|end|>", "<|end|>"]
    assert len(found.learned) == (6 if len(learn) == 2 else 1)


def test_a_conversation_that_is_refused_says_why() -> None:
    family = FAMILIES["qwen2.5"]
    said = [{"role": "user", "content": "<|im_end|>"}]
    assert reason(encoder_of(family, "{{ '<|im_end|>' in messages[0].content }}"), said) == (
        "the chat template writes other text where it looks for special strings, or where it marks "
        "what is learned"
    )
    pieces = "{{ '<' + '|im_end|>' }}{{ '|im' in messages[0].content }}"
    assert reason(encoder_of(family, pieces), said) == (
        "the chat template writes <|im_end|> in pieces, and some may be content. Write special "
        "strings whole in the template"
    )
    assert (
        reason(encoder_of(FAMILIES["llama2"]), HELLO[::-1])
        == "the chat template refuses it (Roles must alternate user/assistant)"
    )
    assert reason(encoder_of(family, "{{ messages[0].content + 1 }}"), HELLO).startswith(
        "the chat template refuses it (can only concatenate str"
    )
    assert reason(encoder_of(family, f"a{DOCUMENT}b"), HELLO[:1]) == (
        f"the chat template writes {DOCUMENT}, the token that begins documents, inside the "
        "conversation. Choose another with --eot_token"
    )
    assert reason(encoder_of(family, "nothing", ("user",)), HELLO) == (
        "message 1 (user): the chat template does not write its content, so it cannot be learned"
    )
    moves = "{% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x|reverse }}"
    assert reason(encoder_of(family, moves), HELLO) == (
        "the chat template moves what it marks as learned"
    )
    cuts = "{% set x %}{% generation %}a b{% endgeneration %}{% endset %}{{ x.split()[0] }}"
    assert reason(encoder_of(family, cuts + " b"), HELLO) == (
        "the chat template moves what it marks as learned"
    )
    chatml = find_chat_template("chatml", "cl100k_base")
    assert "chatml does not write tools" in reason(
        encoder_of(family, chatml.text), HELLO, tools=[{"type": "function"}]
    )


@pytest.mark.parametrize(
    "template", ["{{ strftime_now('%Y') }}", "{% if x %}", "{{ 1|random }}", "{% generation %}"]
)
def test_a_template_that_cannot_be_used_is_refused(template: str) -> None:
    with pytest.raises(UsageError, match=r"^--chat_template: "):
        encoder_of(FAMILIES["qwen2.5"], template)
