"""What a step of a recipe is: a pure function of one document, or a decision about keys.

Pure means: no clock, no sequence of random numbers, no memory of earlier documents, no network.
Each step is a frozen dataclass. Its fields are the parameters that a recipe may set, with their
defaults; their annotations say what is allowed, and its docstring describes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import check_parameters
from fineshards.errors import UsageError


class Reason(str):
    """Why a document is dropped, which is all that is stored and counted, and how it came to that.

    measured: in words, such as "0.78 of the words have a letter, below 0.8: PARAMETER".
    """

    measured: str

    def __new__(cls, reason: str, measured: str = "") -> Reason:
        """The reason as text."""
        instance = super().__new__(cls, reason)
        instance.measured = measured
        return instance


def compared(
    how: str, reason: str, value: float, what: str, bound: float, parameter: str
) -> Reason:
    """A reason: how a value compares with a bound, with the digits that tell the two apart."""
    shown = f"{value:,}"
    if isinstance(value, float):
        rounded = (f"{value:.{digits}g}" for digits in range(2, 18))
        shown = next(text for text in rounded if (float(text) == bound) == (value == bound))
        shown += ".0" * shown.isdecimal()
    return Reason(reason, f"{shown} {what}, {how} {bound:,}: {parameter}")


below, above = partial(compared, "below"), partial(compared, "above")
not_above = partial(compared, "not above")


class Outcome(NamedTuple):
    """What a filter or a rewrite makes of the documents of a batch.

    reasons: per document, why it is dropped, or None to keep it; None if all are kept.
    texts: per document, its text from here on; None if all stay as they are. The text of a dropped
        document does not matter.
    scores: of a scorer, per document, its number or label, or null.
    """

    reasons: Sequence[str | None] | None = None
    texts: Sequence[str] | None = None
    scores: pa.Array | None = None

    def changed(self, before: Sequence[str]) -> list[int]:
        """The numbers of the documents that are kept with another text. before: their texts."""
        reasons = self.reasons or [None] * len(before)
        judged = enumerate(zip(self.texts or before, before, reasons, strict=True))
        return [n for n, (new, old, reason) in judged if reason is None and new != old]


class Step:
    """What filters, rewrites and keyed steps have in common."""

    # What recipes call it.
    NAME: ClassVar[str]
    # Raised whenever the step decides differently with the same parameters.
    VERSION: ClassVar[int] = 1
    # Whether the step is tried on golden documents. Not where other people's code may fail on them.
    GOLDEN: ClassVar[bool] = True

    def __init_subclass__(cls, name: str | None = None) -> None:
        """Names what recipes call the step."""
        if name is not None:
            cls.NAME = name

    def __post_init__(self) -> None:
        if not hasattr(self, "NAME"):
            raise UsageError(
                f"the class {type(self).__name__} has no name for recipes: give the one of its "
                'entry point, as in class Ascii(Judge, name="ascii").'
            )
        check_parameters(self, self.NAME)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the input that the step reads in addition to the text."""
        return ()

    @property
    def reads_scores(self) -> tuple[str, ...]:
        """Those of its columns that may also be names of scores."""
        return ()

    @property
    def advice(self) -> str:
        """What to do where a document that is judged again gets another verdict."""
        return (
            "Remove what depends on a clock, on chance or on earlier documents; if the step is one "
            "of fineshards, please report the document."
        )

    def pins(self) -> dict[str, str]:
        """What else decides: versions of libraries, SHA-256 of files, by name.

        The pins are part of the job; a worker with other ones stops.

        Raises:
            FineshardsError: If a library or a file is missing.
        """
        return {}


class Judge(Step):
    """A filter or a rewrite: judges each document by itself."""

    # Whether the step may return other texts: then it is done again whenever a text is read.
    REWRITES: ClassVar[bool] = False

    def apply(self, batch: Batch) -> Outcome:
        """Judges the documents of a batch.

        Raises:
            InputError: If a document cannot be judged; names its row.
        """
        raise NotImplementedError

    def apply_again(self, document: Batch) -> Outcome:
        """Judges one document in the plainest way, to be compared with what `apply` gave.

        Steps with a fast path override this and take the slow one.
        """
        return self.apply(document)

    def measured(self, document: Batch, reason: str) -> str | None:
        """What it measures of a document that it drops for a reason, where it says so."""
        (again,) = self.apply_again(document).reasons or [None]
        return again.measured if isinstance(again, Reason) and again == reason else None


class Scorer(Judge):
    """Gives each document a number or a label, and drops none.

    name: of the column that later steps and readers of the dataset find the scores in.
    """

    name: str

    @property
    def score_type(self) -> pa.DataType:
        """The type of the scores: float64 or large_string."""
        raise NotImplementedError


class Keys(NamedTuple):
    """Keys of the documents of a batch. Equal keys mean duplicates.

    keys: uint64, shape (m,) or, for keys of 128 bits, (m, 2).
    owners: the number of each key's document in the batch, int64, shape (m,), ascending.
    spans: the number of each key's span in its document, uint32, shape (m,); None if the keys are
        those of whole documents.
    """

    keys: npt.NDArray[np.uint64]
    owners: npt.NDArray[np.int64]
    spans: npt.NDArray[np.uint32] | None = None


class Keyed(Step):
    """A decision about keys of all documents: the first document in the stream keeps its key.

    A document without keys is kept.
    """

    # The least similarity of documents that count as the same, where their contents are compared.
    threshold: float

    @property
    def key_bits(self) -> int:
        """Bits of a key, 64 or 128."""
        return 128

    @property
    def reason(self) -> str:
        """Why a document is dropped that has a key of an earlier one."""
        return self.NAME

    def keys(self, batch: Batch) -> Keys:
        """The keys of the documents of a batch."""
        raise NotImplementedError

    @property
    def compared(self) -> int:
        """Earlier documents per key that a document is compared with; 0 if keys decide alone."""
        return 0

    def contents(self, batch: Batch) -> list[npt.NDArray[np.uint64]]:
        """The contents by which documents are compared: of each a set of hashes, ascending."""
        raise NotImplementedError

    def similarity(self, one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> float:
        """How alike two documents are, from 0 to 1. one, other: their contents."""
        raise NotImplementedError


class KeyedSpans(Keyed):
    """A keyed step that cuts spans of a text (lines, paragraphs, …) instead of dropping it."""

    def cut(self, text: str, spans: Sequence[int]) -> tuple[str | None, str]:
        """Cuts spans out of a text.

        Args:
            text: The text that `keys` numbered the spans of.
            spans: Numbers of spans whose keys an earlier span has, ascending.

        Returns:
            What is left, and "". None, and the reason, if the document is dropped.
        """
        raise NotImplementedError

    def removed(self, text: str, spans: Sequence[int]) -> list[str]:
        """The parts of a text that `cut` removes, for people."""
        raise NotImplementedError
