"""The encoder of a job's documents: texts or conversations."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.chat.chat_template import ChatTemplate
from fineshards.chat.conversation import BadConversation
from fineshards.chat.golden_conversations import golden_results
from fineshards.encoders.encoder import Encoder, TokenBatch
from fineshards.encoders.fill_in_middle import MiddleEncoder
from fineshards.encoders.loading import load_encoder, load_reference, load_vocabulary
from fineshards.errors import FineshardsError
from fineshards.shards.job.settings import CHAT_TEMPLATE_NAME, Settings
from fineshards.shards.record import replace
from fineshards.shards.tables.documents import LEARNED
from fineshards.storage.base import Storage

if TYPE_CHECKING:
    from fineshards.chat.conversation_encoder import ConversationEncoder


def document_encoder(settings: Settings, storage: Storage, engine: str | None = None) -> Encoder:
    """The encoder that makes a dataset's documents of what its sources hold.

    engine: the library that encodes text; None for the one that defines what is correct. Raises
    FineshardsError if golden conversations have other tokens here than at launch.
    """
    return _build(replace(settings, recipe=None), storage, engine)  # a recipe has no hash


@lru_cache(maxsize=2)  # workers that are forked later share what is built and checked here
def _build(settings: Settings, storage: Storage, engine: str | None) -> Encoder:
    chat, tokenizer = settings.chat, settings.tokenizer
    if chat is None:
        load = partial(load_encoder, engine=engine) if engine else load_reference
        encoder = load(tokenizer, storage)
        return encoder if settings.fim is None else MiddleEncoder(encoder, settings.fim)
    from fineshards.chat.conversation_encoder import ConversationEncoder  # imports jinja2

    template = ChatTemplate(storage.read(CHAT_TEMPLATE_NAME).decode(), chat.special_strings)
    vocabulary, texts = load_vocabulary(tokenizer, storage), load_reference(tokenizer, storage)

    def encoder_with(fast: bool, reference: Encoder | None = None) -> ConversationDocuments:
        conversations = ConversationEncoder(template, vocabulary, chat.learn, fast)
        golden, _ = golden_results(conversations)
        if (template.sha256, golden) != (chat.template_sha256, chat.golden_sha256):
            raise FineshardsError(
                f"{CHAT_TEMPLATE_NAME} gives other tokens for golden conversations (sha256 "
                f"{golden}) than at launch (sha256 {chat.golden_sha256}). Restore the file, and "
                "install the pinned requirements on every worker."
            )
        return ConversationDocuments(conversations, texts, reference)

    exact = encoder_with(fast=False)
    return encoder_with(fast=True, reference=exact) if engine in ("auto", "gigatoken") else exact


class ConversationDocuments(Encoder):
    """Encodes the JSON of conversations, each after the dataset's EOT.

    texts: decodes. reference: what a fast encoder is compared with; None if this is not one.
    """

    def __init__(
        self, conversations: ConversationEncoder, texts: Encoder, reference: Encoder | None
    ) -> None:
        self._conversations, self._texts = conversations, texts
        self._reference = reference if conversations.is_fast else None
        self.name = texts.name

    @property
    def reference(self) -> Encoder:
        return self._reference or self

    def encode(self, texts: pa.Array) -> TokenBatch:
        """See Encoder. One that is refused has no tokens, not even an EOT."""
        found = self._conversations.encode_all(texts.to_pylist())
        eot = np.array([self._conversations.eot], np.uint32)
        parts: list[npt.NDArray[np.uint32]] = [eot[:0]]
        lengths, learned, refused = [0], [], []
        for index, each in enumerate(found):
            if isinstance(each, BadConversation):
                refused.append((index, each.reason))
                learned.append(_NO_RANGES)
            else:
                parts += [eot, each.tokens]
                learned.append(each.learned + np.int32(1))
            lengths.append(0 if isinstance(each, BadConversation) else 1 + len(each.tokens))
        return TokenBatch(
            np.concatenate(parts),
            np.cumsum(lengths, dtype=np.int64),
            by_reference=0 if self._reference else len(found) - len(refused),
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
