"""Context parallelism: which tokens of a batch each rank of a group takes.

The rows of a batch are laid one after the other, and their documents are divided. `zigzag` gives a
rank two of 2 * size equal chunks of each document, one from its head and one from its tail, so that
causal attention is the same work for all: the rule of TransformerEngine's
`thd_get_partitioned_indices`, for ring attention. `contiguous` cuts the tokens into `size` equal
parts, for attention that gathers all keys.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.loader.boundaries import Bools, cumulative_lengths, positions
from fineshards.loader.sample_sources import Numbers

Layout = Literal["zigzag", "contiguous"]


class ContextPart(NamedTuple):
    """One rank's tokens.

    places: int64, shape (tokens,), of each in the flattened rows; padding has the place of its
    document's last token. padding: bool, of the same shape. position_ids: int32, of the same shape.
    cu_seqlens: int32, shape (documents + 1,), of the part.
    """

    places: Numbers
    padding: Bools
    position_ids: npt.NDArray[np.int32]
    cu_seqlens: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ContextParallel:
    """This process's place in a context-parallel group, whose ranks divide each batch's tokens.

    docs/loader.md says what a part's fields are.

    Args:
        rank: The rank in the group, from 0 to `size - 1`.
        size: Ranks in the group.
        layout: `zigzag`, for ring attention: a chunk from the head and one from the tail of each
            document, which is padded to a multiple of 2 * size tokens. `contiguous`, for attention
            that gathers all keys: consecutive tokens, without padding.

    Raises:
        UsageError: A number is out of range, or there is no such layout.

    Example:
        >>> from fineshards import BatchLoader, ContextParallel, TokenDataset
        >>> dataset = TokenDataset(dataset_folder, sequence_length=1024)
        >>> part = ContextParallel(rank=1, size=4, layout="contiguous")
        >>> fields = ("inputs", "targets", "position_ids", "cu_seqlens")
        >>> with BatchLoader(dataset, 8, context_parallel=part, fields=fields) as loader:
        ...     next(loader)["inputs"].shape
        (2048,)
    """

    rank: int
    size: int
    layout: Layout = "zigzag"

    def __post_init__(self) -> None:
        size = checked_integer("ContextParallel: size", self.size, 1)
        object.__setattr__(self, "size", size)
        rank = checked_integer("ContextParallel: rank", self.rank, 0, size - 1)
        object.__setattr__(self, "rank", rank)
        if self.layout not in get_args(Layout):
            raise UsageError(
                f"ContextParallel: layout is {self.layout!r}; choose 'zigzag' or 'contiguous'."
            )

    def part(self, begins: Bools) -> ContextPart:
        """This rank's tokens of rows. begins: where documents begin, bool, shape (n, T)."""
        if self.layout == "contiguous":
            size = begins.size // self.size
            here = slice(self.rank * size, (self.rank + 1) * size)
            inside = begins.reshape(-1)[here].copy()
            inside[:1] = True
            return ContextPart(
                np.arange(here.start, here.stop),
                np.zeros(size, np.bool_),
                positions(cumulative_lengths(begins))[here],
                cumulative_lengths(inside),
            )
        starts = np.flatnonzero(begins)
        lengths = np.diff(starts, append=begins.size)
        chunks = -(-lengths // (2 * self.size))
        firsts = np.stack((chunks * self.rank, chunks * (2 * self.size - 1 - self.rank)), axis=1)
        sizes = np.repeat(chunks, 2)
        ends = np.cumsum(sizes)
        here_positions = np.arange(sizes.sum()) + np.repeat(firsts.ravel() - (ends - sizes), sizes)
        lasts = np.repeat(lengths - 1, 2 * chunks)
        return ContextPart(
            np.repeat(starts, 2 * chunks) + np.minimum(here_positions, lasts),
            here_positions > lasts,
            here_positions.astype(np.int32),
            np.append(0, ends[1::2]).astype(np.int32),
        )


def check_context(context: object, length: int) -> None:
    """Raises UsageError unless it is a ContextParallel that can divide rows of T tokens."""
    if context is None:
        return
    if not isinstance(context, ContextParallel):
        raise UsageError(
            f"context_parallel is {quoted(context)}; give ContextParallel(rank=0, size=2)."
        )
    if context.layout == "contiguous" and length % context.size:
        raise UsageError(
            f"sequence_length {length} cannot be divided by the {context.size} ranks of "
            "context_parallel; give a multiple of them, or the zigzag layout."
        )
