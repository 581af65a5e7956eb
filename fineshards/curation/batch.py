"""Documents of a record batch, on their way through the steps of a recipe."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Derived = TypeVar("Derived")


class Batch:
    """Documents of one source file, and what steps have derived from their texts.

    A step must not let one document of a batch influence another: how rows are cut into batches
    depends on the format and on the size of blocks.

    Args:
        file: The source file's number in the input.
        rows: Row numbers within the file, ascending, int64, shape (n,).
        texts: The texts, `large_string` without nulls, n of them.
        columns: Values of the columns that the steps ask for, n each, by name.
        columns_are_json: Whether each value is its JSON text, because the format has no types.
        path: The source file's path, for messages. No step may decide by it.
        scores: Those that scorers gave the documents, n each, by name: float64 or large_string.

    Example:
        >>> batch = Batch.of_texts(["one two", "three"])
        >>> batch.derived("lengths", lambda texts: [len(text) for text in texts])
        [7, 5]
        >>> batch.keep(np.array([False, True])).strings
        ['three']
    """

    def __init__(
        self,
        file: int,
        rows: npt.NDArray[np.int64],
        texts: pa.Array,
        columns: Mapping[str, pa.Array],
        columns_are_json: bool = False,
        path: str = "",
        scores: Mapping[str, pa.Array] | None = None,
    ) -> None:
        self.file = file
        self.rows = rows
        self.texts = texts
        self.columns = columns
        self.columns_are_json = columns_are_json
        self.path = path
        self.scores = scores or {}
        self._derived: dict[str, list[Any]] = {}

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> Batch:
        """Documents without a source, for golden values and tests; their rows count from 0."""
        return cls(0, np.arange(len(texts)), pa.array(texts, pa.large_string()), {})

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, row: int) -> str:
        """Names a row in a message."""
        return f"{self.path or f'file {self.file} of the input'}, row {row}"

    @cached_property
    def strings(self) -> list[str]:
        """The texts as Python strings."""
        strings: list[str] = self.texts.to_pylist()
        return strings

    def derived(self, name: str, derive: Callable[[list[str]], list[Derived]]) -> list[Derived]:
        """Something per document that follows from its text alone, and is computed once.

        Args:
            name: Names what is derived; one name always goes with one function.
            derive: From n texts to a list of n values, none of them None.

        Returns:
            The values of all documents, from this call or an earlier one.
        """
        known = self._derived.get(name)
        if known is None:
            known = self._derived[name] = derive(self.strings)
            return known
        missing = [index for index, value in enumerate(known) if value is None]
        if missing:
            derived = derive([self.strings[index] for index in missing])
            for index, value in zip(missing, derived, strict=True):
                known[index] = value
        return known

    def learn(self, part: Batch, indices: Sequence[int]) -> None:
        """Takes over what was derived for some of the documents, by themselves.

        part: those documents. indices: their places in this batch.
        """
        for name, values in part._derived.items() if part is not self else ():
            known = self._derived.setdefault(name, [None] * len(self))
            for index, value in zip(indices, values, strict=True):
                known[index] = value

    def keep(self, chosen: npt.NDArray[np.bool_]) -> Batch:
        """The documents where `chosen`, shape (n,), is true, with what was derived from them."""
        if chosen.all():
            return self
        mask, indices = pa.array(chosen), np.flatnonzero(chosen).tolist()
        batch = self._selected(self.rows[chosen], lambda values: values.filter(mask))
        if "strings" in self.__dict__:
            batch.__dict__["strings"] = [self.strings[index] for index in indices]
        batch._derived = {
            name: [values[index] for index in indices] for name, values in self._derived.items()
        }
        return batch

    def with_texts(self, texts: Sequence[str]) -> Batch:
        """The same documents with other texts; what was derived stays where a text is the same."""
        changed = [old != new for old, new in zip(self.strings, texts, strict=True)]
        if not any(changed):
            return self
        batch = copy.copy(self)
        batch.texts = pa.array(texts, pa.large_string())
        batch.__dict__["strings"] = list(texts)
        batch._derived = {
            name: [None if other else value for value, other in zip(values, changed, strict=True)]
            for name, values in self._derived.items()
        }
        return batch

    def with_scores(self, scores: Mapping[str, pa.Array]) -> Batch:
        """The same documents with more scores, n each, by name."""
        batch = copy.copy(self)
        batch.scores = {**self.scores, **scores}
        return batch

    def only(self, index: int) -> Batch:
        """One document by itself, without anything that was derived."""
        rows = self.rows[index : index + 1]
        return self._selected(rows, lambda values: values.slice(index, 1))

    def _selected(
        self, rows: npt.NDArray[np.int64], select: Callable[[pa.Array], pa.Array]
    ) -> Batch:
        """Some of the documents. select: takes their values out of those of all."""
        columns, scores = (
            {name: select(values) for name, values in named.items()}
            for named in (self.columns, self.scores)
        )
        texts, is_json = select(self.texts), self.columns_are_json
        return Batch(self.file, rows, texts, columns, is_json, self.path, scores)
