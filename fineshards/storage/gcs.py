"""An output folder on Google Cloud Storage.

Objects are created with `if_generation_match=0`, and replaced in the generation that was found.
https://cloud.google.com/storage/docs/request-preconditions
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fineshards.errors import OutputError
from fineshards.storage.base import Entry, FileRange, always
from fineshards.storage.gcs_objects import (
    bucket_is_missing,
    bucket_of,
    client,
    credentials,
    download_range,
    explained,
    retry,
    transfer,
    with_size,
)
from fineshards.storage.names import split_url
from fineshards.storage.objects import ObjectStorage

if TYPE_CHECKING:
    from google.cloud.storage import Blob


def has_folders(url: str) -> bool:
    """Whether the bucket of a `gs://` URL has hierarchical namespace; asked once per process.

    This requests the storage layout instead of the bucket's metadata, because the layout needs no
    more permission than listing does.
    https://cloud.google.com/storage/docs/json_api/v1/buckets/getStorageLayout
    """
    with explained("read", url):
        return _has_folders(split_url(url)[0], client().api_endpoint)


@functools.cache
def _has_folders(bucket: str, _endpoint: str) -> bool:
    from google.api_core.exceptions import NotFound

    try:
        layout = _request("GET", bucket, "storageLayout")
    except NotFound:
        # Emulators lack this request. If the bucket is missing, the first write reports it.
        return False
    enabled: bool = layout.get("hierarchicalNamespace", {}).get("enabled", False)
    return enabled


def make_folder(url: str) -> None:
    """Creates a folder and its parents; an existing one is kept."""
    from google.api_core.exceptions import Conflict

    bucket, name = split_url(url)
    with explained("created", url):
        try:
            _request("POST", bucket, "folders", {"recursive": "true"}, {"name": f"{name}/"})
        except Conflict:
            return


def remove_folders(url: str) -> None:
    """Deletes a folder that holds no objects, and the folders below it."""
    from google.api_core.exceptions import NotFound

    bucket, name = split_url(url)
    with explained("deleted", url):
        # Deepest first, because only an empty folder can be deleted.
        for folder in sorted(_folders(bucket, f"{name}/"), key=len, reverse=True):
            try:
                _request("DELETE", bucket, f"folders/{quote(folder, safe='')}")
            except NotFound:
                continue


def _folders(bucket: str, prefix: str) -> Iterator[str]:
    query = {"prefix": prefix}
    while True:
        page = _request("GET", bucket, "folders", query)
        yield from (folder["name"] for folder in page.get("items", []))
        if "nextPageToken" not in page:
            return
        query["pageToken"] = page["nextPageToken"]


def _request(
    method: str,
    bucket: str,
    path: str,
    parameters: dict[str, str] | None = None,
    body: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Sends a request about a bucket; returns the JSON. Raises google.api_core's exceptions."""
    from google.api_core.exceptions import from_http_response
    from google.auth.transport.requests import AuthorizedSession

    # google-auth is typed, but not these two.
    new_session: Any = AuthorizedSession
    error_from: Any = from_http_response

    found, _ = credentials(os.environ.get("STORAGE_EMULATOR_HOST"))

    def attempt() -> dict[str, Any]:
        with new_session(found) as session:
            response = session.request(
                method,
                f"{client().api_endpoint}/storage/v1/b/{bucket}/{path}",
                params=parameters,
                json=body,
                timeout=60,
            )
        if not response.ok:
            raise error_from(response)
        content: dict[str, Any] = response.json() if response.content else {}
        return content

    result: dict[str, Any] = retry()(attempt)()
    return result


# The fields requested of a listing. All fields would be several times as much.
_FIELDS = "items(name,size,crc32c,generation),nextPageToken"
_ENTRY_FIELDS = "items(name,size,updated),nextPageToken"


class GcsStorage(ObjectStorage["Blob"]):
    """An output folder `gs://bucket/prefix`."""

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

    def delete_folder(self, name: str, check: Callable[[], object] = always) -> None:
        super().delete_folder(name, check)
        if has_folders(self.root):
            remove_folders(self.path(name))

    def compose(self, name: str, header: bytes, parts: Sequence[FileRange]) -> int:
        """See Storage. The server joins the parts."""
        from fineshards.storage.gcs_compose import compose

        return compose(self, self.join_objects, name, header, parts)

    # -- used by fineshards/storage/gcs_compose.py

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

    def join_objects(self, name: str, sources: Sequence[Blob]) -> Blob | None:
        """Creates an object from up to 32 others, in the generations that `find` returned.

        Returns it with its metadata, or None if it exists already or a source has changed. Raises
        google's errors.
        """
        from google.api_core.exceptions import NotFound, PreconditionFailed

        blob = bucket_of(self.root).blob(self.key(name))
        # The type that uploads get; without it the server would copy a source's type.
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
        return self.described(blob)

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
