"""Byte ranges of objects of Google Cloud Storage, thousands per second.

The client library needs milliseconds of processor time per request. Here a request is one send
(`range_requests.py`). After any response but the expected one, and after a broken connection, the
library makes the request again, with its retries and error messages.
"""

from __future__ import annotations

import functools
import os
import ssl
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from fineshards.storage.gcs_objects import bucket_of, client, credentials, download_range
from fineshards.storage.ranges.range_requests import exchange

if TYPE_CHECKING:
    from google.cloud.storage import Blob

# Otherwise all threads would renew an expired token at the same time.
_renewing = threading.Lock()


def _forget_in_child() -> None:
    global _renewing
    _renewing = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


class ObjectRanges:
    """One generation of an object, in which all its ranges are read; see `Ranges`."""

    def __init__(self, blob: Blob) -> None:
        self.size: int = blob.size
        self.bucket, self._name = blob.bucket.name, blob.name
        base = client().api_endpoint
        path = f"/download/storage/v1/b/{self.bucket}/o/{quote(self._name, safe='')}"
        g = self._generation = int(blob.generation)
        self._url = f"{base}{path}?alt=media&generation={g}&ifGenerationMatch={g}"
        split = urlsplit(self._url)
        self._origin = f"{split.scheme}://{split.netloc}"
        self._direct = not _uses_proxy(self._url)
        # Compressed content is acceptable, so that an object is never decompressed on the way.
        self._request = (
            f"GET {split.path}?{split.query} HTTP/1.1\r\nHost: {split.netloc}\r\n"
            "Accept-Encoding: gzip\r\n"
        )

    def read_at(self, start: int, stop: int) -> bytes | bytearray:
        """See Ranges. Takes one request."""
        if start >= stop:
            return b""
        content = self._exchange(start, stop) if self._direct else None
        if content is not None:
            return content
        blob = bucket_of(f"gs://{self.bucket}").blob(self._name, generation=self._generation)
        return download_range(blob, start, stop)

    def _exchange(self, start: int, stop: int) -> bytearray | None:
        """The range, from this thread's connection; None after any other response."""
        from google.auth.exceptions import GoogleAuthError

        try:
            headers = _credential_headers(self._url)
        except GoogleAuthError:
            return None
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return exchange(self._origin, self._request + more, start, stop, _trusted)


def _credential_headers(url: str) -> dict[str, str]:
    found, _ = credentials(os.environ.get("STORAGE_EMULATOR_HOST"))
    headers: dict[str, str] = {}
    with _renewing:
        found.before_request(_renewal_request, "GET", url, headers)
    return headers


def _renewal_request(*arguments: Any, **options: Any) -> Any:
    """What sends a request for a new token; made when one is needed, because it is costly."""
    from google.auth.transport.requests import Request

    return Request()(*arguments, **options)


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The certificates that the client library trusts."""
    from certifi import where

    named = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or where()
    if os.path.isdir(named):
        return ssl.create_default_context(capath=named)
    return ssl.create_default_context(cafile=named)


def _uses_proxy(url: str) -> bool:
    from requests.utils import get_environ_proxies, select_proxy

    return select_proxy(url, get_environ_proxies(url)) is not None
