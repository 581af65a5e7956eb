"""`SHA256SUMS`: the SHA-256 of every file of a dataset, in the form that `sha256sum -c` reads.

Each file is read once, and its size and CRC-32C are compared with the manifest on the way. So what
has a SHA-256 here is what the build has written.
"""

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from fineshards.cores import usable_cores
from fineshards.errors import OutputError
from fineshards.shards.dataset_files import expected_files
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.storage.base import READ_AHEAD, Storage
from fineshards.storage.checksums import checksum_to_base64, crc32c

CARD_NAME = "README.md"
CROISSANT_NAME = "metadata/croissant.json"
SUMS_NAME = "SHA256SUMS"
# The files that are published together. The card may be its owner's own.
PUBLISHED = (SUMS_NAME, CROISSANT_NAME)

# Bytes in memory at once, per file.
_READ_BYTES = 4 << 20

# SHA-256, as hex, by name.
Sums = Mapping[str, str]


def contents(manifest: Manifest) -> dict[str, tuple[int, str]]:
    """Size and CRC-32C of every file of a dataset, by name, in the order of the names."""
    content = manifest.to_bytes()
    files = {name: (size, checksum) for name, size, checksum in expected_files(manifest)}
    files[MANIFEST_NAME] = len(content), checksum_to_base64(crc32c(content))
    return dict(sorted(files.items()))


def hash_files(
    storage: Storage, manifest: Manifest, report: Callable[[int], None] = lambda done: None
) -> dict[str, str]:
    """Reads every file of a dataset; returns the SHA-256 of each, by name.

    report: takes the number of files done. Raises OutputError for a file that is not what the
    manifest says.
    """
    expected, sums = contents(manifest), {}
    with ThreadPoolExecutor(usable_cores()) as pool:
        for name, (size, checksum, digest) in zip(
            expected, pool.map(lambda name: _hash(storage, name), expected), strict=True
        ):
            if (size, checksum) != expected[name]:
                pool.shutdown(cancel_futures=True)
                raise OutputError(
                    f"{storage.path(name)} is not what the manifest says: it has {size:,} bytes "
                    f"and crc32c {checksum}, expected {expected[name][0]:,} and "
                    f"{expected[name][1]}. Make it again with fineshards repair."
                )
            sums[name] = digest
            report(len(sums))
    return sums


def _hash(storage: Storage, name: str) -> tuple[int, str, str]:
    """A file's size, CRC-32C and SHA-256."""
    if storage.size(name) is None:
        raise OutputError(f"{storage.path(name)} is missing. Make it again with fineshards repair.")
    size, checksum, digest = 0, 0, hashlib.sha256()
    with storage.open(name, READ_AHEAD) as opened:
        while part := opened.read(_READ_BYTES):
            size += len(part)
            checksum = crc32c(part, checksum)
            digest.update(part)
    return size, checksum_to_base64(checksum), digest.hexdigest()


def to_bytes(sums: Sums) -> bytes:
    """The content of `SHA256SUMS`, sorted by names."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode()


def parse(content: bytes) -> dict[str, str]:
    """The inverse of `to_bytes`."""
    return {line[66:]: line[:64] for line in content.decode().splitlines()}
