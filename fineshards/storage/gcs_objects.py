"""Objects of Google Cloud Storage: client, retries, range reads, and plain error messages.

`google.cloud.storage` is imported inside functions because it takes half a second to import, and
local runs do not need it.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from fineshards.credentials import refuse_secrets_in_endpoint
from fineshards.errors import FineshardsError, OutputError
from fineshards.storage import retries
from fineshards.storage.names import split_url

if TYPE_CHECKING:
    from google.api_core.exceptions import NotFound
    from google.api_core.retry import Retry
    from google.cloud.storage import Blob, Bucket, Client

SCHEME = "gs://"


# The CRC-32C of no bytes.
_NO_BYTES = "AAAAAA=="

_log = logging.getLogger("fineshards")
_Result = TypeVar("_Result")
_thread_local = threading.local()


@functools.cache
def credentials(emulator: str | None) -> tuple[Any, str | None]:
    """Application Default Credentials and their project; searched for once per process.

    emulator: the value of STORAGE_EMULATOR_HOST. An emulator needs no credentials, and the search
    takes half a minute without a network. Raises google-auth's DefaultCredentialsError if there
    are none; `explained` translates it.
    """
    refuse_secrets_in_endpoint(emulator, "STORAGE_EMULATOR_HOST")
    if emulator:
        from google.auth.credentials import AnonymousCredentials

        return AnonymousCredentials(), None  # type: ignore[no-untyped-call]
    import google.auth
    from google.cloud import storage

    found, project = google.auth.default(scopes=storage.Client.SCOPE)
    return found, project


def client() -> Client:
    """This thread's client.

    A client keeps ten connections and closes any further one, so each thread has its own client.
    """
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if getattr(_thread_local, "emulator", "") != emulator:
        # Otherwise each client requests its bucket's metadata with its first request, and again
        # after each 404, for traces that no one has enabled.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        from google.cloud import storage

        found, project = credentials(emulator)
        _thread_local.client = storage.Client(project=project, credentials=found)
        _thread_local.emulator = emulator
    current: Client = _thread_local.client
    return current


# A fork that used its parent's connections would read the responses to its parent's requests.
os.register_at_fork(after_in_child=lambda: _thread_local.__dict__.clear())


def retry(seconds: float | None = None) -> Retry:
    """Retries a request after status 408, 429 or 5xx, and after a broken connection.

    seconds: for how long; None for the default.
    """
    from google.api_core.retry import Retry

    began, warned = time.monotonic(), False

    def warn_once(error: Exception) -> None:
        nonlocal warned
        if not warned and time.monotonic() - began > retries.SILENT_SECONDS:
            warned = True
            _log.warning("Cloud Storage: %s; retrying", reason(error))

    return Retry(
        predicate=_is_transient,
        initial=1.0,
        maximum=60.0,
        timeout=retries.RETRY_SECONDS if seconds is None else seconds,
        on_error=warn_once,
    )


def transfer(action: Callable[[], _Result]) -> _Result:
    """Runs an upload or download, and restarts it from the beginning when it breaks off.

    The library's own retries resume in the middle, and their state does not survive every failure.
    So `action` must pass retry=None and be repeatable.
    """
    repeated: Callable[[], _Result] = retry()(action)
    return repeated()


def _is_transient(error: BaseException) -> bool:
    import urllib3.exceptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import TransportError
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from requests import exceptions as http

    if isinstance(error, InvalidResponse):
        return error.response.status_code in retries.TRANSIENT_STATUS
    if isinstance(error, GoogleAPICallError):
        # 410: the server has lost a resumable upload, which then starts again.
        return error.code in retries.TRANSIENT_STATUS or error.code == 410
    broken = (ConnectionError, http.ConnectionError, http.ChunkedEncodingError, http.Timeout)
    return isinstance(
        error, (*broken, urllib3.exceptions.HTTPError, TransportError, DataCorruption)
    )


def with_size(blob: Blob) -> Blob:
    """The object, of size 0 if the server left out the size and says the checksum of no bytes.

    JSON made by Protocol Buffers has no zeros; Google's own test server (storage-testbench) answers
    so.
    """
    if blob.size is None and blob.crc32c == _NO_BYTES:
        blob._properties["size"] = "0"
    return blob


def bucket_of(url: str) -> Bucket:
    """The bucket of a `gs://` URL, with this thread's client; sends no request."""
    bucket: Bucket = client().bucket(split_url(url)[0])
    return bucket


@contextmanager
def explained(what: str, url: str, kind: type[FineshardsError] = OutputError) -> Iterator[None]:
    """Raises google's errors in the body as `kind`: `url` cannot be `what`, why, what to do."""
    try:
        yield
    except FineshardsError:
        raise
    except Exception as error:
        why = _explanation(error, what, url)
        if why is None:
            raise
        raise kind(f"{url} cannot be {what}: {why}") from error


def _explanation(error: Exception, what: str, url: str) -> str | None:
    """Why a request failed and what to do; None for an error that is not Cloud Storage's."""
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth
    from google.cloud.storage import exceptions as storage
    from requests import exceptions as http

    bucket = split_url(url)[0]
    if isinstance(error, auth.DefaultCredentialsError | auth.RefreshError):
        return (
            "no valid Google credentials were found. Run gcloud auth application-default login, "
            "or set GOOGLE_APPLICATION_CREDENTIALS."
        )
    if isinstance(error, api.NotFound):
        # A listing without matches is empty, so there only the bucket can be missing.
        if what == "listed" or bucket_is_missing(error):
            return f"there is no bucket {bucket}. Check the name, or create it."
        return "there is no such object. Check the name."
    if isinstance(error, api.Forbidden | api.Unauthorized):
        return (
            f"no permission ({error.code}). Ask for the role Storage Object User on "
            f"gs://{bucket}. gcloud auth list shows which account is in use."
        )
    if isinstance(error, api.ClientError) and error.code not in retries.TRANSIENT_STATUS:
        return f"{reason(error)}."
    if isinstance(
        error,
        api.GoogleAPIError
        | auth.GoogleAuthError
        | storage.InvalidResponse
        | storage.DataCorruption
        | http.RequestException
        | ConnectionError,
    ):
        return f"{reason(error)}. Run again when Cloud Storage is reachable."
    return None


def bucket_is_missing(error: NotFound) -> bool:
    """Whether the bucket does not exist, and not only the object."""
    return "bucket does not exist" in str(error.message)


def reason(error: BaseException) -> str:
    """An error's message on one line, without the final period."""
    from google.api_core.exceptions import RetryError

    if isinstance(error, RetryError) and error.cause is not None:
        error = error.cause
    text = str(getattr(error, "message", error)) or type(error).__name__
    return " ".join(text.split()).rstrip(".")


def download_range(
    url: str, generation: int, start: int, stop: int, kind: type[FineshardsError] = OutputError
) -> bytes:
    """Bytes `[start, stop)` of one generation of an object, in one request.

    Raises `kind` if the request fails, also after retries, or the generation is gone.
    """
    from google.api_core.exceptions import NotFound, PreconditionFailed

    if start >= stop:
        return b""

    def attempt() -> bytes:
        blob = bucket_of(url).blob(split_url(url)[1], generation=generation)
        # raw: the stored bytes; without it the server may decompress an object.
        content: bytes = blob.download_as_bytes(
            start=start,
            end=stop - 1,
            raw_download=True,
            if_generation_match=generation,
            checksum=None,
            retry=None,
        )
        if len(content) != stop - start:
            raise ConnectionError(f"received {len(content)} bytes, expected {stop - start}")
        return content

    with explained("read", url, kind):
        try:
            return transfer(attempt)
        except (NotFound, PreconditionFailed) as error:
            raise kind(
                f"{url} was changed or deleted while it was read: generation {generation} no "
                "longer exists. Run again when no one writes there."
            ) from error
