"""An output folder on Google Cloud Storage.

An object appears when its upload ends, or never, and only where there was none before
(`if_generation_match=0`). Where another attempt was first, its bytes must be the same.
https://cloud.google.com/storage/docs/request-preconditions
"""

from __future__ import annotations

import base64
import io
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO

import google_crc32c

from shards.errors import OutputError, UsageError
from shards.gcs_objects import ObjectReader, bucket_of, explained, retry, split_url
from shards.storage import Entry, Storage

if TYPE_CHECKING:
    from google.cloud.storage import Blob

# What is being written waits in memory up to this size, then on the worker's disk, so that an
# upload can begin again from the start.
_SPOOL_BYTES = 8 << 20
# Objects are deleted one by one, many at a time: there is no request for a whole folder.
_DELETING = 32


class GcsStorage(Storage):
    """An output folder `gs://bucket/prefix`."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self._bucket, prefix = split_url(self.root)
        if not self._bucket:
            raise UsageError(f"{root} names no bucket; give gs://bucket/folder.")
        self._prefix = f"{prefix}/" if prefix else ""

    def path(self, name: str) -> str:
        """See Storage."""
        return f"{self.root}/{name}"

    def make_folders(self, folders: tuple[str, ...]) -> None:
        """Makes an empty object `folder/` for each, where there is none.

        The seed's reader drops the first object that it lists below a folder.
        """
        for folder in folders:
            self.write(f"{folder}/", b"")

    def size(self, name: str) -> int | None:
        """See Storage."""
        with explained("read", self.path(name)):
            blob = self._find(name)
        return None if blob is None else blob.size

    def entries(self, folder: str) -> Iterator[Entry]:
        """See Storage."""
        with explained("listed", self.path(folder)):
            for blob in self._list(f"{folder}/"):
                if not blob.name.endswith("/"):
                    name = blob.name.removeprefix(self._prefix)
                    yield Entry(name, blob.size, blob.updated.timestamp())

    def strays(self, folders: tuple[str, ...]) -> Iterator[str]:
        """See Storage."""
        with explained("listed", self.root):
            for folder in folders:
                for blob in self._list(folder):
                    name = blob.name.removeprefix(self._prefix)
                    inside = name.startswith(f"{folder}/")
                    if not inside or "/" in name.removeprefix(f"{folder}/"):
                        yield name

    def open(self, name: str, read_ahead: int = 1 << 16) -> BinaryIO:
        """See Storage."""
        with explained("read", self.path(name)):
            blob = self._find(name)
        if blob is None:
            raise OutputError(f"{self.path(name)} cannot be read: it is not there.")
        return io.BufferedReader(ObjectReader(blob, blob.size), read_ahead)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """See Storage."""
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as content:
            yield content  # type: ignore[misc]
            self._upload(name, content)

    def delete(self, name: str) -> None:
        """See Storage."""
        with explained("deleted", self.path(name)):
            self._delete(self._blob(name))

    def delete_folder(self, name: str) -> None:
        """See Storage."""
        with (
            explained("deleted", self.path(name)),
            ThreadPoolExecutor(_DELETING) as pool,
        ):
            for _ in pool.map(self._delete, self._list(f"{name}/")):
                pass

    def _upload(self, name: str, content: Any) -> None:
        from google.api_core.exceptions import PreconditionFailed

        checksum = _checksum(content)
        size = content.tell()
        blob = self._blob(name)
        with explained("written", self.path(name)):
            try:
                blob.upload_from_file(
                    content,
                    rewind=True,
                    size=size,
                    if_generation_match=0,
                    checksum="crc32c",
                    crc32c_checksum_value=checksum,
                    retry=retry(),
                )
            except PreconditionFailed:
                self._check_same(name, size, checksum)

    def _check_same(self, name: str, size: int, checksum: str) -> None:
        """Raises OutputError unless the object that is there has these bytes."""
        found = self._find(name)
        if found is None:
            raise OutputError(f"{self.path(name)} was deleted while it was written. Run again.")
        if (found.size, found.crc32c) != (size, checksum):
            raise OutputError(
                f"{self.path(name)} is there already with other content: {found.size} bytes with "
                f"crc32c {found.crc32c}, where this job has {size} bytes with crc32c {checksum}. "
                "Is another job writing there? Choose another --output, or start anew with "
                "--overwrite."
            )

    def _blob(self, name: str) -> Blob:
        return bucket_of(self.root).blob(self._prefix + name)

    def _find(self, name: str) -> Blob | None:
        """The object with its metadata, or None."""
        found: Blob | None = bucket_of(self.root).get_blob(self._prefix + name, retry=retry())
        return found

    def _list(self, prefix: str) -> Iterator[Blob]:
        yield from bucket_of(self.root).list_blobs(prefix=self._prefix + prefix, retry=retry())

    @staticmethod
    def _delete(blob: Blob) -> None:
        from google.api_core.exceptions import NotFound

        with suppress(NotFound):
            blob.delete(retry=retry())


def _checksum(content: Any) -> str:
    """The crc32c of a whole file, as Cloud Storage prints it; leaves the file at its end."""
    content.seek(0)
    checksum = google_crc32c.Checksum()
    while chunk := content.read(1 << 20):
        checksum.update(chunk)
    return base64.b64encode(checksum.digest()).decode()
