"""Compares the tokens of an import with the texts that they are said to be of, before the job."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import load_encoder
from fineshards.encoders.token_documents import encoder_of
from fineshards.errors import InputError
from fineshards.shards.job.job import Job
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Columns, Settings
from fineshards.sources.finding import find_files
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.storage.open import open_storage
from fineshards.storage.temporary import scratch_folder

_TEXTS = Columns("text", "id", id_required=False)
_BLOCK_BYTES = 16 << 20

# A document's file and row, and its tokens, EOT first.
_Document = tuple[str, int, npt.NDArray[np.uint32]]


def verify_texts(job: Job, vocabulary: bytes, patterns: tuple[str, ...]) -> None:
    """Raises InputError for the first document whose tokens are not those of its text.

    patterns: of files with the column `text`, whose rows with text are the documents in the order
    of the job. Also raises InputError if there are more texts than documents, or fewer.
    """
    settings = job.settings
    with scratch_folder() as folder:
        storage = open_storage(folder)
        storage.write(settings.tokenizer.file, vocabulary)
        documents = _documents(job.files, settings.columns, encoder_of(settings, storage))
        encoder = load_encoder(settings.tokenizer, storage, "auto")
        texts = _documents(find_files(patterns), _TEXTS, encoder)
        for document, text in zip_longest(documents, texts):
            _compare(document, text, settings)


def _documents(
    files: tuple[SourceFile, ...] | list[SourceFile], columns: Columns, encoder: Encoder
) -> Iterator[_Document]:
    for file in files:
        for block in discover_blocks(file, columns, _BLOCK_BYTES):
            for rows in read_block(file, columns, block):
                if rows.bad:
                    bad = rows.bad[0]
                    raise InputError(
                        f"{file.path}, {bad.place}row {bad.row}: {bad.reason}, so it cannot be "
                        "compared with tokens (--verify_text). Fix the row, or leave it out."
                    )
                found = rows.with_text()
                encoded = encoder.encode(found.texts)
                for index, row in enumerate(found.numbers.tolist()):
                    yield file.path, row, encoded.document(index)


def _compare(document: _Document | None, text: _Document | None, settings: Settings) -> None:
    """Raises InputError unless both are there and have the same tokens."""
    if document is None or text is None:
        which = "documents of tokens" if document is None else "texts of --verify_text"
        file, row, _ = document or text or ("", 0, None)
        raise InputError(
            f"{file}, row {row}: the {which} end before it. Give the texts of exactly the "
            "documents of the import, in their order."
        )
    (place, number, tokens), (path, row, expected) = document, text
    if np.array_equal(tokens, expected):
        return
    shared = min(len(tokens), len(expected))
    differ = np.flatnonzero(tokens[:shared] != expected[:shared])
    at = int(differ[0]) if len(differ) else shared
    there, wanted = (str(each[at]) if at < len(each) else "nothing" for each in (tokens, expected))
    raise InputError(
        f"{path}, row {row}: its text has other tokens than document {number} of {place}: after "
        f"the first {at - 1} tokens the document has {there}, and {settings.tokenizer.name} gives "
        f"{wanted} ({len(tokens) - 1} tokens there, {len(expected) - 1} of the text). Give the "
        "tokenizer that the file was made with, and texts in the order of the documents."
    )
