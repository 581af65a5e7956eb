"""Which tokens of a conversation are learned, by rules in plain words."""

import random
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.chat_families import (
    ASSISTANT,
    FAMILIES,
    HELLO,
    encoder_of,
    learned_texts,
    made_up,
    reason,
    without_tags,
)
from support.conversations import encoded

from fineshards.chat.chat_template import ChatTemplate
from fineshards.chat.conversation import canonical
from fineshards.chat.conversation_encoder import ConversationEncoder
from fineshards.encoders.vocabulary import resolve_vocabulary


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
@pytest.mark.parametrize(
    "asks",
    [
        "",
        # As many templates begin, of which some do no more with it.
        "{% if not add_generation_prompt %}{% set add_generation_prompt = false %}{% endif %}",
        "{% if add_generation_prompt and messages|length > 9 %}never{% endif %}",
    ],
)
def test_a_header_is_found_in_a_template_that_does_not_ask_for_answers(
    asks: str, head: str, learned: list[str]
) -> None:
    family = FAMILIES["qwen2.5"]
    template = f"{asks}{{% for m in messages %}}{head}{{{{ m.content }}}}{FOOT}"
    messages = [HELLO[0], HELLO[1] | {"thinking": "why"}, *HELLO]
    found = encoded(encoder_of(family, template), canonical({"messages": messages}))
    assert learned_texts(family, found) == [text + "<|im_end|>" for text in learned]


@pytest.mark.parametrize(
    "asks", ["messages[-1].role == 'user'", "messages|length < 3", "messages[-1].role != 'tool'"]
)
def test_a_header_is_found_where_a_template_asks_for_some_answers(asks: str) -> None:
    family = FAMILIES["qwen2.5"]
    template = (
        f"{HEAD}{CONTENT_ALONE}{CALLS}{FOOT}{{% if add_generation_prompt and {asks} %}}"
        "<|im_start|>assistant\n{% endif %}"
    )
    called = [HELLO[1] | {"content": "More", "tool_calls": [CALL]}, TOOL, HELLO[1]]
    found = encoded(encoder_of(family, template), canonical({"messages": [*HELLO, *called]}))
    learned = ["Hello", f"More{ADD}", "Hello"]
    assert learned_texts(family, found) == [text + "<|im_end|>" for text in learned]


@pytest.mark.parametrize(
    "template",
    [
        # Messages in another order, questions within answers, and an answer twice.
        "{% for m in messages|reverse %}{{ m.content }}|{% endfor %}",
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{{ m.content }}{{ messages[loop.index0 - 1].content }}{% endif %}{% endfor %}",
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
    assert found[0].tokens.tolist() == found[1].tokens.tolist()
    assert found[0].learned.tolist() == found[1].learned.tolist()


def test_an_unusual_role_is_learned_where_special_strings_are_in_pieces() -> None:
    family = FAMILIES["qwen2.5"]
    template = (
        "{% for m in messages %}<|{{ 'im_' ~ 'start' }}|>{{ m.role }}\n{{ m.content }}<|im_end|>"
        "{% endfor %}"
    )
    row = {"messages": [HELLO[0], {"role": "model", "content": "Hello"}]}
    found = encoded(encoder_of(family, template, ("model",)), canonical(row))
    assert learned_texts(family, found) == ["Hello<|im_end|>"]
