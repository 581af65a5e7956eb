"""The content fingerprint: what shards hold, whatever they were made from, where and when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from fineshards.shards.job.records import ShardRecord


def content_fingerprint(shards: Iterable[ShardRecord], eot: int, redactions: bool = True) -> str:
    """SHA-256, as hex, of the names, sizes and checksums of shards in their order, and of the EOT.

    Of shards of conversations also the checksums of their loss masks. All else is either in the
    shards (their number of tokens and dtype are in their headers) or decides none of their bytes.
    Document tables are not part of it: they name the source files.

    redactions: False for the checksums that the shards had before documents were redacted, which
    moves nothing, without masks. So loaders tell a split from another one, and not from itself.
    """
    found = hashlib.sha256(b"eot %d\n" % eot)
    for shard in shards:
        before = None if redactions else shard.unredacted_crc32c
        mask = f" {shard.mask_crc32c}" if redactions and shard.mask_crc32c else ""
        found.update(f"{shard.name} {shard.bytes} {before or shard.crc32c}{mask}\n".encode())
    return found.hexdigest()
