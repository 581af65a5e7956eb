"""A conversation's canonical JSON, and what is not a conversation."""

import doctest
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.chat import conversation
from fineshards.chat.conversation import BadConversation, canonical

USER = {"role": "user", "content": "Hi"}
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=20)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)


def test_examples() -> None:
    assert doctest.testmod(conversation).failed == 0


@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "tool"]), "content": TEXTS},
            optional={"name": TEXTS, "tool_calls": st.lists(OBJECTS, max_size=2)},
        ),
        min_size=1,
        max_size=4,
    ),
    st.lists(OBJECTS, max_size=2),
)
def test_the_json_is_compact_and_keeps_all_keys_in_their_order(
    messages: list[Any], tools: list[Any]
) -> None:
    expected = {"messages": messages} | ({"tools": tools} if tools else {})
    text = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    found = canonical({"messages": messages, "tools": tools, "id": 7})
    # orjson escapes DEL and a few characters otherwise than json.
    assert [*_walk(json.loads(found))] == [*_walk(json.loads(text))]
    assert canonical({"messages": json.dumps(messages), "tools": json.dumps(tools)}) == found


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("<think>\n1 + 1\n</think>\n\nTwo.", "Two."),
        (" <think></think>Two.\n", "Two.\n"),
        ("[THINK]Hm.[/THINK]Two.", "Two."),
        # The request had the first tag, as that of R1.
        ("1 + 1\n</think>\n\nTwo.", "Two."),
        ("<think>a</think>Say </think>.", "Say </think>."),
        # Thoughts about tags, and several.
        ("<think>Is <think> a tag?</think>Yes.", "Yes."),
        ("<think>[/THINK] too?</think>Yes.", "Yes."),
        ("[THINK]Is </think> a tag?[/THINK]Yes.", "Yes."),
        ("<think>a</think>\n<think>b</think>\nTwo.", "Two."),
        ("Write <think> and </think>.", "Write <think> and </think>."),
        ("<think>It never ends", "<think>It never ends"),
        (" " * 100_000, " " * 100_000),
        ("", ""),
    ],
)
def test_reasoning_is_left_out_where_that_is_asked_for(content: str, answer: str) -> None:
    fields = {"reasoning_content": "a", "reasoning": "b", "thinking": "c"}
    thoughtful = [USER, {"role": "assistant", **fields, "content": content, "tool_calls": []}]
    without = [USER, {"role": "assistant", "content": answer, "tool_calls": []}]
    row = {"messages": thoughtful, "tools": [{"reasoning": "a field of a tool"}]}
    assert canonical(row, drop_reasoning=True) == canonical(row | {"messages": without})
    assert json.loads(canonical(row))["messages"] == thoughtful
    asked = {"prompt": content, "completion": content}
    assert canonical(asked, drop_reasoning=True) == canonical(asked | {"completion": answer})


def _walk(value: Any) -> Any:
    """All values and keys in order, which == of dicts does not compare."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _walk(each)
    elif isinstance(value, list):
        for each in value:
            yield from _walk(each)
    else:
        yield value


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"prompt": "a", "completion": "b"}, ["user a", "assistant b"]),
        ({"prompt": [USER], "completion": [{"role": "tool", "content": ""}]}, ["user Hi", "tool "]),
        (
            {"prompt": [USER, {"from": "gpt", "value": "a"}], "completion": "b"},
            ["user Hi", "assistant a", "assistant b"],
        ),
        (
            {
                "messages": [
                    {"from": speaker, "value": speaker[:1]}
                    for speaker in ("system", "human", "gpt", "observation")
                ]
            },
            ["system s", "user h", "assistant g", "tool o"],
        ),
        ({"messages": None, "prompt": "a", "completion": "b"}, ["user a", "assistant b"]),
        ({"instruction": "a", "input": "", "output": "b"}, ["user a", "assistant b"]),
        ({"instruction": "a", "input": None, "output": ""}, ["user a", "assistant "]),
        ({"instruction": "a", "input": "b", "output": "c"}, ["user a\nb", "assistant c"]),
        (
            {"instruction": [USER], "output": '[{"role":"x"}]'},
            ["user Hi", 'assistant [{"role":"x"}]'],
        ),
        (
            {"instruction": "a", "output": "b", "prompt": "c", "completion": "d", "input": "e"},
            ["user c", "assistant d"],
        ),
        (
            {"messages": [{"role": "x", "content": [{"type": "text", "text": t} for t in "ab"]}]},
            ["x ab"],
        ),
    ],
)
def test_forms(row: dict[str, Any], messages: list[str]) -> None:
    found = json.loads(canonical(row))["messages"]
    assert [f"{each['role']} {each['content']}" for each in found] == messages


@pytest.mark.parametrize(
    ("fields", "found"),
    [({}, {"weight": 0}), ({"weight": None}, {"weight": 0}), ({"train": True}, {"train": True})],
)
def test_answers_in_a_prompt_are_not_learned_unless_they_say_so(
    fields: dict[str, Any], found: dict[str, Any]
) -> None:
    answer = {"role": "assistant", "content": "a"}
    row = {"prompt": [USER, answer | fields, USER], "completion": [answer]}
    assert json.loads(canonical(row))["messages"] == [USER, answer | found, USER, answer]
    assert answer == {"role": "assistant", "content": "a"}


def test_null_fields_are_absent() -> None:
    call = {"function": {"name": "f", "arguments": {"a": None, "b": [{"c": None}]}}, "id": None}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "x": [None]}
    found = json.loads(canonical({"messages": [message], "tools": [{"a": None, "b": 1}]}))
    assert found == {
        "messages": [
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": {"b": [{}]}}}],
                "x": [None],
            }
        ],
        "tools": [{"b": 1}],
    }


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "there are no messages, and no prompt"),
        ({"prompt": "a"}, "there are no messages, and no completion"),
        ({"instruction": "a", "output": None}, "there are no messages, and no output"),
        ({"instruction": "a", "input": 7, "output": "b"}, "instruction and input are not both t"),
        ({"instruction": [USER], "input": "a", "output": "b"}, "instruction and input are not b"),
        ({"messages": []}, "messages is empty"),
        ({"messages": 7}, "messages is not a list but 7"),
        ({"messages": "[{]"}, "messages is a text that is not JSON ("),
        ({"messages": [USER, "x"]}, "message 2 is not an object but 'x'"),
        (
            {"messages": [{"from": "a", "value": "b"}]},
            "message 1 is from 'a', which is not one of system, human, user, gpt, assistant, tool",
        ),
        ({"messages": [{"from": "gpt"}, {"text": "b"}]}, "message 2 has no role, a text; it has t"),
        ({"messages": [USER | {"weight": 0.5}]}, "message 1 (user): weight is 0.5; a message is l"),
        ({"messages": [USER | {"train": "no"}]}, "message 1 (user): train is 'no'; a message is "),
        ({"messages": [USER | {"content": {}}]}, "message 1 (user): content is not a text but {}"),
        (
            {"messages": [USER, USER | {"content": [{"type": "image_url", "image_url": "x"}]}]},
            "message 2 (user): part 1 of content is 'image_url'; only text can be learned",
        ),
        ({"messages": [USER | {"tool_calls": "f"}]}, "message 1 (user): tool_calls is not a list"),
        ({"messages": [USER], "tools": [7]}, "tools is not a list of objects"),
        ({"messages": [USER | {"n": 2**70}]}, "the conversation cannot be written as JSON ("),
        (
            {"messages": f'[{{"role":"user","n":[{2**70}]}}]'},
            "the conversation holds a number of m",
        ),
        ({"messages": [USER | {"n": float("nan")}]}, "the conversation holds a number of more"),
        ({"messages": f'[{{"role":"user","n":{"[" * 1000}{"]" * 1000}}}]'}, "the conversation can"),
        ({"messages": [USER | {"n": "\ud800"}]}, "the conversation cannot be written as JSON ("),
        (
            {"messages": [USER | {"n": "\ufdd1"}]},
            "the conversation holds U+FDD1, a noncharacter",
        ),
    ],
)
def test_what_is_not_a_conversation_is_refused_with_a_reason(
    row: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadConversation) as caught:
        canonical(row)
    assert str(caught.value).startswith(reason)
