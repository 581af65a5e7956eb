"""The chat template of a job of conversations, settled at launch."""

from __future__ import annotations

from pathlib import Path

from fineshards.chat.chat_template import ChatTemplate
from fineshards.config import BuildConfig
from fineshards.errors import InputError
from fineshards.shards.job.job import Chat, Tokenizer


def describe_chat(
    config: BuildConfig, tokenizer: Tokenizer, vocabulary: bytes
) -> tuple[Chat | None, tuple[bytes, ...]]:
    """How conversations become tokens, and the template's text as it is stored; None for texts."""
    if config.chat_template is None:
        return None, ()
    try:
        template = ChatTemplate(Path(config.chat_template).read_text(), {})
    except OSError as error:
        raise InputError(f"--chat_template {config.chat_template} cannot be read: {error}.") from error
    chat = Chat(template.sha256, config.roles, (), "")
    return chat, (template.text.encode(),)
