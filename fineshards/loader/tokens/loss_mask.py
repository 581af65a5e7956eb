"""Which labels count: all but the tokens of the documents to skip."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.loader.sample_sources import Numbers
from fineshards.loader.tokens.redacted_tokens import RedactedTokens
from fineshards.loader.tokens.split_documents import SplitDocuments
from fineshards.shards.job.redaction import masked


class LossMask:
    """The loss mask of a split's tokens. Raises UsageError if `skip` is not what it must be."""

    def __init__(self, skip: object, documents: SplitDocuments, redacted: RedactedTokens) -> None:
        self._skip = _checked_skip(skip)
        self._documents = documents
        self._redacted = redacted
        self._skipped: Numbers | None = None

    def of(self, starts: Numbers, length: int) -> npt.NDArray[np.bool_]:
        """Which of `length` tokens from each start on count: bool, shape (n, length)."""
        if self._skipped is None:
            self._skipped = self._find_skipped()
        return masked(self._skipped, starts, length)

    def _find_skipped(self) -> Numbers:
        """The tokens of the documents to skip, as ranges in the split: int64, shape (n, 2)."""
        if self._skip == "redacted":
            return self._redacted.ranges()
        try:
            return self._documents.ranges(self._skip)
        except IndexError as error:
            raise UsageError(f"skip: the dataset has no document {error}.") from None


def _checked_skip(skip: object) -> Literal["redacted"] | tuple[int, ...]:
    """What `skip` says: numbers of documents, in any sequence, or `redacted`."""
    if skip is None:
        return ()
    if skip == "redacted" and isinstance(skip, str):
        return "redacted"
    if isinstance(skip, str) or not isinstance(skip, Iterable):
        raise UsageError(f"skip must be 'redacted' or numbers of documents, got {quoted(skip)}.")
    return tuple(checked_integer("skip", number, 0) for number in skip)
