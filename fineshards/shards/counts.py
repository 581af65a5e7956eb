"""Counts of rows, documents and tokens: of a record batch, a block, a file or a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fineshards.shards.records import from_fields

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
class Counts:
    """Counts of rows, and of the documents and tokens made from them. Add them with `+`.

    Args:
        rows: All rows read.
        documents: Rows with text; each is one document.
        nulls: Rows without text.
        rejected: Rows that cannot be encoded.
        tokens: Tokens of the documents, with one EOT each.
        text_bytes: UTF-8 bytes of the documents' text.
        by_reference: Documents encoded by the reference encoder.
        compared: Documents that the reference encoder encoded as well, with the same tokens.
        labels: Documents and tokens per label, sorted by column and value.

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
    labels: tuple[LabelCount, ...] = ()

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
        for part in parts:
            for name in _NUMBERS:
                numbers[name] += getattr(part, name)
            for label in part.labels:
                _add_label(labels.setdefault(label.column, {}), label)
        ordered = tuple(
            LabelCount(column, value, *labels[column][value])
            for column in sorted(labels)
            for value in sorted(labels[column])
        )
        return cls(**numbers, labels=ordered)

    @classmethod
    def sum_numbers(cls, parts: Iterable[Counts]) -> dict[str, int]:
        """The sums of all numbers by name, without the labels, which are many."""
        parts = list(parts)
        return {name: sum(getattr(part, name) for part in parts) for name in _NUMBERS}

    def balances(self) -> bool:
        """Whether every row is a document, has no text or was rejected.

        Returns:
            True if rows = documents + nulls + rejected.
        """
        return self.rows == self.documents + self.nulls + self.rejected

    def imbalance(self) -> str:
        """The numbers of rows that do not balance, for an error message."""
        return (
            f"{self.rows} rows, but {self.documents} documents, {self.nulls} null and "
            f"{self.rejected} rejected"
        )

    def numbers(self) -> dict[str, int]:
        """All counts but the labels, by name."""
        return {name: getattr(self, name) for name in _NUMBERS}

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
        return from_fields(cls, content, labels=labels)

    def to_record(self) -> dict[str, Any]:
        """The counts in the form of a checkpoint."""
        return self.numbers() | {"labels": [asdict(label) for label in self.labels]}

    @classmethod
    def from_record(cls, content: Mapping[str, Any]) -> Counts:
        """The inverse of `to_record`; ignores other fields."""
        labels = tuple(LabelCount(**label) for label in content["labels"])
        return from_fields(cls, content, labels=labels)


_NUMBERS = tuple(each.name for each in fields(Counts) if each.name != "labels")


def _add_label(values: dict[str, list[int]], label: LabelCount) -> None:
    """Adds a label to the sums of its column, by value.

    Whether a column is one label depends on its values alone: an addend with more than MAX_VALUES
    makes the sum have more. So order and grouping do not matter.
    """
    value = MANY_VALUES if MANY_VALUES in values else label.value
    entry = values.setdefault(value, [0, 0])
    entry[0] += label.documents
    entry[1] += label.tokens
    if value == MANY_VALUES or len(values) > MAX_VALUES:
        sums = [sum(column) for column in zip(*values.values(), strict=True)]
        values.clear()
        values[MANY_VALUES] = sums
