"""Counts of rows, documents and tokens: of a record batch, a block, a file or a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate, starmap
from operator import sub

from fineshards.shards.record import Count, Record

# Values of a label column that are counted one by one. FineWeb has about a hundred dumps, FineWeb-2
# fewer than two thousand languages; a column with more values holds something else.
MAX_VALUES = 2_000
MANY_VALUES = f"(more than {MAX_VALUES:,} values)"


class Sums(Record, frozen=True):
    """Documents and their tokens.

    Args:
        documents: Number of documents.
        tokens: Their tokens, with one EOT each.
    """

    documents: Count
    tokens: Count


class LabelCount(Record, frozen=True):
    """Documents and tokens with one value of a label column.

    Args:
        column: Name of the label column, `dump` or `language`.
        value: The value, or `(more than 2,000 values)` for all of a column with so many.
        documents: Documents with that value.
        tokens: Their tokens.
    """

    column: str
    value: str
    documents: Count
    tokens: Count


class Dropped(Record, frozen=True):
    """Documents that a step of the recipe dropped for one reason.

    Args:
        step: Number of the step in the recipe, from 0.
        reason: Why, or `(more than 2,000 values)` for all of a step with so many reasons.
        documents: Number of documents.
        text_bytes: UTF-8 bytes of their texts as the source has them.
    """

    step: Count
    reason: str
    documents: Count
    text_bytes: Count


class DroppedDump(Record, frozen=True):
    """Documents with one value of the label column `dump` that a step of the recipe dropped.

    Args:
        step: Number of the step in the recipe, from 0.
        dump: The value, or `(more than 2,000 values)` for all of a step with so many.
        documents: Number of documents.
    """

    step: Count
    dump: str
    documents: Count


class Unextracted(Record, frozen=True):
    """Pages of WARC files whose text cannot be extracted, for one reason.

    Args:
        reason: Why: `bad_response`, `too_large`, `too_deep` or `failed`.
        rows: Number of pages.
    """

    reason: str
    rows: Count


class Counts(Record, frozen=True):
    """Counts of rows, and of the documents and tokens made from them. Add them with `+`.

    Args:
        rows: All rows read.
        documents: Rows with text; each is one document.
        nulls: Rows without text.
        rejected: Rows that cannot be encoded, but for pages whose text cannot be extracted.
        tokens: Tokens of the documents, with one EOT each.
        text_bytes: UTF-8 bytes of the documents' text.
        by_reference: Documents encoded by the reference encoder.
        compared: Documents that the reference encoder encoded as well, with the same tokens.
        learned: Tokens of conversations that are learned.
        labels: Documents and tokens per label, sorted by column and value.
        dropped: Documents that the recipe dropped, by step and reason, sorted.
        dropped_dumps: Those of them with a value of `dump`, by step and value, sorted.
        unextracted: Pages whose text cannot be extracted, by reason, sorted.

    Example:
        >>> from fineshards.shards.counts import Counts
        >>> block = Counts(rows=3, documents=2, nulls=1, tokens=20)
        >>> (block + block).tokens, block.balances(), Counts(rows=1).balances()
        (40, True, False)
    """

    rows: Count = 0
    documents: Count = 0
    nulls: Count = 0
    rejected: Count = 0
    tokens: Count = 0
    text_bytes: Count = 0
    by_reference: Count = 0
    compared: Count = 0
    learned: Count = 0
    labels: tuple[LabelCount, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    dropped_dumps: tuple[DroppedDump, ...] = ()
    unextracted: tuple[Unextracted, ...] = ()

    def __add__(self, other: Counts) -> Counts:
        return Counts.total([self, other])

    @classmethod
    def total(cls, parts: Iterable[Counts]) -> Counts:
        """The sum of any number of counts.

        Args:
            parts: The counts to add; none give zeros.

        Returns:
            The sum of each number, and of the labels with the same column and value. A column
            with more than `MAX_VALUES` values has one label instead, `MANY_VALUES`.
        """
        numbers = dict.fromkeys(_NUMBERS, 0)
        labels: dict[str, dict[str, list[int]]] = {}
        dropped: dict[int, dict[str, list[int]]] = {}
        dumps: dict[int, dict[str, list[int]]] = {}
        unextracted: Counter[str] = Counter()
        for part in parts:
            for name in _NUMBERS:
                numbers[name] += getattr(part, name)
            for label in part.labels:
                sums = (label.documents, label.tokens)
                _add_value(labels.setdefault(label.column, {}), label.value, sums)
            for each in part.dropped:
                sums = (each.documents, each.text_bytes)
                _add_value(dropped.setdefault(each.step, {}), each.reason, sums)
            for of in part.dropped_dumps:
                _add_value(dumps.setdefault(of.step, {}), of.dump, (of.documents, 0))
            unextracted.update({each.reason: each.rows for each in part.unextracted})
        return cls(
            **numbers,
            labels=tuple(
                LabelCount(column, value, *values[value])
                for column, values in sorted(labels.items())
                for value in sorted(values)
            ),
            dropped=tuple(
                Dropped(step, reason, *reasons[reason])
                for step, reasons in sorted(dropped.items())
                for reason in sorted(reasons)
            ),
            dropped_dumps=tuple(
                DroppedDump(step, dump, values[dump][0])
                for step, values in sorted(dumps.items())
                for dump in sorted(values)
            ),
            unextracted=tuple(starmap(Unextracted, sorted(unextracted.items()))),
        )

    @classmethod
    def sum_numbers(cls, parts: Iterable[Counts]) -> dict[str, int]:
        """The sums of all numbers by name, without those by label or reason, which are many."""
        parts = list(parts)
        return _recorded({name: sum(getattr(part, name) for part in parts) for name in _NUMBERS})

    def balances(self) -> bool:
        """Whether every row is a document, has no text or was left out for a reason.

        Returns:
            True if rows = documents + nulls + rejected + dropped + unextracted.
        """
        left_out = self.rejected + self.documents_dropped + self.pages_unextracted
        return self.rows == self.documents + self.nulls + left_out

    @property
    def pages_unextracted(self) -> int:
        """The number of pages whose text cannot be extracted."""
        return sum(each.rows for each in self.unextracted)

    @property
    def documents_dropped(self) -> int:
        """The number of documents that the recipe dropped."""
        return sum(each.documents for each in self.dropped)

    def by_step(self, steps: int) -> dict[str | None, list[tuple[int, int]]]:
        """For each step of a recipe, the documents that reach it, and those that it drops.

        Of each dump of which any is dropped, and of all documents: None.
        """
        kept = {each.value: each.documents for each in self.labels if each.column == "dump"}
        gone: dict[str | None, list[int]] = {None: [0] * steps}
        for each in self.dropped:
            gone[None][each.step] += each.documents
        for of in () if MANY_VALUES in kept else self.dropped_dumps:  # those are counted together
            gone.setdefault(of.dump, [0] * steps)[of.step] += of.documents
        first = {dump: kept.get(dump or "", 0) + sum(sums) for dump, sums in gone.items()}
        first[None] = self.documents + self.documents_dropped
        return {
            dump: list(zip(accumulate(sums, sub, initial=first[dump]), sums, strict=False))
            for dump, sums in gone.items()
        }

    def imbalance(self) -> str:
        """The numbers of rows that do not balance, for an error message."""
        dropped = f", {self.documents_dropped} dropped" if self.dropped else ""
        pages = f", {self.pages_unextracted} not extracted" if self.unextracted else ""
        return (
            f"{self.rows} rows, but {self.documents} documents{dropped}{pages}, {self.nulls} null "
            f"and {self.rejected} rejected"
        )


_GROUPED = ("labels", "dropped", "dropped_dumps", "unextracted")
_NUMBERS = tuple(name for name in Counts.__struct_fields__ if name not in _GROUPED)


def _recorded(numbers: dict[str, int]) -> dict[str, int]:
    """Numbers as records have them: without learned tokens where there are none."""
    return {name: number for name, number in numbers.items() if number or name != "learned"}


def _add_value(values: dict[str, list[int]], value: str, sums: tuple[int, int]) -> None:
    """Adds to the two sums of one value of a column, or of one reason of a step.

    Whether a column has one entry depends on its values alone: an addend with more than MAX_VALUES
    makes the sum have more. So order and grouping do not matter.
    """
    value = MANY_VALUES if MANY_VALUES in values else value
    entry = values.setdefault(value, [0, 0])
    entry[0] += sums[0]
    entry[1] += sums[1]
    if value == MANY_VALUES or len(values) > MAX_VALUES:
        total = [sum(column) for column in zip(*values.values(), strict=True)]
        values.clear()
        values[MANY_VALUES] = total
