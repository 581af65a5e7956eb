"""An output folder on Google Cloud Storage.

Objects are created with `if_generation_match=0`, and replaced in the generation that was found.
https://cloud.google.com/storage/docs/request-preconditions

`google.cloud.storage` is imported inside functions because it takes half a second to import, and
local runs do not need it.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fineshards.credentials import refuse_secrets_in_endpoint
from fineshards.storage.objects import ObjectStorage, StoredObject
from fineshards.storage.retries import TRANSIENT_STATUS

if TYPE_CHECKING:
    from google.api_core.exceptions import NotFound
    from google.cloud.storage import Blob, Client

# The fields requested of an object. All fields would be several times as much.
_FIELDS = "name,size,updated,generation,crc32c"
# The CRC-32C of no bytes.
_NO_BYTES = "AAAAAA=="

_thread_local = threading.local()


class GcsStorage(ObjectStorage):
    """An output folder `gs://bucket/prefix`."""

    scheme, service = "gs", "Cloud Storage"

    def make_folders(self, folders: tuple[str, ...]) -> None:
        """Creates empty objects `folder/`: some readers drop the first object that they list.

        In a bucket with hierarchical namespace they lie in folders that the service makes.
        """
        for folder in folders:
            self.write(f"{folder}/", b"")

    def _find(self, key: str) -> StoredObject | None:
        from google.api_core.exceptions import NotFound

        try:
            path = f"{self._objects}/{quote(key, safe='')}"
            return self._stored(self._request(path, fields=_FIELDS))
        except NotFound as error:
            if _bucket_is_missing(error):
                raise
            return None

    def _list(self, prefix: str, delimiter: str) -> Iterator[StoredObject | str]:
        # The library's own listing takes five times the processor time, to make a Blob of each.
        parameters = {"prefix": prefix, "fields": f"items({_FIELDS}),prefixes,nextPageToken"}
        if delimiter:
            parameters["delimiter"] = delimiter
        while True:
            page = self._request(self._objects, **parameters)
            yield from map(self._stored, page.get("items", ()))
            yield from page.get("prefixes", ())
            if "nextPageToken" not in page:
                return
            parameters["pageToken"] = page["nextPageToken"]

    @property
    def _objects(self) -> str:
        return f"/b/{self.bucket}/o"

    def _stored(self, item: dict[str, Any]) -> StoredObject:
        """An object from the service's description; raises OutputError if that is not complete.

        JSON made by Protocol Buffers has no zeros; Google's own test server (storage-testbench)
        answers so.
        """
        crc32c = item.get("crc32c")
        size = item.get("size", 0 if crc32c == _NO_BYTES else None)
        if size is None or crc32c is None or "generation" not in item:
            raise self._error(
                f"{self._url(item.get('name', ''))} cannot be used: the server left out its size, "
                "checksum or generation, which Cloud Storage always gives. Check what answers in "
                "its place."
            )
        changed = datetime.fromisoformat(item["updated"]).timestamp()
        return StoredObject(item["name"], int(size), item["generation"], changed, crc32c)

    def _get(self, key: str, start: int = 0, stop: int = 0, version: str = "") -> bytes | None:
        from google.api_core import exceptions as api

        ends = {"start": start, "end": stop - 1} if stop else {}

        def attempt() -> bytes:
            # raw: the stored bytes; without it the server may decompress an object. retry: the
            # library resumes transfers in the middle, and its state does not survive every failure.
            content: bytes = self._blob(key, version).download_as_bytes(
                **ends,
                raw_download=True,
                if_generation_match=int(version) if version else None,
                checksum=None if stop else "auto",
                retry=None,
            )
            if version and len(content) != stop - start:
                raise ConnectionError(f"received {len(content)} bytes, expected {stop - start}")
            return content

        try:
            return self._retried(attempt)
        except (api.NotFound, api.PreconditionFailed) as error:
            if isinstance(error, api.NotFound) and _bucket_is_missing(error):
                raise
            return None
        except api.RequestRangeNotSatisfiable:
            return b""

    def _put(self, key: str, content: Any, size: int, checksum: str, replaced: str | None) -> bool:
        from google.api_core.exceptions import PreconditionFailed

        try:
            self._retried(
                lambda: self._blob(key).upload_from_file(
                    content,
                    rewind=True,
                    size=size,
                    if_generation_match=int(replaced or 0),
                    checksum="crc32c",
                    crc32c_checksum_value=checksum,
                    retry=None,
                )
            )
        except PreconditionFailed:
            return False
        return True

    def _delete(self, stored: StoredObject) -> None:
        """See ObjectStorage.

        It is no error if that generation is gone, deleted (404) or replaced (412). The request is
        for the live object under a precondition, because one that names the generation itself
        would delete it for good in a bucket that keeps old versions.
        https://cloud.google.com/storage/docs/deleting-objects
        """
        from google.api_core.exceptions import NotFound, PreconditionFailed

        with suppress(NotFound, PreconditionFailed):
            self._retried(
                lambda: self._blob(stored.key).delete(
                    if_generation_match=int(stored.version), retry=None
                )
            )

    def _blob(self, key: str, version: str = "") -> Blob:
        generation = int(version) if version else None
        blob: Blob = _client().bucket(self.bucket).blob(key, generation=generation)
        return blob

    def _request(self, path: str, **parameters: str) -> dict[str, Any]:
        """The JSON of an object or of a page of a listing; raises google.api_core's exceptions."""
        content: dict[str, Any] = self._retried(
            lambda: _client()._get_resource(path, query_params=parameters, retry=None)
        )
        return content

    @staticmethod
    def _is_transient(error: Exception) -> bool:
        import urllib3.exceptions
        from google.api_core.exceptions import GoogleAPICallError
        from google.auth.exceptions import TransportError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
        from requests import exceptions as http

        if isinstance(error, InvalidResponse):
            return error.response.status_code in TRANSIENT_STATUS
        if isinstance(error, GoogleAPICallError):
            # 410: the server has lost a resumable upload, which then starts again.
            return error.code in TRANSIENT_STATUS or error.code == 410
        broken = (ConnectionError, http.ConnectionError, http.ChunkedEncodingError, http.Timeout)
        return isinstance(
            error, (*broken, urllib3.exceptions.HTTPError, TransportError, DataCorruption)
        )

    @staticmethod
    def _message(error: Exception) -> str:
        text = str(getattr(error, "message", error)) or type(error).__name__
        return " ".join(text.split()).rstrip(".")

    def _reason(self, error: Exception, what: str, url: str) -> str | None:
        from google.api_core import exceptions as api
        from google.auth import exceptions as auth
        from google.cloud.storage import exceptions as storage
        from requests import exceptions as http

        if isinstance(error, auth.DefaultCredentialsError | auth.RefreshError):
            return (
                "no valid Google credentials were found. Run gcloud auth application-default "
                "login, or set GOOGLE_APPLICATION_CREDENTIALS."
            )
        if isinstance(error, api.NotFound):
            # A listing without matches is empty, so there only the bucket can be missing.
            if what == "listed" or _bucket_is_missing(error):
                return f"there is no bucket {self.bucket}. Check the name, or create it."
            return "there is no such object. Check the name."
        if isinstance(error, api.Forbidden | api.Unauthorized):
            return (
                f"no permission ({error.code}). Ask for the role Storage Object User on "
                f"gs://{self.bucket}. gcloud auth list shows which account is in use."
            )
        if isinstance(error, api.ClientError) and error.code not in TRANSIENT_STATUS:
            return f"{self._message(error)}."
        if isinstance(
            error,
            api.GoogleAPIError
            | auth.GoogleAuthError
            | storage.InvalidResponse
            | storage.DataCorruption
            | http.RequestException
            | ConnectionError,
        ):
            return f"{self._message(error)}. Run again when Cloud Storage is reachable."
        return None


@functools.cache
def _credentials(emulator: str | None) -> tuple[Any, str | None]:
    """Application Default Credentials and their project; searched for once per process.

    emulator: the value of STORAGE_EMULATOR_HOST. An emulator needs no credentials, and the search
    takes half a minute without a network. Raises google-auth's DefaultCredentialsError if there
    are none.
    """
    refuse_secrets_in_endpoint(emulator, "STORAGE_EMULATOR_HOST")
    if emulator:
        from google.auth.credentials import AnonymousCredentials

        return AnonymousCredentials(), None  # type: ignore[no-untyped-call]
    import google.auth
    from google.cloud import storage

    credentials, project = google.auth.default(scopes=storage.Client.SCOPE)
    return credentials, project


def _client() -> Client:
    """This thread's client.

    A client keeps ten connections and closes any further one, so each thread has its own client.
    """
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if getattr(_thread_local, "emulator", "") != emulator:
        # Otherwise each client requests its bucket's metadata with its first request, and again
        # after each 404, for traces that no one has enabled.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        from google.cloud import storage

        credentials, project = _credentials(emulator)
        _thread_local.client = storage.Client(project=project, credentials=credentials)
        _thread_local.emulator = emulator
    client: Client = _thread_local.client
    return client


# A fork that used its parent's connections would read the responses to its parent's requests.
os.register_at_fork(after_in_child=lambda: _thread_local.__dict__.clear())


def _bucket_is_missing(error: NotFound) -> bool:
    """Whether the bucket does not exist, and not only the object."""
    return "bucket does not exist" in str(error.message)
