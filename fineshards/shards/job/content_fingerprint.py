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
    lines = []
    for shard in shards:
        before = None if redactions else shard.unredacted_crc32c
        mask = f" {shard.mask_crc32c}" if redactions and shard.mask_crc32c else ""
        line = f"{shard.name} {shard.bytes} {before or shard.crc32c}{mask}\n"
        # A damaged manifest may have characters that UTF-8 has not.
        lines.append(line.encode(errors="surrogatepass"))
    return fingerprint_of_lines(lines, eot)


def fingerprint_of_lines(lines: Iterable[bytes], eot: int) -> str:
    """The fingerprint from a line per shard: its name, size and checksum."""
    return hashlib.sha256(b"eot %d\n" % eot + b"".join(lines)).hexdigest()
