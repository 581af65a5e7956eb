"""An output folder on Google Cloud Storage.

An object appears when its upload or composition ends, or never, and only where there was none
before (`if_generation_match=0`). Where another attempt was first, its bytes must be the same.
https://cloud.google.com/storage/docs/request-preconditions
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

from fineshards.errors import OutputError, UsageError
from fineshards.storage.base import Entry, Part, Storage
from fineshards.storage.checksums import file_checksum, printed
from fineshards.storage.gcs_folders import has_folders, make_folder, remove_folders
from fineshards.storage.gcs_objects import (
    ObjectReader,
    bucket_of,
    explained,
    is_no_bucket,
    retry,
    split_url,
    transfer,
)

if TYPE_CHECKING:
    from google.cloud.storage import Blob

# What is being written waits in memory up to this size, then on the worker's disk, so that an
# upload can begin again from the start.
_SPOOL_BYTES = 8 << 20
# Objects are deleted one by one, many at a time: there is no request for all below a prefix.
_DELETING = 32
_LISTED = 10_000


class GcsStorage(Storage):
    """An output folder `gs://bucket/prefix`."""

    checks_itself = True
    maps = False

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
        """Real folders where the bucket has them, else an empty object `folder/` for each.

        The seed's reader drops the first object that it lists below a folder.
        """
        real = has_folders(self.root)
        for folder in folders:
            if real:
                make_folder(self.path(folder))
            else:
                self.write(f"{folder}/", b"")

    def size(self, name: str) -> int | None:
        """See Storage."""
        blob = self.find(name)
        return None if blob is None else blob.size

    def entries(self, folder: str) -> Iterator[Entry]:
        """See Storage."""
        with explained("listed", self.path(folder)):
            for blob in self._list(f"{folder}/" if folder else ""):
                if not blob.name.endswith("/"):
                    yield Entry(self.name_of(blob), blob.size, blob.updated.timestamp())

    def names(self, prefix: str) -> Iterator[str]:
        """See Storage."""
        with explained("listed", self.path(prefix)):
            listing = bucket_of(self.root).list_blobs(
                prefix=self._prefix + prefix, delimiter="/", retry=retry()
            )
            for blob in listing:
                if not blob.name.endswith("/"):
                    yield self.name_of(blob)
            yield from sorted(folder.removeprefix(self._prefix) for folder in listing.prefixes)

    def open(self, name: str, read_ahead: int = 1 << 16) -> BinaryIO:
        """See Storage."""
        blob = self.find(name)
        if blob is None:
            raise self._missing(name)
        return self.reader(blob, read_ahead)

    def read(self, name: str) -> bytes:
        """See Storage; one request."""
        content = self.read_if_there(name)
        if content is None:
            raise self._missing(name)
        return content

    def read_if_there(self, name: str) -> bytes | None:
        """See Storage; one request."""
        from google.api_core.exceptions import NotFound

        def attempt() -> bytes:
            blob = bucket_of(self.root).blob(self._prefix + name)
            content: bytes = blob.download_as_bytes(raw_download=True, retry=None)
            return content

        with explained("read", self.path(name)):
            try:
                return transfer(attempt)
            except NotFound as error:
                if is_no_bucket(error):
                    raise
                return None

    @contextmanager
    def create(self, name: str, lasting: bool = True) -> Iterator[BinaryIO]:
        """See Storage; all that is written lasts."""
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as content:
            yield content  # type: ignore[misc]
            self.upload(name, content)

    def delete(self, name: str) -> None:
        """See Storage."""
        self.remove(name, retry())

    def delete_folder(self, name: str) -> None:
        """See Storage."""
        with (
            explained("deleted", self.path(name)),
            ThreadPoolExecutor(_DELETING) as pool,
        ):
            names = map(self.name_of, self._list(f"{name}/"))
            # Not all at once: there may be millions, and the pool takes all that it is given.
            while some := list(islice(names, _LISTED)):
                list(pool.map(self.delete, some))
            if has_folders(self.root):
                remove_folders(self.path(name))

    def compose(self, name: str, header: bytes, parts: Sequence[Part]) -> int:
        """See Storage; the server joins them."""
        from fineshards.storage.gcs_compose import compose

        return compose(self, name, header, parts)

    # -- what `fineshards/storage/gcs_compose.py` builds on

    def find(self, name: str) -> Blob | None:
        """The object with its metadata, or None."""
        from google.api_core.exceptions import NotFound

        with explained("read", self.path(name)):
            blob = bucket_of(self.root).blob(self._prefix + name)
            try:
                blob.reload(retry=retry())
            except NotFound as error:
                if is_no_bucket(error):
                    raise
                return None
        return blob

    def reader(self, blob: Blob, read_ahead: int) -> BinaryIO:
        """Opens an object that was found, in the generation that was found."""
        return io.BufferedReader(ObjectReader(blob, blob.size), read_ahead)

    def upload(self, name: str, content: Any) -> Blob:
        """Makes an object of an open file; returns it with its metadata.

        Raises OutputError where there is another one with other bytes.
        """
        from google.api_core.exceptions import PreconditionFailed

        content.seek(0)
        checksum = printed(file_checksum(content))
        size = content.tell()

        def attempt() -> Blob:
            blob = bucket_of(self.root).blob(self._prefix + name)
            blob.upload_from_file(
                content,
                rewind=True,
                size=size,
                if_generation_match=0,
                checksum="crc32c",
                crc32c_checksum_value=checksum,
                retry=None,
            )
            return blob

        with explained("written", self.path(name)):
            try:
                return transfer(attempt)
            except PreconditionFailed:
                return self.already_there(name, size, checksum)

    def already_there(self, name: str, size: int, checksum: str) -> Blob:
        """The object that stands in the way of one that was to be made (status 412).

        It is of another attempt, or of this one, whose answer was lost: either has the same bytes.
        Raises OutputError if it has not, or is gone.
        """
        found = self.find(name)
        if found is None:
            raise OutputError(f"{self.path(name)} was deleted while it was written. Run again.")
        self.check_same(found, size, checksum)
        return found

    def join_objects(self, name: str, sources: Sequence[Blob]) -> Blob | None:
        """Joins up to 32 objects, in the generations that were found, to one that is new.

        Returns it with its metadata; None if that cannot be done, because there is one already or
        a source has changed. Raises google's errors.
        """
        from google.api_core.exceptions import NotFound, PreconditionFailed

        blob = bucket_of(self.root).blob(self._prefix + name)
        # The server takes it from a source otherwise; uploads have this one.
        blob.content_type = "application/octet-stream"
        try:
            blob.compose(
                sources,
                if_generation_match=0,
                if_source_generation_match=[source.generation for source in sources],
                retry=retry(),
            )
        except (PreconditionFailed, NotFound):
            return None
        return blob

    def remove(self, name: str, policy: Any) -> None:
        """Deletes an object, if it is there."""
        from google.api_core.exceptions import NotFound

        with explained("deleted", self.path(name)), suppress(NotFound):
            bucket_of(self.root).blob(self._prefix + name).delete(retry=policy)

    def check_same(self, found: Blob, size: int, checksum: str) -> None:
        """Raises OutputError unless an object that is there has these bytes."""
        if (found.size, found.crc32c) != (size, checksum):
            raise OutputError(
                f"{self.path(self.name_of(found))} is there already with other content: "
                f"{found.size} bytes with crc32c {found.crc32c}, where this job has {size} bytes "
                f"with crc32c {checksum}. Is another job writing there? Choose another --output, "
                "or start anew with --overwrite."
            )

    def name_of(self, blob: Blob) -> str:
        """The name of an object, below the folder."""
        name: str = blob.name.removeprefix(self._prefix)
        return name

    def _list(self, prefix: str) -> Iterator[Blob]:
        yield from bucket_of(self.root).list_blobs(prefix=self._prefix + prefix, retry=retry())

    def _missing(self, name: str) -> OutputError:
        return OutputError(f"{self.path(name)} cannot be read: it is not there.")
