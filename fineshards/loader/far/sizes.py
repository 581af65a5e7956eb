"""How large requests to far storage and their cache are, by the order in which samples are read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards import npy

# Large enough that a request takes longer to transfer than to begin.
BLOCK_BYTES = 8 << 20
# Blocks that are fetched ahead when they are read in order.
_AHEAD = 8
# Where the order is not known: as fast as exact requests in random order, and as large blocks,
# fetched ahead, in order.
_UNKNOWN_BLOCK_BYTES, _UNKNOWN_AHEAD = 256 << 10, 32
_CACHE_BYTES = 128 << 20
# Of samples requested ahead, where each is requested alone.
_SAMPLES_BYTES = 64 << 20
# A machine may run eight processes, which together use up to half of its memory.
_MEMORY_SHARE = 16
# A block of this many samples, of which one is wanted, is not much slower than the sample alone.
_FEW_SAMPLES = 4


class ReadingOrder(NamedTuple):
    """The order of reading, as BatchLoader has it."""

    shuffle: bool
    shuffle_shards: int | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """What to request and to keep.

    read_bytes: of a block, a multiple of 128; None for requests of exactly what is read.
    cache_bytes: what is kept, read or not. ahead: blocks fetched ahead of those read in order.
    """

    read_bytes: int | None
    cache_bytes: int
    ahead: int = 0


def sizes_for(
    split: SplitShards,
    sample_bytes: int,
    order: ReadingOrder | None,
    read_bytes: int | None = None,
    cache_bytes: int | None = None,
    memory: int | None = None,
) -> tuple[Sizes, str]:
    """The sizes for an order, and a warning where they cannot work, else an empty string.

    order: None if it is not known. read_bytes, cache_bytes: the user's; None to choose them.
    memory: of the machine; None to ask it.
    """
    together = shards_shuffled_together(split, order)
    given = read_bytes and -(-read_bytes // npy.HEADER_BYTES) * npy.HEADER_BYTES
    if together == 0:
        block = given or (_UNKNOWN_BLOCK_BYTES if order is None else BLOCK_BYTES)
        cache = max(cache_bytes or _CACHE_BYTES, block)
        ahead = _UNKNOWN_AHEAD if order is None else _AHEAD
        # The rest is for what was read last, and for what was requested ahead.
        return Sizes(block, cache, min(ahead, cache // (4 * block))), ""
    block, shard_bytes = given or BLOCK_BYTES, split.file_bytes(0)
    everything = split.shards * shard_bytes
    # A sample that crosses a shard's end needs the next shard's first block.
    needed = together * min(-(-shard_bytes // block) * block + block, 2 * shard_bytes)
    needed = min(needed, everything)
    largest = cache_bytes or (_share(memory) if together < split.shards else _CACHE_BYTES)
    if needed <= largest:
        return Sizes(block, cache_bytes or max(needed, block)), ""
    if together == split.shards:
        why = "samples are read at random from all shards"
    else:
        limit = "cache_bytes" if cache_bytes else "a sixteenth of this machine's memory"
        why = (
            f"shuffle_shards={together} reads at random from {needed:,} bytes, which is more than "
            f"{limit}, {largest:,}"
        )
    if given is None:
        warning = f"{why}, so every sample is a request of its own. Set cache_bytes={needed}, a "
        warning += "smaller shuffle_shards, or cache_folder."
        sizes = Sizes(None, cache_bytes or _SAMPLES_BYTES)
        return sizes, warning if together < split.shards else ""
    warning = (
        f"{why}, so nearly every sample of {sample_bytes:,} bytes takes a request of "
        f"read_bytes={read_bytes:,}, which is slow. Leave read_bytes out, or set "
        f"cache_bytes={needed} or cache_folder."
    )
    return Sizes(block, max(largest, block)), warning if block > _FEW_SAMPLES * sample_bytes else ""


def shards_shuffled_together(split: SplitShards, order: ReadingOrder | None) -> int:
    """From how many shards samples come at random; 0 if they come in order."""
    if order is None or not order.shuffle:
        return 0
    return min(order.shuffle_shards or split.shards, split.shards)


def _share(memory: int | None) -> int:
    if memory is None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(memory // _MEMORY_SHARE, _CACHE_BYTES)
