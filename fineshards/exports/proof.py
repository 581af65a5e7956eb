"""Proof that what an export has read is what the dataset's manifest says.

The checksums of all ranges that were read of a shard, joined, must be the one in the manifest.
Redacted documents that were left out count as what they must be, EOTs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from fineshards.errors import OutputError
from fineshards.exports.stream import Read, Stream
from fineshards.shards import npy
from fineshards.shards.job.records import ShardRecord
from fineshards.storage.checksums import checksum_to_base64, crc32c, crc32c_combine

# Tokens whose checksum is computed at once.
_CHUNK = 1 << 18


def damaged_shards(
    streams: Iterable[Stream], reads: Iterable[Read]
) -> Iterator[tuple[ShardRecord, OutputError]]:
    """The shards that are not what the manifest says, and how to say so.

    reads: all that was read of all shards.
    """
    of_shards = defaultdict(list)
    for read in reads:
        of_shards[read.shard].append(read)
    for stream in streams:
        for shard in stream.shards:
            found = _checksum(shard, stream, [*of_shards[shard.name], *_left_out(shard, stream)])
            if found != shard.crc32c:
                why = f"its crc32c is {found}, expected {shard.crc32c}"
                yield shard, stream.damaged(shard.name, why)


def _left_out(shard: ShardRecord, stream: Stream) -> Iterator[Read]:
    """The redacted documents that a stream leaves out of a shard, as if they had been read."""
    for begin, end in stream.redacted.get(shard.name, ()):
        checksum, left = 0, int(end - begin)
        eots = np.full(min(left, _CHUNK), stream.eot, stream.dtype).tobytes()
        while left > 0:
            checksum = crc32c(eots[: left * stream.dtype.itemsize], checksum)
            left -= _CHUNK
        yield Read(shard.name, int(begin), int(end), checksum)


def _checksum(shard: ShardRecord, stream: Stream, reads: list[Read]) -> str:
    """The checksum of a shard, from those of the ranges that were read of it.

    A token that was left out is an EOT.
    """
    size = stream.dtype.itemsize
    eot = crc32c(stream.dtype.type(stream.eot).tobytes())
    checksum, position = crc32c(npy.header(shard.tokens, stream.dtype)), 0
    for read in [*sorted(reads, key=lambda read: read.start), None]:
        start = shard.tokens if read is None else read.start
        for _ in range(min(start - position, 2)):
            checksum = crc32c_combine(checksum, eot, size)
        if read is not None:
            checksum = crc32c_combine(checksum, read.crc32c, (read.stop - read.start) * size)
            position = read.stop
    return checksum_to_base64(checksum)
