"""An output folder on Google Cloud Storage.

Objects are created with `if_generation_match=0`, and replaced in the generation that was found.
https://cloud.google.com/storage/docs/request-preconditions
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fineshards.errors import OutputError
from fineshards.storage.base import Entry
from fineshards.storage.gcs_objects import (
    bucket_is_missing,
    bucket_of,
    client,
    download_range,
    explained,
    retry,
    transfer,
    with_size,
)
from fineshards.storage.objects import ObjectStorage

if TYPE_CHECKING:
    from google.cloud.storage import Blob


# The fields requested of a listing. All fields would be several times as much.
_FIELDS = "items(name,size,crc32c,generation),nextPageToken"
_ENTRY_FIELDS = "items(name,size,updated),nextPageToken"


class GcsStorage(ObjectStorage["Blob"]):
    """An output folder `gs://bucket/prefix`."""

    def make_folders(self, folders: tuple[str, ...]) -> None:
        """Creates empty objects `folder/`: some readers drop the first object that they list.

        In a bucket with hierarchical namespace they lie in folders that the service makes.
        """
        for folder in folders:
            self.write(f"{folder}/", b"")

    def version(self, name: str) -> str | None:
        blob = self.find(name)
        return None if blob is None else str(blob.generation)

    def names(self, prefix: str) -> Iterator[str]:
        with explained("listed", self.path(prefix)):
            listing = bucket_of(self.root).list_blobs(
                prefix=self._prefix + prefix, delimiter="/", retry=retry()
            )
            for blob in listing:
                if not blob.name.endswith("/"):
                    yield self.name_of(blob)
            yield from sorted(folder.removeprefix(self._prefix) for folder in listing.prefixes)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """See Storage. Takes one request."""
        with explained("read", self.path(name)):
            content = self._download(name, start=start, end=stop - 1) if start < stop else b""
            return self._whole_range(name, content, start, stop)

    def read_if_there(self, name: str) -> bytes | None:
        """See Storage. Takes one request."""
        from google.api_core.exceptions import NotFound

        with explained("read", self.path(name)):
            try:
                return self._download(name)
            except NotFound as error:
                if bucket_is_missing(error):
                    raise
                return None

    def _download(self, name: str, **ends: int) -> bytes:
        def attempt() -> bytes:
            blob = bucket_of(self.root).blob(self.key(name))
            content: bytes = blob.download_as_bytes(**ends, raw_download=True, retry=None)
            return content

        return transfer(attempt)

    def find(self, name: str) -> Blob | None:
        blob = self._look_up(name)
        return None if blob is None else self.described(blob)

    def described(self, blob: Blob) -> Blob:
        """The object with size, checksum and generation, asked for again if one was left out.

        Raises OutputError if the server does not say them.
        """
        if not _is_described(with_size(blob)):
            name = self.name_of(blob)
            found = self._look_up(name)
            if found is None or not _is_described(found):
                raise OutputError(
                    f"{self.path(name)} cannot be used: the server left out its size, checksum or "
                    "generation, which Cloud Storage always gives. Check what answers in its place."
                )
            blob = found
        return blob

    def download(self, found: Blob, start: int, stop: int) -> bytes:
        return download_range(f"gs://{self.bucket}/{found.name}", found.generation, start, stop)

    def remove(self, found: Blob, seconds: float | None = None) -> None:
        """See ObjectStorage.

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
                if_generation_match=found.generation, retry=retry(seconds)
            )

    def _put(
        self, name: str, content: Any, size: int, checksum: str, over: str | None
    ) -> Blob | None:
        from google.api_core.exceptions import PreconditionFailed

        def attempt() -> Blob:
            blob = bucket_of(self.root).blob(self.key(name))
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

        try:
            return self.described(transfer(attempt))
        except PreconditionFailed:
            return None

    def _look_up(self, name: str) -> Blob | None:
        from google.api_core.exceptions import NotFound

        with explained("read", self.path(name)):
            blob = bucket_of(self.root).blob(self.key(name))
            try:
                blob.reload(retry=retry())
            except NotFound as error:
                if bucket_is_missing(error):
                    raise
                return None
        return with_size(blob)

    def _list(self, prefix: str) -> Iterator[Blob]:
        yield from bucket_of(self.root).list_blobs(
            prefix=self._prefix + prefix, fields=_FIELDS, retry=retry()
        )

    def _list_entries(self, prefix: str) -> Iterator[Entry]:
        # The library's own listing takes five times the processor time, to make a Blob of each.
        cut = len(self._prefix)
        listing: Iterator[Entry] = client()._list_resource(
            f"/b/{self.bucket}/o",
            lambda _, item: Entry(
                item["name"][cut:],
                int(item.get("size", 0)),
                datetime.fromisoformat(item["updated"]).timestamp(),
            ),
            extra_params={"prefix": self._prefix + prefix, "fields": _ENTRY_FIELDS},
            retry=retry(),
        )
        yield from listing

    def _explained(self, what: str, url: str) -> AbstractContextManager[None]:
        return explained(what, url)


def _is_described(blob: Blob) -> bool:
    return None not in (blob.size, blob.crc32c, blob.generation)
