"""Objects of Google Cloud Storage: the client, reading by ranges, and errors in plain words.

`google.cloud.storage` is imported inside functions: it takes half a second to import, and what is
on a local disk should not wait for it.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shards.errors import FineshardsError, OutputError

if TYPE_CHECKING:
    from google.api_core.retry import Retry
    from google.cloud.storage import Blob, Bucket

SCHEME = "gs://"

# How long a request is tried again, in seconds, with waits that grow: outages of a minute or two
# happen, and a worker that gives up costs more than one that waits.
_RETRY_SECONDS = 300.0


@functools.cache
def _client() -> Any:
    """This process' client, with Application Default Credentials.

    With STORAGE_EMULATOR_HOST in the environment it goes to that server, without credentials.
    """
    from google.cloud import storage

    return storage.Client()


# A fork that used its parent's connections would read the answers to its parent's questions.
os.register_at_fork(after_in_child=_client.cache_clear)


def retry() -> Retry:
    """When a request is tried again: status 408, 429 and 5xx, and connections that break."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    policy: Retry = DEFAULT_RETRY.with_timeout(_RETRY_SECONDS)
    return policy


def split_url(url: str) -> tuple[str, str]:
    """Bucket and object name of `gs://bucket/name`."""
    bucket, _, name = url.removeprefix(SCHEME).partition("/")
    return bucket, name


def bucket_of(url: str) -> Bucket:
    """The bucket of a `gs://` address; asks nothing of the server."""
    bucket: Bucket = _client().bucket(split_url(url)[0])
    return bucket


@contextmanager
def explained(what: str, url: str, kind: type[FineshardsError] = OutputError) -> Iterator[None]:
    """Turns what goes wrong in the body into one sentence: `url` cannot be `what`, and why."""
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth
    from requests import exceptions as http

    try:
        yield
    except auth.DefaultCredentialsError as error:
        raise kind(
            f"{url} cannot be {what}: no Google credentials were found. Run gcloud auth "
            "application-default login, or set GOOGLE_APPLICATION_CREDENTIALS."
        ) from error
    except api.NotFound as error:
        bucket = split_url(url)[0]
        if "bucket" in str(error.message).lower():
            why = f"there is no bucket {bucket}. Check the name, or create it"
        else:
            why = "it is not there. Check the name"
        raise kind(f"{url} cannot be {what}: {why}.") from error
    except (api.Forbidden, api.Unauthorized) as error:
        raise kind(
            f"{url} cannot be {what}: no permission ({error.code}). Ask for the role Storage "
            f"Object User on gs://{split_url(url)[0]}, and see which account you are with "
            "gcloud auth list."
        ) from error
    except (api.GoogleAPIError, auth.GoogleAuthError, http.RequestException) as error:
        reason = str(getattr(error, "message", error)).rstrip(".")
        raise kind(f"{url} cannot be {what}: {reason}. Run again when it is reachable.") from error


class ObjectReader(io.RawIOBase):
    """One generation of an object, read by range requests of just the bytes that are asked for.

    A later generation under the same name is never read: asking for the old one then fails, so
    bytes of two versions cannot be mixed. What goes wrong is raised as an error of `kind`.
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

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase; one request."""
        count = min(len(buffer), self._size - self._at)
        if count <= 0:
            return 0
        with explained("read", f"{SCHEME}{self._blob.bucket.name}/{self._blob.name}", self._kind):
            # raw: an object that is stored compressed is what it is, whatever its encoding.
            content = self._blob.download_as_bytes(
                start=self._at, end=self._at + count - 1, raw_download=True, retry=retry()
            )
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)
