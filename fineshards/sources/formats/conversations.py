"""The text of a conversation, whatever format it is read from: its canonical JSON.

A row has it in the column that `--text_column` names (`messages`), or where that is null or absent,
in `prompt` and `completion`; and in `tools`, if there is such a column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from fineshards.chat.conversation import BadConversation, canonical
from fineshards.shards.job.settings import Columns

# In place of messages.
PAIR = ("prompt", "completion")
_TOOLS = "tools"


def choose_column(columns: Columns, names: Collection[str]) -> str:
    """What to do about a text column that is missing."""
    conversations = "messages" in names and columns.text_flag == "--text_column"
    also = " For conversations, add --chat_template." if conversations else ""
    return f"Choose one with {columns.text_flag}.{also}"


def text_columns(columns: Columns, names: Collection[str]) -> tuple[str, ...]:
    """The columns that a file's texts consist of. names: of all of its columns."""
    if not columns.conversations:
        return columns.of_text
    has_pair = columns.text not in names and {*PAIR} <= {*names}
    first = PAIR if has_pair else (columns.text,)
    # Only rows without messages need the pair, so one that is there twice is left to them.
    also = [name for name in PAIR if columns.text in names and [*names].count(name) == 1]
    return tuple(dict.fromkeys((*first, *also, *(name for name in names if name == _TOOLS))))


def conversation_text(record: Mapping[str, Any], columns: Columns) -> str | None:
    """The conversation of a row, null where it has none; raises BadConversation for a bad one."""
    names = text_columns(columns, record)
    if all(record.get(name) is None for name in names if name != _TOOLS):
        return None
    row = {name: record.get(name) for name in names}
    if columns.text in row:
        row["messages"] = row.pop(columns.text)
    return canonical(row)


def conversation_texts(batch: pa.RecordBatch, columns: Columns) -> tuple[pa.Array, dict[int, str]]:
    """The conversations of a record batch, and why a row has none, by its index."""
    texts: list[str | None] = []
    reasons = {}
    names = text_columns(columns, batch.schema.names)
    for index, record in enumerate(_records(batch.select(names), columns.text)):
        try:
            if record is None:
                raise BadConversation("its conversation is not valid UTF-8")
            texts.append(conversation_text(record, columns))
        except BadConversation as error:
            texts.append(None)
            reasons[index] = error.reason
    return pa.array(texts, pa.large_string()), reasons


def _records(batch: pa.RecordBatch, messages: str) -> list[dict[str, Any] | None]:
    """The rows of a batch; None for one that is not valid UTF-8.

    messages: the column that is taken instead of the pair, which must not reject a row then.
    """
    names = batch.schema.names
    if messages in names and batch.column(messages).null_count == 0:
        batch = batch.select([each for each in names if each == messages or each not in PAIR])
    try:
        return [*batch.to_pylist()]
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return [None]
    rows = (batch.slice(row, 1) for row in range(batch.num_rows))
    return [each for row in rows for each in _records(row, messages)]
