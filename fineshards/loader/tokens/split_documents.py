"""The documents of one split, from its document tables. Importing this needs no Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError, quoted
from fineshards.extras import naming_the_extra
from fineshards.loader.arguments import checked_integer
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.layout import ShardKey

if TYPE_CHECKING:
    from fineshards.encoders.encoder import Encoder
    from fineshards.shards.dataset_files import Dataset


@dataclass(frozen=True, slots=True)
class SampleDocument:
    """The part of a document that lies in a sample.

    Attributes:
        number: The document's number in the dataset; documents of the test split come first.
        file: The source file of its text.
        row: The row in that file.
        id: The value of the id column; None if there is none.
        begin: Where the part starts in the sample, in tokens.
        end: Where it ends, exclusive.
        position: Tokens of the document before `begin`; 0 if its EOT is at `begin`.
    """

    number: int
    file: str
    row: int
    id: str | None
    begin: int
    end: int
    position: int


@dataclass(frozen=True, slots=True)
class WholeDocument:
    """A document of a dataset.

    Attributes:
        number: Its number in the dataset; documents of the test split come first.
        file: The source file of its text.
        row: The row in that file.
        id: The value of the id column; None if there is none.
        text: Its text, from its tokens; empty if it was redacted.
        tokens: Its tokens, uint32, shape (n,), EOT first; all EOT if it was redacted.
        redacted: Whether it was redacted.
    """

    number: int
    file: str
    row: int
    id: str | None
    text: str
    tokens: npt.NDArray[np.uint32]
    redacted: bool

    def __repr__(self) -> str:
        where = f"number {self.number:,} ({self.file}, row {self.row:,})"
        text = "redacted" if self.redacted else quoted(self.text)
        return f"WholeDocument: {where}, {len(self.tokens):,} tokens: {text}"


class SplitDocuments:
    """The documents of a split, as a dataset gives them. Tables are read when first needed.

    Its methods raise UsageError if pyarrow is not installed, and OutputError if a table is missing
    or damaged.
    """

    def __init__(self, split: SplitShards) -> None:
        self._split = split
        # The first token of sample 0; tokens and samples are counted from there.
        self._begin = 0
        self._dataset: Dataset | None = None
        self._encoder: Encoder | None = None

    def documents_between(self, begin: int, end: int) -> list[SampleDocument]:
        """The documents of tokens [begin, end) of the split; see `Source`."""
        self._check_tokens(begin, end)
        return self._between(self._begin + begin, self._begin + end)

    def decode(self, tokens: npt.ArrayLike) -> str:
        """The text of tokens, by the dataset's own tokenizer.

        Args:
            tokens: Integers, shape (n,), such as a sample.

        Returns:
            The text. An EOT has none, and a part of a character at an end is U+FFFD.

        Raises:
            UsageError: A number is not a token, or the tokenizer's library or pyarrow is missing.

        Example:
            >>> from fineshards import TokenDataset
            >>> dataset = TokenDataset(dataset_folder, sequence_length=1024)
            >>> dataset.decode(dataset[0][151:156])
            'LibreOffice Chart'
        """
        ids = np.asarray(tokens)
        size = self._split.vocabulary_size
        if ids.ndim != 1 or (len(ids) and not np.issubdtype(ids.dtype, np.integer)):
            raise UsageError(f"tokens are {quoted(tokens)}; give integers in one dimension.")
        if len(ids) and not 0 <= ids.min() <= ids.max() < size:
            wrong = ids[(ids < 0) | (ids >= size)][0]
            raise UsageError(f"{wrong} is not a token: they go from 0 to {size - 1:,}.")
        if self._encoder is None:
            with naming_the_extra():
                from fineshards.encoders.loading import load_reference

                settings = self._tables().manifest.settings
                self._encoder = load_reference(settings.tokenizer, self._split.storage)
        try:
            return self._encoder.decode(ids.astype(np.uint32))
        except KeyError as error:
            raise UsageError(f"{error.args[0]}: it is not in the vocabulary.") from error

    def document(self, number: int) -> WholeDocument:
        """A document of the dataset, with its text and tokens.

        Args:
            number: Its number in the dataset, as in `documents`; not one of the other split.

        Raises:
            IndexError: There is no such document.
            UsageError: It is in the other split, or the tokenizer's library or pyarrow is missing.
            OutputError: A document table or a shard is missing or damaged.

        Example:
            >>> from fineshards import TokenDataset
            >>> document = TokenDataset(dataset_folder, sequence_length=1024).document(176)
            >>> document.row, document.text[:17], document.tokens.shape
            (176, 'LibreOffice Chart', (737,))
        """
        number = checked_integer("the document's number", number, 0)
        if all(split != self._split.name for split, _, _ in self._tables().ranges(number)):
            numbers = self._numbers(0)
            raise UsageError(
                f"document {number} is not in the {self._split.name} split, which has documents "
                f"{numbers[0]} to {numbers[-1]}. Open the other split to read it."
            )
        document = self._tables().document(number)
        # A table says so late if the redaction is not finished; an EOT alone is an empty text.
        tokens, eot = document.tokens, self._split.eot
        redacted = document.redacted or bool(len(tokens) > 1 and (tokens == eot).all())
        text = "" if redacted else self.decode(tokens[1:])
        where = document.file, document.row, document.id
        return WholeDocument(number, *where, text, tokens, redacted)

    def all_documents(self) -> Iterator[WholeDocument]:
        """The documents with tokens in `tokens`, one by one, as `document` gives them.

        Example:
            >>> from fineshards import TokenDataset
            >>> dataset = TokenDataset(dataset_folder, "test", sequence_length=1024)
            >>> documents = list(dataset.all_documents())
            >>> len(documents), sum(len(document.tokens) for document in documents)
            (176, 100151)
        """
        return map(self.document, self._numbers(self._begin))

    def _between(self, begin: int, end: int) -> list[SampleDocument]:
        """The documents that tokens [begin, end) of the whole split touch."""
        layout, split = self._split.layout, self._split.name
        (first, _), (last, _) = layout.place(split, begin), layout.place(split, end - 1)
        documents: list[SampleDocument] = []
        for shard in range(first, last + 1):
            zero = layout.begin(ShardKey(split, shard))
            table = self._tables().table(self._position(shard))
            row = table.index_of_token(max(begin - zero, 0))
            while row < len(table) and zero + table.offset[row] < end:
                piece, row = table.piece(row), row + 1
                at = zero + piece.offset
                stop = min(at + piece.length, end) - begin
                if documents and documents[-1].number == piece.document:
                    # It goes on from the shard before, and is one document here.
                    documents[-1] = replace(documents[-1], end=stop)
                    continue
                first = max(at, begin)
                where = first - begin, stop, first - at + piece.start
                documents.append(
                    SampleDocument(piece.document, piece.file, piece.row, piece.id, *where)
                )
        return documents

    def _numbers(self, begin: int) -> range:
        """The numbers of the documents with tokens of the split from one on."""
        last = self._split.tokens - 1
        (first,), (end,) = self._between(begin, begin + 1), self._between(last, last + 1)
        return range(first.number, end.number + 1)

    def _check_tokens(self, begin: int, end: int) -> None:
        tokens = self._split.tokens - self._begin
        if not 0 <= begin <= end <= tokens:
            raise IndexError(
                f"there are no tokens [{begin:,}, {end:,}): the split has {tokens:,}, "
                "numbered from 0"
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_dataset": None, "_encoder": None}

    def _position(self, shard: int) -> int:
        """A shard's position in the manifest, which lists the test split first."""
        return shard + (self._split.layout.windows_of("test") if self._split.name == "train" else 0)

    @naming_the_extra()
    def _tables(self) -> Dataset:
        from fineshards.shards.dataset_files import Dataset

        if self._dataset is None:
            # A run that starts again while a redaction is unfinished is not stopped by it.
            manifest = Manifest.load_finished(self._split.storage, self._split.generation)
            self._dataset = Dataset(self._split.storage, manifest)
        return self._dataset
