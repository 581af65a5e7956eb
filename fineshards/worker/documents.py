"""What happens to a row of the input before it is tokenized. No Beam.

A row with text becomes a document. The steps of a recipe drop some documents and give others
another text. Every loop over documents is one over `documents`: of a build, also between two keyed
steps; of a repair, which takes all decisions from the dataset; of verify; of other datasets that
documents are looked up in; and of what people are shown of dropped documents. `document_encoder` is
what then makes tokens of them: of texts, of conversations, or of tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, starmap

import numpy as np

from fineshards.chat.chat_template import ChatTemplate
from fineshards.curation.batch import Batch
from fineshards.curation.curator import Curator
from fineshards.encoders.encoder import Encoder, TokenEncoder
from fineshards.encoders.fill_in_middle import MiddleEncoder
from fineshards.encoders.loading import load_encoder, load_reference, load_vocabulary
from fineshards.errors import FineshardsError
from fineshards.shards import record
from fineshards.shards.counts import Counts, Unextracted
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import CHAT_TEMPLATE_NAME, Settings
from fineshards.shards.tables.decisions import NO_DECISIONS, NO_STEP, Decisions
from fineshards.sources.reading import RowReader, discover_blocks, read_block
from fineshards.sources.rows import Rows
from fineshards.storage.base import Storage


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """The documents of a record batch, as a step of the recipe finds them.

    read: all rows, as the source has them; bad ones are listed. batch: the documents that are left,
    with their texts, and the columns that steps ask for. decisions: those that dropped the others.
    spared: whether they are in a test file, and no step changes or drops them.
    """

    read: Rows
    batch: Batch
    decisions: tuple[Decisions, ...] = ()
    spared: bool = False

    @property
    def rows(self) -> Rows:
        """The rows of the documents that are left, with the texts that steps gave them."""
        rows = self.read
        if len(self.batch) < len(rows.numbers):
            rows = rows.filter(np.isin(rows.numbers, self.batch.rows), rows.bad)
        return replace(rows, texts=self.batch.texts)

    def counts(self) -> list[Counts]:
        """Counts, to be added up, of all rows and of those that are left out."""
        rows, dumps = self.read, self.read.labels.get("dump")
        pages = Counter(bad.unextracted for bad in rows.bad if bad.unextracted is not None)
        read = Counts(
            rows=len(rows.numbers) + len(rows.bad),
            nulls=rows.texts.null_count,
            rejected=len(rows.bad) - pages.total(),
            unextracted=tuple(starmap(Unextracted, sorted(pages.items()))),
        )
        dropped = (some.count_dropped(rows.numbers, rows.texts, dumps) for some in self.decisions)
        return [read, *dropped]

    def among(self, rows: Collection[int]) -> DocumentBatch:
        """The documents in some rows."""
        return replace(self, batch=self.batch.keep(np.isin(self.batch.rows, [*rows])))

    def left_by(self, decisions: Decisions, before: int | None = None) -> DocumentBatch:
        """The documents that decisions do not drop, or not before a step; texts are as they are."""
        is_left = decisions.dropping(self.batch.rows) >= (NO_STEP if before is None else before)
        return replace(self, batch=self.batch.keep(is_left), decisions=(decisions,))

    def found_by(
        self, curator: Curator, decisions: Decisions, step: int | None = None
    ) -> DocumentBatch:
        """The documents that reach a step, with the texts that it finds; None: after all steps.

        Spared documents are compared with the texts that the recipe would give them.
        """
        left = self.left_by(decisions, step)
        if self.spared and step is None:
            return left
        return replace(left, batch=curator.texts(left.batch, decisions, step, self.spared))


def documents(
    file: SourceFile,
    settings: Settings,
    block: Block | None = None,
    *,
    rows: Collection[int] | None = None,
    curator: Curator | None = None,
    decisions: Decisions = NO_DECISIONS,
    upto: int | None = None,
) -> Iterator[DocumentBatch]:
    """Yields the documents of a source file, in order.

    Args:
        file: The source file.
        settings: How it is read.
        block: The block that is read. Default: all of them.
        rows: Which documents are read: no others, and no more of the file than for these.
        curator: The steps of the recipe. Default: none; the documents are as in the source.
        decisions: What is decided about the file, at least by the steps before `upto`.
        upto: The number of the step that finds the documents so. Default: that of no step: all have
            kept them.

    Raises:
        InputError: If the file has changed, or cannot be read.
        FineshardsError: If a step drops a document that it has kept.
    """
    if rows is not None:
        read = RowReader(file, settings).read(rows) if rows else iter(())
    else:
        blocks = [block] if block else discover_blocks(file, settings.columns, settings.block_bytes)
        read = chain.from_iterable(read_block(file, settings.columns, part) for part in blocks)
    for rows_read in read:
        texts = rows_read.with_text()
        columns = texts.others, texts.others_are_json
        whole = Batch(file.index, texts.numbers, texts.texts, *columns, file.path)
        batch = DocumentBatch(rows_read, whole, spared=settings.spares(file))
        yield batch if curator is None else batch.found_by(curator, decisions, upto)


def document_encoder(settings: Settings, storage: Storage, engine: str | None = None) -> Encoder:
    """The encoder that makes a dataset's documents of what its sources hold.

    engine: the library that encodes text; None for the one that defines what is correct. Raises
    FineshardsError if golden conversations have other tokens here than at launch.
    """
    return _build(record.replace(settings, recipe=None), storage, engine)  # a recipe has no hash


@lru_cache(maxsize=2)  # workers that are forked later share what is built and checked here
def _build(settings: Settings, storage: Storage, engine: str | None) -> Encoder:
    chat, tokenizer = settings.chat, settings.tokenizer
    if settings.columns.tokens is not None:
        return TokenEncoder(tokenizer.eot)
    if chat is None:
        load = partial(load_encoder, engine=engine) if engine else load_reference
        encoder = load(tokenizer, storage)
        return encoder if settings.fim is None else MiddleEncoder(encoder, settings.fim)
    from fineshards.chat.conversation_encoder import ConversationEncoder  # imports jinja2

    template = ChatTemplate(storage.read(CHAT_TEMPLATE_NAME).decode(), chat.special_strings)
    load_reference(tokenizer, storage)
    vocabulary = load_vocabulary(tokenizer, storage)
    is_fast = engine in ("auto", "gigatoken")
    conversations = ConversationEncoder(template, vocabulary, chat.learn, is_fast)
    for encoder in (conversations.reference, conversations):
        golden, _ = encoder.golden()
        if (template.sha256, golden) != (chat.template_sha256, chat.golden_sha256):
            raise FineshardsError(
                f"{CHAT_TEMPLATE_NAME} gives other tokens for golden conversations (sha256 "
                f"{golden}) than at launch (sha256 {chat.golden_sha256}). Restore the file, and "
                "install the pinned requirements on every worker."
            )
    return conversations
