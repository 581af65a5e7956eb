"""Golden conversations, which show whether a worker encodes conversations as the launch did.

The hash of their tokens and of what is learned is part of the job's fingerprint: a worker with
another version of jinja2, or of the tokenizer's library, may differ, and stops.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from fineshards.chat.conversation import BadConversation, canonical
from fineshards.encoders.checked_encoder import GOLDEN_TEXTS

if TYPE_CHECKING:
    from fineshards.chat.conversation_encoder import ConversationEncoder

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


def golden_results(encoder: ConversationEncoder) -> tuple[str, set[int]]:
    """SHA-256, as hex, of the golden conversations' tokens and learned ranges; their last tokens.

    A template may refuse some, and then every worker must.
    """
    digest, last_tokens = hashlib.sha256(), set[int]()
    for each in encoder.encode_all([*map(canonical, _GOLDEN)]):
        if isinstance(each, BadConversation):
            digest.update(b"refused")
            continue
        tokens, learned = each
        digest.update(len(tokens).to_bytes(8, "little") + tokens.astype("<u4").tobytes())
        digest.update(learned.astype("<i4").tobytes())
        last_tokens.update(tokens[learned[:, 1] - 1].tolist())
    return digest.hexdigest(), last_tokens
