"""An output folder on Google Cloud Storage.

An object appears complete, when its upload or composition ends. Objects are created with
`if_generation_match=0`: if another attempt created the object first, its bytes must be the same.
The few that are replaced, when a dataset grows, are replaced in the generation that was found.
https://cloud.google.com/storage/docs/request-preconditions
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

from fineshards.errors import OutputError, UsageError
from fineshards.storage.base import Entry, Part, Storage, always
from fineshards.storage.checksums import (
    checksum_from_base64,
    checksum_to_base64,
    file_checksum,
)
from fineshards.storage.gcs_folders import has_folders, make_folder, remove_folders
from fineshards.storage.gcs_objects import (
    ObjectReader,
    bucket_is_missing,
    bucket_of,
    explained,
    retry,
    split_url,
    transfer,
)
from fineshards.storage.gcs_ranges import ObjectRanges
from fineshards.storage.temporary import temporary_room

if TYPE_CHECKING:
    from google.cloud.storage import Blob

# A file being written is kept in memory up to this size, then on the worker's disk, so that its
# upload can restart from the beginning.
_SPOOL_BYTES = 8 << 20
# Cloud Storage has no request that deletes all objects below a prefix; threads delete them singly.
_DELETE_THREADS = 32
# Names that wait for these threads at most.
_DELETE_QUEUE = 10_000


class ExistsError(OutputError):
    """An object exists with other content than the one to be written."""


class GcsStorage(Storage):
    """An output folder `gs://bucket/prefix`."""

    verifies_content = True
    supports_mmap = False
    composes = True

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self._bucket, prefix = split_url(self.root)
        if not self._bucket:
            raise UsageError(f"{root} has no bucket name. Give gs://bucket/folder.")
        self._prefix = f"{prefix}/" if prefix else ""

    def path(self, name: str) -> str:
        """See Storage."""
        return f"{self.root}/{name}"

    def make_folders(self, folders: tuple[str, ...]) -> None:
        """Creates folders in a hierarchical bucket, or empty objects `folder/` in a flat one.

        The seed script's reader skips the first object that it lists below a folder.
        """
        hierarchical = has_folders(self.root)
        for folder in folders:
            if hierarchical:
                make_folder(self.path(folder))
            else:
                self.write(f"{folder}/", b"")

    def size(self, name: str) -> int | None:
        """See Storage."""
        blob = self.find(name)
        return None if blob is None else blob.size

    def version(self, name: str) -> str | None:
        """See Storage."""
        blob = self.find(name)
        return None if blob is None else str(blob.generation)

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

    def open_ranges(self, name: str) -> ObjectRanges:
        """See Storage. Takes one request."""
        blob = self.find(name)
        if blob is None:
            raise self._missing(name)
        return ObjectRanges(blob)

    def read(self, name: str) -> bytes:
        """See Storage. Takes one request."""
        content = self.read_if_there(name)
        if content is None:
            raise self._missing(name)
        return content

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """See Storage. Takes one request."""

        def attempt() -> bytes:
            blob = bucket_of(self.root).blob(self._prefix + name)
            content: bytes = blob.download_as_bytes(
                start=start, end=stop - 1, raw_download=True, retry=None
            )
            return content

        with explained("read", self.path(name)):
            return self._whole_range(name, transfer(attempt) if start < stop else b"", start, stop)

    def read_if_there(self, name: str) -> bytes | None:
        """See Storage. Takes one request."""
        from google.api_core.exceptions import NotFound

        def attempt() -> bytes:
            blob = bucket_of(self.root).blob(self._prefix + name)
            content: bytes = blob.download_as_bytes(raw_download=True, retry=None)
            return content

        with explained("read", self.path(name)):
            try:
                return transfer(attempt)
            except NotFound as error:
                if bucket_is_missing(error):
                    raise
                return None

    @contextmanager
    def create(
        self, name: str, durable: bool = True, over: str | None = None
    ) -> Iterator[BinaryIO]:
        """See Storage. Every object is durable."""
        with temporary_room(), tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as content:
            yield content  # type: ignore[misc]
            self.upload(name, content, over)

    def claim(self, name: str, content: bytes) -> bool:
        """See Storage."""
        try:
            self.write(name, content)
        except ExistsError:
            return False
        return True

    def write(
        self, name: str, content: bytes, durable: bool = True, over: str | None = None
    ) -> int:
        """See Storage. The checksum is the one that the server has confirmed."""
        return checksum_from_base64(self.upload(name, io.BytesIO(content), over).crc32c)

    def delete(self, name: str, check: Callable[[], object] = always) -> None:
        """See Storage."""
        found = self.find(name)
        check()
        if found is not None:
            self.remove(found, retry())

    def delete_folder(self, name: str, check: Callable[[], object] = always) -> None:
        """See Storage."""
        with (
            explained("deleted", self.path(name)),
            ThreadPoolExecutor(_DELETE_THREADS) as pool,
        ):
            found = self._list(f"{name}/")
            # There may be millions of objects, and the pool would queue them all.
            while chunk := list(islice(found, _DELETE_QUEUE)):
                check()
                list(pool.map(lambda blob: self.remove(blob, retry()), chunk))
            if has_folders(self.root):
                remove_folders(self.path(name))

    def compose(
        self, name: str, header: bytes, parts: Sequence[Part], over: str | None = None
    ) -> int:
        """See Storage. The server joins the parts."""
        from fineshards.storage.gcs_compose import compose

        return compose(self, name, header, parts, over)

    # -- used by fineshards/storage/gcs_compose.py

    def find(self, name: str) -> Blob | None:
        """An object with its metadata, or None if there is none."""
        blob = self._look_up(name)
        return None if blob is None else self.described(blob)

    def described(self, blob: Blob) -> Blob:
        """The object with size, checksum and generation, asked for again if one was left out.

        Raises OutputError if the server does not say them.
        """
        if not _is_described(blob):
            name = self.name_of(blob)
            found = self._look_up(name)
            if found is None or not _is_described(found):
                raise OutputError(
                    f"{self.path(name)} cannot be used: the server left out its size, checksum or "
                    "generation, which Cloud Storage always gives. Check what answers in its place."
                )
            blob = found
        return blob

    def reader(self, blob: Blob, read_ahead: int) -> BinaryIO:
        """Opens an object in the generation that `find` returned."""
        return io.BufferedReader(ObjectReader(blob, blob.size), read_ahead)

    def upload(self, name: str, content: Any, over: str | None = None) -> Blob:
        """Creates an object from an open file; returns it with its metadata.

        over: the generation that it replaces, if any. Raises OutputError if the object exists with
        other bytes.
        """
        from google.api_core.exceptions import PreconditionFailed

        content.seek(0)
        checksum = checksum_to_base64(file_checksum(content))
        size = content.tell()

        def attempt() -> Blob:
            blob = bucket_of(self.root).blob(self._prefix + name)
            blob.upload_from_file(
                content,
                rewind=True,
                size=size,
                if_generation_match=int(over or 0),
                checksum="crc32c",
                crc32c_checksum_value=checksum,
                retry=None,
            )
            return blob

        with explained("written", self.path(name)):
            try:
                return self.described(transfer(attempt))
            except PreconditionFailed:
                return self.already_there(name, size, checksum)

    def already_there(
        self, name: str, size: int, checksum: str, if_missing: Callable[[], object] = always
    ) -> Blob:
        """The existing object because of which a request to create it failed with status 412.

        Another attempt created it, or this one did and the response was lost. In both cases it has
        the same bytes. Raises OutputError if it has other bytes, or if there is none; then it calls
        `if_missing` first, which may know a better reason.
        """
        found = self._look_up(name)
        if found is None:
            if_missing()
            raise OutputError(
                f"{self.path(name)} was deleted while it was written. Run again when no one else "
                "changes the output folder."
            )
        self.check_same(found, size, checksum)
        return found

    def join_objects(
        self, name: str, sources: Sequence[Blob], over: str | None = None
    ) -> Blob | None:
        """Creates an object from up to 32 others, in the generations that `find` returned.

        over: the generation that it replaces, if any. Returns it with its metadata, or None if it
        exists already or a source has changed. Raises google's errors.
        """
        from google.api_core.exceptions import NotFound, PreconditionFailed

        blob = bucket_of(self.root).blob(self._prefix + name)
        # The type that uploads get; without it the server would copy a source's type.
        blob.content_type = "application/octet-stream"
        try:
            blob.compose(
                sources,
                if_generation_match=int(over or 0),
                if_source_generation_match=[source.generation for source in sources],
                retry=retry(),
            )
        except (PreconditionFailed, NotFound):
            return None
        return self.described(blob)

    def remove(self, found: Blob, policy: Any) -> None:
        """Deletes an object in the generation that was found or written.

        It is no error if that generation is gone, deleted (404) or replaced (412). The request is
        for the live object under a precondition, because one that names the generation itself
        would delete it for good in a bucket that keeps old versions.
        https://cloud.google.com/storage/docs/deleting-objects
        """
        from google.api_core.exceptions import NotFound, PreconditionFailed

        with (
            explained("deleted", self.path(self.name_of(found))),
            suppress(NotFound, PreconditionFailed),
        ):
            bucket_of(self.root).blob(found.name).delete(
                if_generation_match=found.generation, retry=policy
            )

    def check_same(self, found: Blob, size: int, checksum: str) -> None:
        """Raises OutputError unless an object that was created or found has this content."""
        if (found.size, found.crc32c) != (size, checksum):
            raise ExistsError(
                f"{self.path(self.name_of(found))} already exists with other content: it has "
                f"{_content(found.size, found.crc32c)}, this job has {_content(size, checksum)}. "
                "If another job writes to this folder, choose another --output; otherwise start "
                "again with --overwrite."
            )

    def name_of(self, blob: Blob) -> str:
        """The name of an object, relative to the output folder."""
        name: str = blob.name.removeprefix(self._prefix)
        return name

    def _look_up(self, name: str) -> Blob | None:
        from google.api_core.exceptions import NotFound

        with explained("read", self.path(name)):
            blob = bucket_of(self.root).blob(self._prefix + name)
            try:
                blob.reload(retry=retry())
            except NotFound as error:
                if bucket_is_missing(error):
                    raise
                return None
        return blob

    def _list(self, prefix: str) -> Iterator[Blob]:
        yield from bucket_of(self.root).list_blobs(prefix=self._prefix + prefix, retry=retry())

    def _missing(self, name: str) -> OutputError:
        return OutputError(
            f"{self.path(name)} cannot be read: there is no such object. Check the name, or build "
            "the dataset again."
        )


def _is_described(blob: Blob) -> bool:
    return None not in (blob.size, blob.crc32c, blob.generation)


def _content(size: int | None, checksum: str | None) -> str:
    """Size and checksum in words, as far as the server has said them."""
    length = "an unknown number of bytes" if size is None else f"{size} bytes"
    return f"{length} with {'unknown crc32c' if checksum is None else f'crc32c {checksum}'}"
