"""Tokens of conversations and what is learned, compared with plain definitions."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_families import DOCUMENT, FAMILIES, Family, made_up, without_tags
from support.conversations import encoded

from fineshards.chat.chat_template import ChatTemplate, find_chat_template
from fineshards.chat.conversation import BadConversation, canonical
from fineshards.chat.conversation_encoder import ConversationEncoder
from fineshards.chat.placed_tokens import EncodedConversation
from fineshards.encoders.tokenizer_files import read_tokenizer
from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.encoders.vocabulary import resolve_vocabulary
from fineshards.errors import UsageError

ASSISTANT = ("assistant",)
HELLO = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@lru_cache
def vocabulary_of(family: Family) -> TokenizerJson:
    return read_tokenizer(str(family.save(Path(mkdtemp()))), family.eot)


def encoder_of(
    family: Family, template: str | None = None, learn: tuple[str, ...] = ASSISTANT
) -> ConversationEncoder:
    text = family.template if template is None else template
    found = ChatTemplate(text, family.special_strings)
    return ConversationEncoder(found, vocabulary_of(family), learn)


def learned_texts(family: Family, found: EncodedConversation) -> list[str]:
    tokenizer = family.tokenizer()
    return [
        tokenizer.decode(found.tokens[begin:end].tolist(), skip_special_tokens=False)
        for begin, end in found.learned
    ]


def reason(encoder: ConversationEncoder, messages: list[Any], **row: Any) -> str:
    with pytest.raises(BadConversation) as caught:
        encoded(encoder, canonical({"messages": messages, **row}))
    return str(caught.value)


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


@pytest.mark.parametrize("name", FAMILIES)
def test_turns_are_those_that_tags_enclose(name: str) -> None:
    family, rng = FAMILIES[name], random.Random(name)
    tagged = encoder_of(family)
    plain = encoder_of(family, without_tags(family.template))
    for _ in range(60):
        row = made_up(family, rng, special=True)
        if any(
            re.search(r"</?think>\s*\Z", message["content"] or "") for message in row["messages"]
        ):
            continue  # Qwen3's writes nothing of such an answer
        expected = encoded(tagged, canonical(row))
        turns = encoded(plain, canonical(row))
        assert turns.tokens.tolist() == expected.tokens.tolist()
        if name == "phi3":  # ends a conversation with a special token of its own
            last = [*expected.learned[-1]]
            expected.learned[-1] = [last[0], len(expected.tokens)]
        assert turns.learned.tolist() == expected.learned.tolist()


CALL = {"function": {"name": "add", "arguments": {"a": 1}}}
TOOL = {"role": "tool", "content": "2"}
THOUGHTFUL = [
    {"role": "user", "content": " 1 + 1?\n"},
    {"role": "assistant", "content": "", "reasoning_content": "I add.", "tool_calls": [CALL]},
    TOOL,
    {"role": "assistant", "content": "<think>\nOf course.\n</think>\n\nTwo."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes, two.", "reasoning_content": "I am."},
]
HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
CONTENT_ALONE = "{{ m.content.split('</think>')[-1]|trim }}"
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function|tojson }}</call>{% endfor %}"
FOOT = "<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n"
THOUGHTS = "{% if loop.last %}<think>\n{{ m.thinking or '' }}\n</think>\n\n{% endif %}"
ADD = '<call>{"name": "add", "arguments": {"a": 1}}</call>'


@pytest.mark.parametrize(
    ("template", "learned"),
    [
        # Thoughts of the last message alone, as Qwen3's; those in the content are cut off.
        (
            f"{HEAD}{THOUGHTS}{CONTENT_ALONE}{CALLS}{FOOT}{PROMPT}{{% endif %}}",
            [ADD, "Two.", "<think>\nI am.\n</think>\n\nYes, two."],
        ),
        # The request opens thoughts that earlier answers do not have, as Qwen3's of July 2025.
        (
            f"{HEAD}{THOUGHTS}{CONTENT_ALONE}{CALLS}{FOOT}{PROMPT}<think>\n{{% endif %}}",
            [ADD, "Two.", "I am.\n</think>\n\nYes, two."],
        ),
        # Or that are empty in them, as Nemotron's.
        (
            f"{HEAD}{{% if m.role == 'assistant' %}}<think></think>{{% endif %}}{CONTENT_ALONE}"
            f"{CALLS}{FOOT}{PROMPT}<think>\n{{% endif %}}",
            [f"<think></think>{ADD}", "<think></think>Two.", "<think></think>Yes, two."],
        ),
        # The end of a conversation has a token of its own, as that of Phi-3.5.
        (
            f"{HEAD}{CONTENT_ALONE}{CALLS}{FOOT}{PROMPT}{{% else %}}<|endoftext|>{{% endif %}}",
            [ADD, "Two.", "Yes, two.<|im_end|>\n<|endoftext|>"],
        ),
        # Results have the function's name, as Gemma 4's, and turns no last token, as GLM's.
        (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'tool' %}"
            "{{ messages[loop.index0 - 1].tool_calls[0].function.name }}:{% endif %}"
            f"{CONTENT_ALONE}{CALLS}{{% endfor %}}{PROMPT}{{% endif %}}",
            [ADD, "Two.", "Yes, two."],
        ),
    ],
)
def test_turns_are_found_where_what_is_before_them_differs(
    template: str, learned: list[str]
) -> None:
    family = FAMILIES["qwen2.5"]
    end = "<|im_end|>" if FOOT in template else ""
    texts = learned_texts(
        family, encoded(encoder_of(family, template), canonical({"messages": THOUGHTFUL}))
    )
    assert [text.removesuffix("\n") for text in texts] == [
        text if text.endswith("<|endoftext|>") else text + end for text in learned
    ]


def test_tags_in_content_may_be_special_strings() -> None:
    family = replace(FAMILIES["qwen2.5"], special=(*FAMILIES["qwen2.5"].special, "<tool_call>"))
    encoder = encoder_of(family, f"{HEAD}{{{{ m.content }}}}{FOOT}{PROMPT}{{% endif %}}")
    answers = [HELLO[0], HELLO[1] | {"content": " <tool_call>Hello", "weight": 0}, *HELLO]
    document = encoded(encoder, canonical({"messages": answers}))
    assert learned_texts(family, document) == ["Hello<|im_end|>"]


TAGS = ("<think>", " <tool_error>\n", "<think>\n\n</think>\n\n", "[/THINK]", " ", "")


@pytest.mark.parametrize("content", [{"content": text} for text in (*TAGS, "4")] + [{}])
def test_a_result_in_an_answer_is_not_learned_whatever_its_text(content: dict[str, str]) -> None:
    """A template as Gemma 4's, which writes it before the text of the answer that called."""
    result = "{% set next = messages[loop.index0 + 1] %}{% if next.role == 'tool' %}<result>"
    template = (
        f"{HEAD}{CALLS}{{% if not loop.last %}}{result}{{{{ next.content|trim }}}}</result>"
        f"{{% endif %}}{{% endif %}}{{{{ m.content }}}}{FOOT}{PROMPT}{{% endif %}}"
    )
    messages = [HELLO[0], HELLO[1] | {"tool_calls": [CALL]}, {"role": "tool", **content}, HELLO[1]]
    assert reason(encoder_of(FAMILIES["qwen2.5"], template), messages).startswith(
        "message 2 (assistant): the chat template does not show where it begins and ends"
    )


@pytest.mark.parametrize("text", TAGS)
@pytest.mark.parametrize("content", ["m.content", "m.content.split('</think>')[-1]|trim"])
@pytest.mark.parametrize("calls", [{}, {"tool_calls": []}])
def test_a_text_of_tags_alone_is_not_learned_either(
    text: str, content: str, calls: dict[str, Any]
) -> None:
    family = FAMILIES["qwen2.5"]
    answers = "{% for m in messages if m.role == 'assistant' %}"
    enclosed = f"{answers}{{% generation %}}{{{{ {content} }}}}|{{% endgeneration %}}{{% endfor %}}"
    messages = [HELLO[0], {"role": "assistant", "content": text, "weight": 0, **calls}, *HELLO]
    found = encoded(encoder_of(family, enclosed), canonical({"messages": messages}))
    assert learned_texts(family, found) == ["Hello|"]
    together = f"{{% generation %}}{answers}{{{{ {content} }}}}{{% endfor %}}{{% endgeneration %}}"
    assert "does not show which text is of" in reason(encoder_of(family, together), messages)


@pytest.mark.parametrize(
    ("head", "learned"),
    [
        ("<|im_start|>{{ m.role }}\n{{ m.thinking }}", ["whyHello", "Hello"]),
        ("{{ m.role }}:\n", ["Hello", "Hello"]),
        ("{% if m.role == 'user' %}[INST]{% else %}[/INST]{% endif %}", ["Hello", "Hello"]),
        # Whitespace alone is no header: in Llama 2's, the question ends with [/INST].
        (" ", [" Hello", " Hello"]),
    ],
)
def test_a_header_is_found_in_a_template_that_does_not_ask_for_answers(
    head: str, learned: list[str]
) -> None:
    family = FAMILIES["qwen2.5"]
    template = f"{{% for m in messages %}}{head}{{{{ m.content }}}}{FOOT}"
    messages = [HELLO[0], HELLO[1] | {"thinking": "why"}, *HELLO]
    found = encoded(encoder_of(family, template), canonical({"messages": messages}))
    assert learned_texts(family, found) == [text + "<|im_end|>" for text in learned]


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


@pytest.mark.parametrize(
    "template",
    [
        # Messages in another order, questions within answers, and an answer twice.
        "{% for m in messages|reverse %}{{ m.content }}|{% endfor %}",
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{{ messages[loop.index0 - 1].content }}{{ m.content }}{% endif %}{% endfor %}",
        "{% for m in messages + messages[1:2] %}|{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}|{% endif %}",
    ],
)
def test_a_template_that_does_not_show_turns_is_refused(template: str) -> None:
    assert reason(encoder_of(FAMILIES["qwen2.5"], template), HELLO * 2) == (
        "message 2 (assistant): the chat template does not show where it begins and ends. "
        "Enclose each answer in {% generation %}"
    )


@pytest.mark.parametrize("learn", [("user",), ("system", "user"), ("user", "assistant")])
@pytest.mark.parametrize("name", ["qwen2.5", "llama3", "gemma", "olmo"])
def test_any_roles_can_be_learned(name: str, learn: tuple[str, ...]) -> None:
    """From the content, or from what an answer begins with, to the end of the turn."""
    family = FAMILIES[name]
    row = {"messages": [{"role": role, "content": role.upper()} for role in ("user", "assistant")]}
    if family.system:
        row["messages"].insert(0, {"role": "system", "content": "SYSTEM"})
    found = encoded(encoder_of(family, learn=learn), canonical(row))
    end = {"qwen2.5": "<|im_end|>", "llama3": "<|eot_id|>", "gemma": "<end_of_turn>"}.get(name)
    ends = {"assistant": "<|endoftext|>"} if name == "olmo" else {}
    expected = [
        each["content"] + (end or ends.get(each["role"], "\n"))
        for each in row["messages"]
        if each["role"] in learn
    ]
    texts = "".join(learned_texts(family, found))
    assert texts == "".join(expected)


@pytest.mark.parametrize("tagged", [True, False])
@pytest.mark.parametrize("field", [{"weight": 0}, {"weight": 0.0}, {"train": False}])
@pytest.mark.parametrize("name", ["qwen2.5", "llama3", "olmo", "deepseek"])
def test_an_answer_that_says_so_is_not_learned(name: str, field: Any, tagged: bool) -> None:
    """The tokens stay, and the other answers are learned as without the field."""
    family = FAMILIES[name]
    encoder = encoder_of(family, None if tagged else without_tags(family.template))
    messages = [
        {"role": role, "content": f"{role} {number}"}
        for number in range(4)
        for role in ("user", "assistant")
    ]
    whole = encoded(encoder, canonical({"messages": messages}))
    assert len(whole.learned) == 4
    for unlearned in ([0], [1, 2], [0, 3], [0, 1, 2, 3]):
        changed = [
            message | (field if number in [2 * n + 1 for n in unlearned] else {"weight": 1})
            for number, message in enumerate(messages)
        ]
        document = encoded(encoder, canonical({"messages": changed}))
        assert document.tokens.tolist() == whole.tokens.tolist()
        assert document.learned.tolist() == np.delete(whole.learned, unlearned, 0).tolist()


MARKED = "{% generation %}{{ m.content }}{% endgeneration %}"
ANSWERS = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "one", "weight": 0},
    {"role": "user", "content": "And", "train": False},
    {"role": "assistant", "content": " two\n", "reasoning_content": "why", "weight": 1},
]


@pytest.mark.parametrize(
    ("template", "changes", "learned"),
    [
        # Marks of questions too, of the last message alone, and in another order.
        (f"{{% for m in messages %}}{MARKED}|{{% endfor %}}", {}, ["Hi", " two\n"]),
        (f"{{% set m = messages[-1] %}}{MARKED}", {3: {"weight": 0}}, []),
        (f"{{% for m in messages|reverse %}}{MARKED}|{{% endfor %}}", {}, [" two\n", "Hi"]),
        # Reasoning has marks of its own, and that of earlier answers is left out.
        (
            "{% for m in messages %}{% if loop.last %}{% generation %}{{ m.thinking }}"
            f"{{% endgeneration %}}|{{% endif %}}{MARKED}|{{% endfor %}}",
            {1: {"weight": 1}, 3: {"weight": 0}},
            ["Hi", "one"],
        ),
        # Tool calls, of which the first is not learned; numbers are no texts.
        (
            "{% for m in messages[1::2] %}{% generation %}{{ m.tool_calls[0].function|tojson }}"
            "{% endgeneration %}\n{% endfor %}",
            {
                number: {"tool_calls": [{"function": {"name": name, "arguments": {"n": number}}}]}
                for number, name in ((1, "add"), (3, "sub"))
            },
            ['{"name": "sub", "arguments": {"n": 3}}'],
        ),
    ],
)
def test_only_parts_with_text_of_messages_that_may_be_learned_are(
    template: str, changes: dict[int, Any], learned: list[str]
) -> None:
    family = FAMILIES["qwen2.5"]
    messages = [message | changes.get(number, {}) for number, message in enumerate(ANSWERS)]
    document = encoded(encoder_of(family, template), canonical({"messages": messages}))
    assert learned_texts(family, document) == learned


@pytest.mark.parametrize("content", [MARKED, "{{ m.content }}"])
@pytest.mark.parametrize("start", ["'<|im_start|>'", "'<|' ~ 'im_start|>'"])
def test_special_strings_in_messages_do_not_hide_their_fields(start: str, content: str) -> None:
    """The field names too have characters of special strings, which are looked for in messages."""
    family = FAMILIES["qwen2.5"]
    template = (
        f"{{% for m in messages %}}{{{{ {start} }}}}{{% if m.role == 'assistant' %}}{content}"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ {start} }}}}{{% endif %}}"
    )
    messages = [message | {"content": f"<|im_end|>{n}"} for n, message in enumerate(ANSWERS)]
    document = encoded(encoder_of(family, template), canonical({"messages": messages}))
    end = "" if content == MARKED else "<|im_end|>"
    assert learned_texts(family, document) == ["<|im_end|>3" + end]


@pytest.mark.parametrize(
    "template",
    [
        # One part with both answers; a part with no text of an answer; one that shows half of it;
        # and templates that change with marks around texts.
        "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}",
        "{% generation %}So: {% endgeneration %}{{ messages[1].content }}",
        "{% for m in messages %}{% generation %}{{ m.content[1:-1] }}{% endgeneration %}"
        "{% endfor %}",
        f"{{% for m in messages %}}{MARKED}{{{{ m.content|length }}}}{{% endfor %}}",
        "{% for m in messages %}{% if m.content|length > 5 %}{{ raise_exception('') }}{% endif %}"
        f"{MARKED}{{% endfor %}}",
        # The same without tags.
        "{% for m in messages %}{{ m.content|length }}{{ m.content }}{% endfor %}",
    ],
)
def test_a_template_that_does_not_tell_messages_apart_refuses_fields(template: str) -> None:
    encoder = encoder_of(FAMILIES["qwen2.5"], template)
    assert reason(encoder, ANSWERS) == (
        "the chat template does not show which text is of messages with weight 0 or train false. "
        "Enclose each answer in {% generation %}"
    )


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
            assert bits_and_tokens(found) == (tokens, learned)


def test_a_token_is_learned_if_one_of_its_characters_is() -> None:
    """Also of tokens that are a part of a character, and of those on a border."""
    vocabulary = resolve_vocabulary("cl100k_base")
    template = (
        "{% for m in messages %}x{% generation %}{{ m.content }}{% endgeneration %}y{% endfor %}"
    )
    encoder = ConversationEncoder(ChatTemplate(template), vocabulary, ASSISTANT)
    encoding = vocabulary.encoding()
    for content in ("", "z", "yx", "😀", " a", "日本"):
        found = encoded(
            encoder, canonical({"messages": [{"role": "user", "content": content}] * 3})
        )
        is_content = (b"\0" + b"\1" * len(content.encode()) + b"\0") * 3
        sizes = [len(encoding.decode_single_token_bytes(token)) for token in found.tokens.tolist()]
        ends = np.cumsum([0, *sizes])
        expected = [any(is_content[a:b]) for a, b in pairwise(ends)]
        bits = np.zeros(len(sizes), bool)
        for begin, end in found.learned:
            bits[begin:end] = True
        assert bits.tolist() == expected
        assert (found.learned[1:, 0] > found.learned[:-1, 1]).all()


def test_marks_within_marks_are_learned_from_the_first_to_the_last() -> None:
    family = FAMILIES["qwen2.5"]
    begin, end = "{% generation %}", "{% endgeneration %}"
    within = f"one\n{begin}two {begin}three{end} four{end}\n five"
    outer = f"one\n{begin}two three four{end}\n five"
    found = [
        encoded(encoder_of(family, each), canonical({"messages": HELLO}))
        for each in (within, outer)
    ]
    assert bits_and_tokens(found[0]) == bits_and_tokens(found[1])


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


def test_an_unusual_role_is_learned_where_special_strings_are_in_pieces() -> None:
    family = FAMILIES["qwen2.5"]
    template = (
        "{% for m in messages %}<|{{ 'im_' ~ 'start' }}|>{{ m.role }}\n{{ m.content }}<|im_end|>"
        "{% endfor %}"
    )
    row = {"messages": [HELLO[0], {"role": "model", "content": "Hello"}]}
    found = encoded(encoder_of(family, template, ("model",)), canonical(row))
    assert learned_texts(family, found) == ["Hello<|im_end|>"]


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
