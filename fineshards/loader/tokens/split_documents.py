"""The documents of one split, from its document tables. Importing this needs no Arrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError, quoted
from fineshards.extras import naming_the_extra
from fineshards.loader.sample_documents import (
    SampleDocument,
    WholeDocument,
    documents_of,
    pieces_between,
)
from fineshards.loader.sample_sources import Numbers
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.layout import ShardKey

if TYPE_CHECKING:
    from fineshards.encoders.encoder import Encoder
    from fineshards.shards.dataset_files import Dataset


class SplitDocuments:
    """The documents of a split. Tables are read when they are first needed.

    Its methods raise UsageError if pyarrow is not installed, and OutputError if a table is missing
    or damaged.
    """

    def __init__(self, split: SplitShards) -> None:
        self._split = split
        self._dataset: Dataset | None = None
        self._encoder: Encoder | None = None

    def between(self, begin: int, end: int) -> list[SampleDocument]:
        """The documents that tokens [begin, end) of the split touch."""
        layout, split = self._split.layout, self._split.name
        (first, _), (last, _) = layout.place(split, begin), layout.place(split, end - 1)
        pieces = pieces_between(
            (
                (layout.begin(ShardKey(split, shard)), self._tables().table(self._position(shard)))
                for shard in range(first, last + 1)
            ),
            begin,
            end,
        )
        return documents_of(pieces, begin, end)

    def ranges(self, numbers: Iterable[int]) -> Numbers:
        """The split's tokens of documents of the dataset: int64, shape (n, 2), ascending.

        Raises IndexError with the number of a document that there is not.
        """
        found: list[tuple[str, int, int]] = []
        for number in numbers:
            try:
                found += self._tables().ranges(number)
            except IndexError:
                raise IndexError(number) from None
        ranges = sorted({(begin, end) for split, begin, end in found if split == self._split.name})
        return np.array(ranges, np.int64).reshape(-1, 2)

    def numbers(self, begin: int) -> range:
        """The numbers of the documents with tokens of the split from one on."""
        last = self._split.tokens - 1
        (first,), (end,) = self.between(begin, begin + 1), self.between(last, last + 1)
        return range(first.number, end.number + 1)

    def whole(self, number: int) -> WholeDocument:
        """A document of the dataset, with its text; raises IndexError if there is none."""
        found = self._tables().document(number)
        # A table says so late if the redaction is not finished; an EOT alone is an empty text.
        tokens, eot = found.tokens, self._split.eot
        redacted = found.redacted or bool(len(tokens) > 1 and (tokens == eot).all())
        text = "" if redacted else self.decode(tokens[1:])
        return WholeDocument(number, found.file, found.row, found.id, text, tokens, redacted)

    def decode(self, tokens: npt.ArrayLike) -> str:
        """The text of tokens; raises UsageError for other numbers."""
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

    def close(self) -> None:
        """Releases the tables. The next use reads them again."""
        self._dataset = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_dataset": None, "_encoder": None}

    def _position(self, shard: int) -> int:
        """A shard's position in the manifest, which lists the test split first."""
        return shard + (self._split.layout.test_windows if self._split.name == "train" else 0)

    @naming_the_extra()
    def _tables(self) -> Dataset:
        from fineshards.shards.dataset_files import Dataset

        if self._dataset is None:
            # A run that starts again while a redaction is unfinished is not stopped by it.
            manifest = Manifest.load_finished(self._split.storage, self._split.generation)
            self._dataset = Dataset(self._split.storage, manifest)
        return self._dataset
