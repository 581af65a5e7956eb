"""The text of a conversation: its canonical JSON, whatever format it is read from.

`{"messages":[...]}`, with `"tools"` where there are some: compact, keys sorted, as orjson writes
it. A null field is an absent one, because Parquet and `datasets` fill fields with nulls. A `prompt`
and a `completion` are the messages of a user and of an assistant, or lists of messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson
import pyarrow as pa

from fineshards.shards.job.job import Columns

_PAIR = {"prompt": "user", "completion": "assistant"}
_TOOLS = "tools"


def conversation_columns(columns: Columns, names: Collection[str]) -> tuple[str, ...]:
    """The columns that a file's conversations consist of. names: of all of its columns."""
    pair = columns.text not in names and _PAIR.keys() <= {*names}
    found = tuple(_PAIR) if pair else (columns.text,)
    return (*found, _TOOLS) if _TOOLS in names and _TOOLS not in found else found


def text_columns(columns: Columns, names: Collection[str]) -> tuple[str, ...]:
    """The columns that a file's texts consist of. names: of all of its columns."""
    return conversation_columns(columns, names) if columns.conversations else columns.of_text


def conversation_texts(batch: pa.RecordBatch, columns: Columns) -> tuple[pa.Array, dict[int, str]]:
    """The conversations of a record batch, and why a row has none, by its index."""
    texts: list[str | None] = []
    reasons = {}
    names = conversation_columns(columns, batch.schema.names)
    for index, record in enumerate(_records(batch.select(names))):
        try:
            if isinstance(record, str):
                raise ValueError(record)
            texts.append(conversation_text(_without_nulls(record), columns))
        except ValueError as error:
            texts.append(None)
            reasons[index] = str(error)
    return pa.array(texts, pa.large_string()), reasons


def _records(batch: pa.RecordBatch) -> list[Any]:
    """The rows of a batch; of one that is not valid UTF-8, what is wrong with it."""
    try:
        return [*batch.to_pylist()]
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return ["its conversation is not valid UTF-8"]
    return [each for row in range(batch.num_rows) for each in _records(batch.slice(row, 1))]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def conversation_text(record: Mapping[str, Any], columns: Columns) -> str | None:
    """The conversation of a row, null where it has none; raises ValueError for a bad one."""
    names = conversation_columns(columns, record)
    if all(record.get(name) is None for name in names if name != _TOOLS):
        return None
    if columns.text in names:
        messages = _messages(_parsed(record, columns.text), columns.text)
    else:
        messages = [each for name, role in _PAIR.items() for each in _half(record, name, role)]
    content: dict[str, Any] = {"messages": messages}
    if tools := _parsed(record, _TOOLS):
        content[_TOOLS] = tools
    try:
        return orjson.dumps(content, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        raise ValueError(f"its conversation has no form in JSON ({error})") from None


def _parsed(record: Mapping[str, Any], name: str) -> Any:
    """A value, which may be the text of its JSON."""
    value = record.get(name)
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"its {name!r} is not valid JSON ({error.msg})") from None


def _half(record: Mapping[str, Any], name: str, role: str) -> list[dict[str, Any]]:
    value = record.get(name)
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return _messages(value, name)


def _messages(value: Any, name: str) -> list[dict[str, Any]]:
    """Messages without null fields; raises ValueError unless each has a role."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"its {name!r} is not a list of messages")
    for number, each in enumerate(value, 1):
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise ValueError(f"message {number} of its {name!r} is not an object with a 'role'")
    return [{key: held for key, held in each.items() if held is not None} for each in value]
