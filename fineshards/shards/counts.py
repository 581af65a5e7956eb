"""Counts of rows, documents and tokens: of a record batch, a block, a file or a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, starmap
from operator import sub
from typing import Any

from fineshards.shards.job.records import from_fields

# Values of a label column that are counted one by one. FineWeb has about a hundred dumps, FineWeb-2
# fewer than two thousand languages; a column with more values holds something else.
MAX_VALUES = 2_000
MANY_VALUES = f"(more than {MAX_VALUES:,} values)"


@dataclass(frozen=True, slots=True)
class Sums:
    """Documents and their tokens.

    Args:
        documents: Number of documents.
        tokens: Their tokens, with one EOT each.
    """

    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class LabelCount:
    """Documents and tokens with one value of a label column.

    Args:
        column: Name of the label column, `dump` or `language`.
        value: The value, or `(more than 2,000 values)` for all of a column with so many.
        documents: Documents with that value.
        tokens: Their tokens.
    """

    column: str
    value: str
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Documents that a step of the recipe dropped for one reason.

    Args:
        step: Number of the step in the recipe, from 0.
        reason: Why, or `(more than 2,000 values)` for all of a step with so many reasons.
        documents: Number of documents.
        text_bytes: UTF-8 bytes of their texts as the source has them.
    """

    step: int
    reason: str
    documents: int
    text_bytes: int


@dataclass(frozen=True, slots=True)
class DroppedDump:
    """Documents with one value of the label column `dump` that a step of the recipe dropped.

    Args:
        step: Number of the step in the recipe, from 0.
        dump: The value, or `(more than 2,000 values)` for all of a step with so many.
        documents: Number of documents.
    """

    step: int
    dump: str
    documents: int


@dataclass(frozen=True, slots=True)
class Unextracted:
    """Pages of WARC files whose text cannot be extracted, for one reason.

    Args:
        reason: Why: `bad_response`, `too_large`, `too_deep` or `failed`.
        rows: Number of pages.
    """

    reason: str
    rows: int


@dataclass(frozen=True, slots=True)
class Counts:
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

    rows: int = 0
    documents: int = 0
    nulls: int = 0
    rejected: int = 0
    tokens: int = 0
    text_bytes: int = 0
    by_reference: int = 0
    compared: int = 0
    learned: int = 0
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

    def numbers(self) -> dict[str, int]:
        """All counts but those by label or reason, by name."""
        return _recorded({name: getattr(self, name) for name in _NUMBERS})

    def labels_json(self) -> dict[str, dict[str, dict[str, int]]]:
        """The labels in the manifest's form: by column, then by value."""
        nested: dict[str, dict[str, dict[str, int]]] = {}
        for label in self.labels:
            sums = {"documents": label.documents, "tokens": label.tokens}
            nested.setdefault(label.column, {})[label.value] = sums
        return nested

    @classmethod
    def from_manifest(cls, content: Mapping[str, Any]) -> Counts:
        """The counts of a manifest entry; raises KeyError or TypeError for other content."""
        labels = tuple(
            from_fields(LabelCount, sums, column=column, value=value)
            for column, values in content["labels"].items()
            for value, sums in values.items()
        )
        return from_fields(cls, {"learned": 0, **content}, labels=labels, **_left_out(content))

    def to_record(self) -> dict[str, Any]:
        """The counts in the form of a checkpoint."""
        labels = [asdict(label) for label in self.labels]
        return self.numbers() | {"labels": labels} | self.left_out_json()

    def left_out_json(self) -> dict[str, list[dict[str, Any]]]:
        """What was left out, in the manifest's form: by step or reason, without what is empty."""
        left_out = {
            "dropped": [asdict(each) for each in self.dropped],
            "dropped_dumps": [asdict(each) for each in self.dropped_dumps],
            "unextracted": [asdict(each) for each in self.unextracted],
        }
        return {name: found for name, found in left_out.items() if found}

    @classmethod
    def from_record(cls, content: Mapping[str, Any]) -> Counts:
        """The inverse of `to_record`; ignores other fields."""
        labels = tuple(LabelCount(**label) for label in content["labels"])
        return from_fields(cls, {"learned": 0, **content}, labels=labels, **_left_out(content))


_GROUPED = ("labels", "dropped", "dropped_dumps", "unextracted")
_NUMBERS = tuple(each.name for each in fields(Counts) if each.name not in _GROUPED)


def _recorded(numbers: dict[str, int]) -> dict[str, int]:
    """Numbers as records have them: without learned tokens where there are none."""
    return {name: number for name, number in numbers.items() if number or name != "learned"}


def _left_out(content: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The inverse of `Counts.left_out_json`."""
    kinds = {"dropped": Dropped, "dropped_dumps": DroppedDump, "unextracted": Unextracted}
    return {
        name: tuple(from_fields(kind, each) for each in content.get(name, ()))
        for name, kind in kinds.items()
    }


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
