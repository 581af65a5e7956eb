"""Fields of a batch: what a training step takes, computed from tokens and document starts.

Pure functions. Shapes: n rows of T inputs each. A document starts wherever `starts` is true; every
row counts as a start, even where it begins in the middle of a document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError, did_you_mean, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.loader.boundaries import Bools, cumulative_lengths, positions
from fineshards.loader.context_parallel import ContextParallel, ContextPart
from fineshards.loader.memory import Memory
from fineshards.loader.mixing.mixture import Mixture
from fineshards.loader.sample_sources import Numbers, Samples, Source

# An array of samples, or a dict of fields: a union would make every user of batches narrow it.
Batch: TypeAlias = Any

NAMES = (
    "inputs",
    "targets",
    "labels",
    "position_ids",
    "document_ids",
    "loss_mask",
    "source_ids",
    "sample_ids",
    "cu_seqlens",
    "max_seqlen",
)
_DTYPES = ("uint16", "uint32", "int32", "int64")
# Fields that need to know where documents start.
_OF_DOCUMENTS = {"position_ids", "document_ids", "cu_seqlens", "max_seqlen"}


@dataclass(frozen=True, slots=True, eq=False)
class BatchRows:
    """Rows of a batch, before they are cut and shaped.

    inputs, targets: tokens, shape (n, T). starts: where documents start. counts: which targets
    count for the loss. source_ids: int32, shape (n,). sample_ids: int64, shape (n,). starts and
    counts are None where no field needs them. separate: whether inputs and targets share no memory.
    """

    inputs: Samples
    targets: Samples
    starts: Bools | None
    counts: Bools | None
    source_ids: npt.NDArray[np.int32]
    sample_ids: Numbers
    separate: bool = False

    def cut(self, length: int, max_documents: int | None) -> BatchRows:
        """Each row as rows of `length` tokens, which must divide T.

        max_documents: of each of these rows. The last ones of a row that has more count as one.
        """
        times = self.inputs.shape[1] // length
        starts = self.starts
        if starts is not None:
            starts = starts.reshape(-1, length)
            starts[:, :1] = True
            if max_documents is not None:
                starts &= np.cumsum(starts, axis=1) <= max_documents
        if times == 1:
            return self if starts is None else replace(self, starts=starts)
        return BatchRows(
            self.inputs.reshape(-1, length),
            self.targets.reshape(-1, length),
            starts,
            None if self.counts is None else self.counts.reshape(-1, length),
            np.repeat(self.source_ids, times),
            np.repeat(self.sample_ids, times),
            self.separate,
        )


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields a batch has, under which keys, and their dtype.

    keys: pairs of a key in the batch and a field. dtype: of inputs, targets and labels.
    ignore_index: the value of targets and labels that do not count; None leaves them. context:
    which part of the tokens this rank takes; None for all.
    """

    keys: tuple[tuple[str, str], ...]
    dtype: np.dtype[Any]
    ignore_index: int | None
    context: ContextParallel | None = None

    @classmethod
    def checked(
        cls,
        fields: Sequence[str] | Mapping[str, str],
        dtype: np.dtype[Any],
        ignore_index: int | None,
        context: ContextParallel | None = None,
    ) -> Fields:
        """Raises UsageError if there is no such field, or the dtype cannot hold ignore_index."""
        if isinstance(fields, str) or not isinstance(fields, Sequence | Mapping) or not fields:
            raise UsageError(f"fields is {quoted(fields)}; give a list of {', '.join(NAMES)}.")
        pairs = fields.items() if isinstance(fields, Mapping) else zip(fields, fields, strict=True)
        keys = tuple(pairs)
        for _, name in keys:
            if name not in NAMES:
                raise UsageError(
                    f"there is no field {name!r}.{did_you_mean(str(name), NAMES)} Choose from "
                    f"{', '.join(NAMES)}."
                )
        if len({name for _, name in keys}) < len(keys):
            raise UsageError(f"fields is {quoted(fields)}, which names a field twice.")
        if ignore_index is not None:
            ignore_index = checked_integer("ignore_index", ignore_index)
            limits = np.iinfo(dtype)
            if not limits.min <= ignore_index <= limits.max:
                raise UsageError(
                    f"ignore_index {ignore_index} is not a number of dtype {dtype}; give "
                    'dtype="int64".'
                )
        return cls(keys, dtype, ignore_index, context)

    def check_labels(self, packed: bool) -> None:
        """Raises UsageError if some labels would be wrong, because an input is not followed by its
        target in a packed row or in a part of the tokens, or if padding would count."""
        if self.context is not None and self.has("labels"):
            raise UsageError(
                "a part of the tokens (context_parallel) has no labels that a model can shift. "
                "Take targets instead."
            )
        zigzag = self.context is not None and self.context.layout == "zigzag"
        if zigzag and self.has("targets") and not self.need_mask:
            raise UsageError(
                "the zigzag layout pads documents, and padding must not count. Take the field "
                "loss_mask, or give ignore_index, such as -100."
            )
        if packed and self.ignore_index is None and self.has("labels"):
            raise UsageError(
                "labels of packed rows need ignore_index, such as -100: an input may be followed "
                "by a part of another document, which is not its label."
            )

    def has(self, field: str) -> bool:
        """Whether a batch has a field."""
        return any(name == field for _, name in self.keys)

    @property
    def need_documents(self) -> bool:
        """Whether a field needs to know where documents start."""
        return self.context is not None or any(name in _OF_DOCUMENTS for _, name in self.keys)

    @property
    def need_mask(self) -> bool:
        """Whether a field depends on which targets count."""
        return self.ignore_index is not None or self.has("loss_mask")

    def of(self, rows: BatchRows, memory: Memory, max_documents: int | None) -> dict[str, Any]:
        """A batch. max_documents: those of a row for which `cu_seqlens` has room, if not None."""
        part: ContextPart | None = None
        ends = np.zeros(1, np.int32)
        if rows.starts is not None and self.context is not None:
            part = self.context.part(rows.starts)
            ends = part.cu_seqlens
        elif rows.starts is not None:
            ends = cumulative_lengths(rows.starts)
        documents = 0 if max_documents is None else max_documents * len(rows.inputs)
        return {
            key: self._field(name, rows, memory, part, ends, documents) for key, name in self.keys
        }

    def _field(
        self,
        name: str,
        rows: BatchRows,
        memory: Memory,
        part: ContextPart | None,
        ends: npt.NDArray[np.int32],
        documents: int,
    ) -> Any:
        match name:
            case "source_ids":
                return rows.source_ids
            case "sample_ids":
                return rows.sample_ids
            case "cu_seqlens":
                return np.append(ends, np.repeat(ends[-1:], max(0, documents + 1 - len(ends))))
            case "max_seqlen":
                return int(np.diff(ends).max(initial=0))
            case "position_ids" if part is not None:
                return part.position_ids
            case "position_ids":
                return positions(ends).reshape(rows.inputs.shape)
            case "loss_mask":
                values: Any = rows.counts
            case "document_ids":
                assert rows.starts is not None
                values = np.cumsum(rows.starts, axis=1, dtype=np.int32) - np.int32(1)
            case _:
                values = self._tokens(name, rows, memory)
        if part is None:
            return values
        values = values.reshape(-1)[part.places]
        if name == "loss_mask":
            values[part.padding] = False
        elif name == "targets" and self.ignore_index is not None:
            values[part.padding] = self.ignore_index
        return values

    def _tokens(self, name: str, rows: BatchRows, memory: Memory) -> Samples:
        """A field of tokens; in memory of its own, so that changing one never changes another."""
        tokens = rows.targets if name == "targets" else rows.inputs
        if not rows.separate or tokens.dtype != self.dtype or self.has("labels"):
            tokens = memory.empty(tokens.shape, self.dtype)
            tokens[...] = rows.targets if name == "targets" else rows.inputs
        counts = _labels_that_count(rows) if name == "labels" else rows.counts
        if name != "inputs" and self.ignore_index is not None and counts is not None:
            tokens[~counts] = self.ignore_index
        return tokens


def checked_dtype(dtype: npt.DTypeLike, source: Source | Mixture) -> np.dtype[Any]:
    """The dtype of a batch's tokens; raises UsageError if it may not hold them."""
    try:
        # Those of torch are known by their names alone.
        tokens = np.dtype(name[6:] if (name := str(dtype)).startswith("torch.") else dtype)
    except TypeError:
        tokens = None
    if tokens is None or tokens.name not in _DTYPES:
        raise UsageError(f"dtype is {dtype!r}; choose from {', '.join(_DTYPES)}.")
    if tokens == np.uint16:
        sources = source.sources if isinstance(source, Mixture) else (source,)
        for one in sources:
            on_disk = getattr(one, "dtype", None)
            if on_disk != tokens:
                raise UsageError(
                    f"dtype is uint16, but a source's tokens are {on_disk or 'of unknown size'}. "
                    "Choose another dtype."
                )
    return tokens


def _labels_that_count(rows: BatchRows) -> Bools | None:
    """Which labels count where label i is input i: those that are the target of input i - 1."""
    if rows.counts is None:
        return None
    # In a packed row, an input may be followed by the rest of another document.
    counts = np.ones_like(rows.counts)
    counts[:, 1:] = rows.counts[:, :-1] & (rows.inputs[:, 1:] == rows.targets[:, :-1])
    return counts
