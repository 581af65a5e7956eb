"""Stand-in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa


class EncodedConversation(NamedTuple):
    tokens: np.ndarray
    learned: np.ndarray


class BadConversation(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ConversationEncoder:
    def __init__(self, tokenizer, learn):
        self.tokenizer, self.learn = tokenizer, learn

    def encode(self, conversation: str) -> EncodedConversation:
        messages = orjson.loads(conversation)["messages"]
        parts, ranges, at = [np.empty(0, np.uint32)], [], 0
        for message in messages:
            if message["role"] == "bad":
                raise BadConversation("its role is bad")
            for text, learned in ((f"<{message['role']}>", False), (message.get("content") or "", message["role"] in self.learn)):
                tokens = self.tokenizer.encode(pa.array([text], pa.large_string())).tokens[1:]
                if learned and len(tokens):
                    ranges.append((at, at + len(tokens)))
                parts.append(tokens)
                at += len(tokens)
        return EncodedConversation(np.concatenate(parts), np.array(ranges, np.int32).reshape(-1, 2))


def conversation_encoder(template, tokenizer, learn):
    return ConversationEncoder(tokenizer, learn)
