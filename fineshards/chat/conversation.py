"""A conversation as one text: the canonical JSON that readers make and recipes see.

    {"messages":[{"role":"user","content":"Hello"},...],"tools":[...]}

Compact, in UTF-8. The keys of a message keep their order, because templates write tool calls and
tools in it. `tools` is left out where there are none, and fields that are null everywhere.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import orjson

from fineshards.errors import quoted

# Noncharacters, which Unicode reserves for uses within a program. They mark places in a rendered
# conversation.
CONTENT, BEGIN, END = "\ufdd0", "\ufdd1", "\ufdd2"
# Begins the names, of two characters, under which the library knows special tokens.
HIDDEN = "\U0010fffe"
HIDDEN_NAME = re.compile(f"({HIDDEN}.)", re.DOTALL)
# Enclose the number of a message, which stands before each of its texts, and after it with a slash.
_OPEN, _CLOSE = "\ufdd3", "\ufdd4"
OWNER = re.compile(f"{_OPEN}/?([0-9]+){_CLOSE}")
TEXT_END = re.compile(f"{_OPEN}/[0-9]+{_CLOSE}")
TEXT = re.compile(rf"{_OPEN}([0-9]+){_CLOSE}([^{_OPEN}]*){_OPEN}/\1{_CLOSE}")
_RESERVED = re.compile(f"[{CONTENT}{BEGIN}{END}{HIDDEN}{_OPEN}{_CLOSE}]")

ASSISTANT = "assistant"
# Fields in which a message may have its reasoning, and reasoning that its content begins with.
THINKING = ("reasoning_content", "thinking", "reasoning")
_THOUGHT = r"<think>.*?</think>|\[THINK\].*?\[/THINK\]"
_UNOPENED = r"(?:[^<\[]++|(?!</?think>|\[/?THINK\]).)*+(?:</think>|\[/THINK\])"
_THOUGHTS = re.compile(rf"\s*+(?:{_THOUGHT}|{_UNOPENED})(?:\s*(?:{_THOUGHT}))*\s*", re.DOTALL)
# Fields with which a message says whether it is learned.
_LEARN_FIELDS = ("weight", "train")
# Fields that templates compare, or of which they count the characters.
_WITHOUT_OWNERS = ("role", "type", "id", "tool_call_id")
# Tags that templates look for in texts; and a text without whitespace at its ends.
_TAG = re.compile(rf"({CONTENT}?(?:</?[\w:]*(?:think|tool)\w*>|\[/?THINK\]))")
_TRIMMED = re.compile(r"\S(?:.*\S)?", re.DOTALL)
# The level of `with_owner` at which most texts have a number.
ALL_TEXTS = 3
# Columns in place of messages, Alpaca's second. Its input may be absent.
_PAIR, _ALPACA, _INPUT = ("prompt", "completion"), ("instruction", "output"), "input"
# The roles of those who speak in ShareGPT.
_SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}


class BadConversation(Exception):  # noqa: N818
    """A row that cannot become a document. The message, without a full stop, says why."""


def canonical(row: Mapping[str, Any], drop_reasoning: bool = False) -> str:
    """The canonical JSON of the conversation in a row.

    row: `messages`, or `prompt` and `completion`, and maybe `tools`; each as objects or as JSON.
    Or Alpaca's `instruction` and `output`, and maybe `input`. Other columns are ignored. Messages
    of ShareGPT (`from`, `value`) become those of OpenAI. Answers in `prompt` are not learned.
    drop_reasoning: whether answers are without their reasoning.

    Raises BadConversation if it is not one.

    Example:
        >>> canonical({"prompt": "Hi", "completion": "Hello"})
        '{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"}]}'
    """
    if row.get("messages") is not None:
        context, messages = [], _listed(row["messages"], "messages")
    else:
        prompt, *added, completion = pair_columns(row)
        context = _turn(row, prompt, "user", *added)
        messages = [*context, *_turn(row, completion, ASSISTANT)]
    if not messages:
        raise BadConversation("messages is empty")
    tools = _listed(row.get("tools") or [], "tools")
    if not all(isinstance(tool, dict) for tool in tools):
        raise BadConversation("tools is not a list of objects")
    messages = [_message(value, number) for number, value in enumerate(messages, 1)]
    for message in messages[: len(context)]:
        if message["role"] == ASSISTANT and message.keys().isdisjoint(_LEARN_FIELDS):
            message["weight"] = 0
    if drop_reasoning:
        messages = [*map(_without_reasoning, messages)]
    conversation = {"messages": messages, "tools": tools or None}
    try:
        text = orjson.dumps(_without_nulls(conversation)).decode()
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise BadConversation(f"the conversation cannot be written as JSON ({error})") from error
    if reserved := _RESERVED.search(text):
        raise BadConversation(f"the conversation holds U+{ord(reserved[0]):04X}, a noncharacter")
    return text


def pair_columns(names: Collection[str]) -> tuple[str, ...]:
    """The columns that a conversation consists of where it has no messages, the answer's last.

    names: of all columns.
    """
    if {*_PAIR} <= {*names} or not {*_ALPACA} <= {*names}:
        return _PAIR
    return (_ALPACA[0], _INPUT, _ALPACA[1]) if _INPUT in names else _ALPACA


def says_not_to_learn(message: Mapping[str, Any]) -> bool:
    """Whether a message of the canonical JSON says that it is not learned."""
    return not all(message.get(name, 1) for name in _LEARN_FIELDS)


def with_owner(message: Mapping[str, Any], number: int, level: int) -> dict[str, Any]:
    """A message with its number before and after each text that it may have in a template.

    Of messages that are not the assistant's, this is the content alone. Templates often trim a
    text, or cut it at tags of thoughts, so these stay outside.

    level: where a text has nothing outside tags, the number is around them (3), or after the
    content (less). A blank content has it too (1 or more), and one that is absent (2 or more).
    """
    before, after = (f"{_OPEN}{slash}{number}{_CLOSE}" for slash in ("", "/"))

    def marked(value: Any) -> Any:
        if isinstance(value, str):
            pieces = _TAG.split(value)
            if level == ALL_TEXTS and not any(map(str.strip, pieces[::2])):
                pieces = [value]
            pieces[::2] = [
                _TRIMMED.sub(lambda text: before + text[0] + after, piece) for piece in pieces[::2]
            ]
            return "".join(pieces)
        if isinstance(value, list):
            return [marked(item) for item in value]
        if isinstance(value, dict):
            return {
                key: field if key in _WITHOUT_OWNERS else marked(field)
                for key, field in value.items()
            }
        return value

    fields = message if message["role"] == ASSISTANT else ("content",)
    owned = {**message, **marked({key: message[key] for key in fields if key in message})}
    content = message.get("content", "")
    if message.get("tool_calls") or _TAG.sub("", content).strip():
        return owned
    if not content.strip():
        if level > ("content" not in message):
            owned["content"] = before + after + content
    elif level < ALL_TEXTS:
        owned["content"] = content + before + after
    return owned


def _without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what its model thought before it wrote."""
    fields = {key: field for key, field in message.items() if key not in THINKING}
    if message["role"] == ASSISTANT and (thoughts := _THOUGHTS.match(message.get("content", ""))):
        fields["content"] = message["content"][thoughts.end() :]
    return fields


def _without_nulls(value: Any) -> Any:
    """A value without fields that are null: in Arrow a struct has the fields of all rows.

    Raises BadConversation for a number that JSON cannot hold, or that may have been an integer.
    """
    if isinstance(value, dict):
        return {key: _without_nulls(field) for key, field in value.items() if field is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, float) and not abs(value) < 1 << 63:
        raise BadConversation("the conversation holds a number of more than 64 bits, or NaN")
    return value


def _listed(value: Any, column: str) -> list[Any]:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise BadConversation(f"{column} is a text that is not JSON ({error})") from error
    if not isinstance(value, list):
        raise BadConversation(f"{column} is not a list but {quoted(value)}")
    return value


def _turn(row: Mapping[str, Any], column: str, role: str, context: str = "") -> list[Any]:
    """The messages of a column: messages, or a text, which that of another may follow as a line."""
    value, added = row.get(column), row.get(context)
    if value is None:
        raise BadConversation(f"there are no messages, and no {column}")
    if added:
        if not isinstance(value, str) or not isinstance(added, str):
            raise BadConversation(f"{column} and {context} are not both texts")
        value = f"{value}\n{added}"
    return [{"role": role, "content": value}] if isinstance(value, str) else _listed(value, column)


def _message(value: Any, number: int) -> dict[str, Any]:
    """A message without null fields, its content a text."""
    where = f"message {number}"
    if not isinstance(value, dict):
        raise BadConversation(f"{where} is not an object but {quoted(value)}")
    message = {key: field for key, field in value.items() if field is not None}
    if "role" not in message and "from" in message:
        message = _of_sharegpt(message, where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        keys = ", ".join(map(str, value)) or "nothing"
        raise BadConversation(f"{where} has no role, a text; it has {keys}")
    for name in _LEARN_FIELDS:
        if message.get(name, 1) not in (0, 1):
            raise BadConversation(
                f"{where} ({role}): {name} is {quoted(message[name])}; a message is learned (1 or "
                "true) or not (0 or false)"
            )
    if "content" in message:
        message["content"] = _text(message["content"], f"{where} ({role})")
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadConversation(f"{where} ({role}): tool_calls is not a list of objects")
    return message


def _of_sharegpt(message: dict[str, Any], where: str) -> dict[str, Any]:
    """The same message with `role` and `content`."""
    speaker = message["from"]
    if not isinstance(speaker, str) or speaker not in _SPEAKERS:
        raise BadConversation(
            f"{where} is from {quoted(speaker)}, which is not one of {', '.join(_SPEAKERS)}"
        )
    fields = {key: field for key, field in message.items() if key not in ("from", "value")}
    content = {"content": message["value"]} if "value" in message else {}
    return {"role": _SPEAKERS[speaker], **content, **fields}


def _text(content: Any, where: str) -> str:
    """The text of a content. Parts are joined as they are."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadConversation(f"{where}: content is not a text but {quoted(content)}")
    texts = []
    for number, part in enumerate(content, 1):
        kind = part.get("type") if isinstance(part, dict) else part
        if not isinstance(part, dict) or kind != "text" or not isinstance(part.get("text"), str):
            raise BadConversation(
                f"{where}: part {number} of content is {quoted(kind)}; only text can be learned"
            )
        texts.append(part["text"])
    return "".join(texts)
