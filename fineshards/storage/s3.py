"""An output folder on S3, or a store like it.

Objects are created with `If-None-Match: *`, and replaced with `If-Match` and the ETag that was
found; every upload carries its CRC-32C. A store without these is refused before the first write.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-requests.html
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from fineshards.storage.base import Entry
from fineshards.storage.objects import ObjectStorage
from fineshards.storage.s3_client import (
    client,
    condition,
    condition_failed,
    endpoint_of_environment,
    explained,
    retried,
    status_of,
)
from fineshards.storage.s3_objects import (
    S3Object,
    download_range,
    etag_of,
    find_object,
    list_objects,
    own_metadata,
    read_object,
    read_range,
)
from fineshards.storage.s3_probe import check_writes


class S3Storage(ObjectStorage[S3Object]):
    """An output folder `s3://bucket/prefix`.

    endpoint: the URL of the store; by default the one that the environment names here, also where
    the storage is unpickled.
    """

    def __init__(self, root: str, endpoint: str | None = None) -> None:
        super().__init__(root)
        self.endpoint = endpoint or endpoint_of_environment()

    def make_folders(self, folders: tuple[str, ...]) -> None:
        """Does nothing: S3 has no folders."""

    def version(self, name: str) -> str | None:
        """See Storage. Two writes of the same bytes have one ETag, so it is more than that."""
        found = self.find(name)
        return None if found is None else f"{found.etag} {found.attempt}"

    def names(self, prefix: str) -> Iterator[str]:
        with explained("listed", self.path(prefix)):
            key = self._prefix + prefix
            for found in list_objects(self.bucket, key, "/", self.endpoint):
                if isinstance(found, str):
                    yield found.removeprefix(self._prefix)
                elif not found.name.endswith("/"):
                    yield self.name_of(found)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """See Storage. Takes one request."""
        content = b""
        if start < stop:
            with explained("read", self.path(name)):
                content = read_range(self.bucket, self.key(name), start, stop, "", self.endpoint)
        return self._whole_range(name, content, start, stop)

    def read_if_there(self, name: str) -> bytes | None:
        """See Storage. Takes one request."""
        with explained("read", self.path(name)):
            return read_object(self.bucket, self.key(name), self.endpoint)

    def find(self, name: str) -> S3Object | None:
        with explained("read", self.path(name)):
            return find_object(self.bucket, self.key(name), self.endpoint)

    _look_up = find

    def download(self, found: S3Object, start: int, stop: int) -> bytes:
        return download_range(found, start, stop)

    def remove(self, found: S3Object, seconds: float | None = None) -> None:
        """See ObjectStorage. A store that does not know the condition may ignore it."""
        place = {"Bucket": found.bucket, "Key": found.name}
        with explained("deleted", found.url):
            try:
                retried(
                    lambda: client(self.endpoint).delete_object(**place, IfMatch=f'"{found.etag}"'),
                    seconds,
                )
            except Exception as error:
                if status_of(error) == 501:
                    retried(lambda: client(self.endpoint).delete_object(**place), seconds)
                elif not condition_failed(error):
                    raise

    def _put(
        self, name: str, content: Any, size: int, checksum: str, over: str | None
    ) -> S3Object | None:
        check_writes(self)

        def attempt() -> dict[str, Any]:
            content.seek(0)
            made: dict[str, Any] = client(self.endpoint).put_object(
                Bucket=self.bucket,
                Key=self.key(name),
                Body=content,
                ContentLength=size,
                ChecksumCRC32C=checksum,
                Metadata=metadata,
                **condition(over),
            )
            return made

        metadata = own_metadata(checksum)
        try:
            etag = etag_of(retried(attempt))
        except Exception as error:
            if condition_failed(error):
                return None
            raise
        return S3Object(self.bucket, self.key(name), size, etag, 0.0, "", checksum)

    def _list(self, prefix: str) -> Iterator[S3Object]:
        for found in list_objects(self.bucket, self._prefix + prefix, "", self.endpoint):
            assert isinstance(found, S3Object)
            yield found

    def _list_entries(self, prefix: str) -> Iterator[Entry]:
        for found in self._list(prefix):
            yield Entry(self.name_of(found), found.size, found.modified)

    def _explained(self, what: str, url: str) -> AbstractContextManager[None]:
        return explained(what, url)
