"""The encoder of a job's documents: texts, tokens that exist already, or conversations."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.chat.chat_template import ChatTemplate
from fineshards.chat.conversation import BadConversation
from fineshards.chat.golden_conversations import golden_sha256
from fineshards.encoders.encoder import Encoder, TokenBatch
from fineshards.encoders.fill_in_middle import MiddleEncoder
from fineshards.encoders.loading import load_reference, load_vocabulary
from fineshards.encoders.token_documents import encoder_of
from fineshards.errors import FineshardsError
from fineshards.shards.job.job import CHAT_TEMPLATE_NAME, Settings
from fineshards.shards.tables.documents import LEARNED
from fineshards.storage.base import Storage

if TYPE_CHECKING:
    from fineshards.chat.conversation_encoder import ConversationEncoder
    from fineshards.encoders.tokenizer_json import TokenizerJson
    from fineshards.encoders.vocabulary import Vocabulary


def document_encoder(settings: Settings, storage: Storage, engine: str | None = None) -> Encoder:
    """The encoder that makes a dataset's documents of what its sources hold.

    engine: the library that encodes text; None for the one that defines what is correct. Raises
    FineshardsError if golden conversations have other tokens here than at launch.
    """
    chat, tokenizer = settings.chat, settings.tokenizer
    if chat is None:
        encoder = encoder_of(settings, storage, engine)
        return encoder if settings.fim is None else MiddleEncoder(encoder, settings.fim)
    text = storage.read(CHAT_TEMPLATE_NAME).decode()
    template = ChatTemplate(text, chat.special_strings)
    conversations = _conversations(template, load_vocabulary(tokenizer, storage), chat.learn)
    golden = golden_sha256(conversations)
    if (template.sha256, golden) != (chat.template_sha256, chat.golden_sha256):
        raise FineshardsError(
            f"{CHAT_TEMPLATE_NAME} gives other tokens for golden conversations (sha256 {golden}) "
            f"than at launch (sha256 {chat.golden_sha256}). Restore the file, and install the "
            "pinned requirements on every worker."
        )
    return ConversationDocuments(conversations, load_reference(tokenizer, storage), tokenizer.eot)


@lru_cache(maxsize=1)  # workers that are forked later share it
def _conversations(
    template: ChatTemplate, vocabulary: Vocabulary | TokenizerJson, learn: tuple[str, ...]
) -> ConversationEncoder:
    # It imports jinja2, which jobs of texts do without.
    from fineshards.chat.conversation_encoder import conversation_encoder

    return conversation_encoder(template, vocabulary, learn)


class ConversationDocuments(Encoder):
    """Encodes the JSON of conversations, each after the dataset's EOT."""

    def __init__(self, conversations: ConversationEncoder, texts: Encoder, eot: int) -> None:
        self._conversations, self._texts, self._eot = conversations, texts, eot
        self.name = texts.name

    def encode(self, texts: pa.Array) -> TokenBatch:
        """See Encoder. One that is refused has no tokens, not even an EOT."""
        parts, lengths, learned, refused = [], [0], list[npt.NDArray[np.int32]](), []
        for index, text in enumerate(texts.to_pylist()):
            try:
                found = self._conversations.encode(text)
            except BadConversation as error:
                refused.append((index, error.reason))
                lengths.append(0)
                learned.append(_NO_RANGES)
            else:
                parts += [np.array([self._eot], np.uint32), found.tokens]
                lengths.append(1 + len(found.tokens))
                learned.append(found.learned + np.int32(1))
        return TokenBatch(
            np.concatenate([np.empty(0, np.uint32), *parts]),
            np.cumsum(lengths, dtype=np.int64),
            by_reference=len(lengths) - 1 - len(refused),
            learned=_lists(learned),
            refused=tuple(refused),
        )

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        return self._texts.decode(tokens)


_NO_RANGES = np.empty((0, 2), np.int32)


def _lists(learned: list[npt.NDArray[np.int32]]) -> pa.Array:
    """The ranges of each document, as the document tables have them."""
    offsets = np.cumsum([0, *(each.size for each in learned)], dtype=np.int32)
    flat = np.concatenate([_NO_RANGES, *learned]).ravel()
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), type=LEARNED.type)
