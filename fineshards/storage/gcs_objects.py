"""Objects of Google Cloud Storage: the client, retries, reading by ranges, errors in plain words.

`google.cloud.storage` is imported inside functions: it takes half a second to import, and what is
on a local disk should not wait for it.
"""

from __future__ import annotations

import functools
import io
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from fineshards.errors import FineshardsError, OutputError

if TYPE_CHECKING:
    from google.api_core.exceptions import NotFound
    from google.api_core.retry import Retry
    from google.cloud.storage import Blob, Bucket, Client

SCHEME = "gs://"

# How long a request is tried again, in seconds, with waits that grow from about one second to a
# minute: outages of a minute or two happen, and a worker that gives up costs more than one that
# waits.
_RETRY_SECONDS = 300.0
# After so many seconds a person may wonder, and is told.
_SILENT_SECONDS = 10.0
# The status codes that mean "again, later": https://cloud.google.com/storage/docs/retry-strategy
_PASSING_CODES = {408, 429, 500, 502, 503, 504}

_log = logging.getLogger("fineshards")
_Result = TypeVar("_Result")
_of_thread = threading.local()


@functools.cache
def credentials(emulator: str | None) -> tuple[Any, str | None]:
    """Application Default Credentials and their project; looked for once a process.

    emulator: the value of STORAGE_EMULATOR_HOST. Its server wants none, and the search for them
    takes half a minute where there is no network. Raises google-auth's
    DefaultCredentialsError if there are none, which `explained` explains.
    """
    if emulator:
        from google.auth.credentials import AnonymousCredentials

        return AnonymousCredentials(), None  # type: ignore[no-untyped-call]
    import google.auth
    from google.cloud import storage

    found, project = google.auth.default(scopes=storage.Client.SCOPE)
    return found, project


def client() -> Client:
    """This thread's client.

    A client keeps ten connections and throws away what is more. As each thread has its own, any
    number of threads keep theirs.
    """
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if getattr(_of_thread, "emulator", "") != emulator:
        # Else every client asks for its bucket's metadata beside its first request, and again after
        # each 404, for the sake of traces that nobody has switched on.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        from google.cloud import storage

        found, project = credentials(emulator)
        _of_thread.client = storage.Client(project=project, credentials=found)
        _of_thread.emulator = emulator
    mine: Client = _of_thread.client
    return mine


# A fork that used its parent's connections would read the answers to its parent's questions.
os.register_at_fork(after_in_child=lambda: _of_thread.__dict__.clear())


def retry(seconds: float | None = None) -> Retry:
    """When a request is tried again: status 408, 429 and 5xx, and connections that break.

    seconds: for how long; None for the usual patience.
    """
    from google.api_core.retry import Retry

    began, told = time.monotonic(), False

    def tell(error: Exception) -> None:
        nonlocal told
        if not told and time.monotonic() - began > _SILENT_SECONDS:
            told = True
            _log.warning("Cloud Storage: %s; it is tried again", reason(error))

    patience = _RETRY_SECONDS if seconds is None else seconds
    return Retry(predicate=_is_passing, initial=1.0, maximum=60.0, timeout=patience, on_error=tell)


def transfer(action: Callable[[], _Result]) -> _Result:
    """Moves an object's bytes, again from the start whenever that breaks off.

    The library's own retries go on in the middle, with a state of their own that does not survive
    every break; so they are not asked for, and the action is made to be repeated.
    """
    repeated: Callable[[], _Result] = retry()(action)
    return repeated()


def _is_passing(error: BaseException) -> bool:
    import urllib3.exceptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import TransportError
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from requests import exceptions as http

    if isinstance(error, InvalidResponse):
        return error.response.status_code in _PASSING_CODES
    if isinstance(error, GoogleAPICallError):
        # 410: the server has forgotten a resumable upload, which then begins anew.
        return error.code in _PASSING_CODES or error.code == 410
    broken = (ConnectionError, http.ConnectionError, http.ChunkedEncodingError, http.Timeout)
    return isinstance(
        error, (*broken, urllib3.exceptions.HTTPError, TransportError, DataCorruption)
    )


def split_url(url: str) -> tuple[str, str]:
    """Bucket and object name of `gs://bucket/name`."""
    bucket, _, name = url.removeprefix(SCHEME).partition("/")
    return bucket, name


def bucket_of(url: str) -> Bucket:
    """The bucket of a `gs://` address, for this thread; asks nothing of the server."""
    bucket: Bucket = client().bucket(split_url(url)[0])
    return bucket


@contextmanager
def explained(what: str, url: str, kind: type[FineshardsError] = OutputError) -> Iterator[None]:
    """Turns what goes wrong in the body into one sentence: `url` cannot be `what`, and why."""
    # Only where something went wrong, as these are imported slowly.
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
    """Why Cloud Storage did not do as asked, and what to do; None for other errors."""
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
        # A listing of nothing is empty: only the bucket can be missing there.
        if what == "listed" or is_no_bucket(error):
            return f"there is no bucket {bucket}. Check the name, or create it."
        return "it is not there. Check the name."
    if isinstance(error, api.Forbidden | api.Unauthorized):
        return (
            f"no permission ({error.code}). Ask for the role Storage Object User on "
            f"gs://{bucket}, and see which account you are with gcloud auth list."
        )
    if isinstance(error, api.ClientError) and error.code not in _PASSING_CODES:
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
        return f"{reason(error)}. Run again when it is reachable."
    return None


def is_no_bucket(error: NotFound) -> bool:
    """Whether it is the bucket that is not there, and not only the object."""
    return "bucket does not exist" in str(error.message)


def reason(error: BaseException) -> str:
    """What an error says, in one line, without a full stop."""
    from google.api_core.exceptions import RetryError

    if isinstance(error, RetryError) and error.cause is not None:
        error = error.cause
    text = str(getattr(error, "message", error)) or type(error).__name__
    return " ".join(text.split()).rstrip(".")


class ObjectReader(io.RawIOBase):
    """One generation of an object, read by range requests of just the bytes that are asked for.

    A later generation under the same name is never read: each request asks for the one that was
    found, so bytes of two versions cannot be mixed. What goes wrong is raised as `kind`.
    """

    def __init__(self, blob: Blob, size: int, kind: type[FineshardsError] = OutputError) -> None:
        super().__init__()
        self._blob = blob
        self._size = size
        self._kind = kind
        self._at = 0

    def readable(self) -> bool:
        """See io.IOBase."""
        return True

    def seekable(self) -> bool:
        """See io.IOBase."""
        return True

    def tell(self) -> int:
        """See io.IOBase."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See io.IOBase."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readall(self) -> bytes:
        """See io.RawIOBase; one request for all of the rest."""
        count = max(self._size - self._at, 0)
        content = self._download(count) if count else b""
        self._at += count
        return content

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase; one request."""
        count = min(len(buffer), self._size - self._at)
        if count <= 0:
            return 0
        content = self._download(count)
        buffer[:count] = content
        self._at += count
        return count

    def _download(self, count: int) -> bytes:
        from google.api_core.exceptions import NotFound, PreconditionFailed

        def attempt() -> bytes:
            # raw: an object that is stored compressed is what it is, whatever its encoding.
            content: bytes = self._blob.download_as_bytes(
                start=self._at,
                end=self._at + count - 1,
                raw_download=True,
                if_generation_match=self._blob.generation,
                retry=None,
            )
            if len(content) != count:
                raise ConnectionError(f"{len(content)} bytes came instead of {count}")
            return content

        url = f"{SCHEME}{self._blob.bucket.name}/{self._blob.name}"
        with explained("read", url, self._kind):
            try:
                return transfer(attempt)
            except (NotFound, PreconditionFailed) as error:
                raise self._kind(
                    f"{url} was changed or deleted while it was read (its generation "
                    f"{self._blob.generation} is gone). Run again when nobody writes there."
                ) from error
