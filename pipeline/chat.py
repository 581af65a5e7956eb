"""How conversations become tokens, settled at launch."""

from __future__ import annotations

from fineshards.chat.chat_template import find_chat_template
from fineshards.chat.conversation_encoder import conversation_encoder
from fineshards.chat.golden_conversations import golden_sha256
from fineshards.config import BuildConfig
from fineshards.encoders.loading import recorded
from fineshards.shards.job.job import Chat, Tokenizer


def describe_chat(
    config: BuildConfig, place: str, tokenizer: Tokenizer, vocabulary: bytes
) -> tuple[Chat | None, tuple[bytes, ...]]:
    """The record of a chat template, and the content of its file; None, and none, for texts.

    place: of the tokenizer. vocabulary: the content of its file. Raises UsageError for a template
    that cannot be used.
    """
    if config.chat_template is None:
        return None, ()
    template = find_chat_template(config.chat_template, place)
    encoder = conversation_encoder(template, recorded(tokenizer, vocabulary), config.roles)
    chat = Chat(template.sha256, config.roles, template.special_strings, golden_sha256(encoder))
    return chat, (template.text.encode(),)
