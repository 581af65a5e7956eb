"""How conversations become tokens, settled at launch."""

from __future__ import annotations

import logging
import re

from fineshards.chat.chat_template import find_chat_template
from fineshards.chat.conversation_encoder import ConversationEncoder
from fineshards.chat.golden_conversations import golden_sha256
from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.encoders.vocabulary import Vocabulary
from fineshards.shards.job.settings import Chat

_SPECIAL = re.compile(r"<\|\w+\|>")
_log = logging.getLogger("fineshards")


def describe_chat(
    template: str, learn: tuple[str, ...], place: str, vocabulary: Vocabulary | TokenizerJson
) -> tuple[Chat, bytes]:
    """The record of a chat template, and the content of its file.

    template: what `--chat_template` names. learn: roles. place: of the tokenizer. Raises UsageError
    for a template that cannot be used.
    """
    found = find_chat_template(template, place)
    encoder = ConversationEncoder(found, vocabulary, learn)
    special = {text for text, _ in vocabulary.special_tokens}
    if ordinary := sorted({*_SPECIAL.findall(found.text)} - special):
        _log.warning(
            "the chat template writes %s, which the tokenizer reads as ordinary text, in several "
            "tokens each: choose a tokenizer that has them as special tokens",
            ", ".join(ordinary),
        )
    chat = Chat(found.sha256, learn, found.special_strings, golden_sha256(encoder))
    return chat, found.text.encode()
