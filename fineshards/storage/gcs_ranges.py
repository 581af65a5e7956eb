"""Byte ranges of objects of Google Cloud Storage, thousands per second.

The client library needs milliseconds of processor time per request. Here a request is one send on
a connection of the thread's own, and the response is read straight from it. Only the response that
is expected is understood: status 206 and the range's length. After any other, and after a broken
connection, the library makes the request again, with its retries and error messages.
"""

from __future__ import annotations

import functools
import http.client
import os
import ssl
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from fineshards.storage.gcs_objects import bucket_of, client, credentials, download_range

if TYPE_CHECKING:
    import socket

    from google.cloud.storage import Blob

_SECONDS = 60.0
# More than the headers of a response; small responses arrive in one read.
_READ_BYTES = 1 << 16

_connections = threading.local()
# Otherwise all threads would renew an expired token at the same time.
_renewing = threading.Lock()


def _forget_in_child() -> None:
    global _renewing
    _connections.__dict__.clear()
    _renewing = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


class ObjectRanges:
    """One generation of an object, in which all its ranges are read; see `Ranges`."""

    def __init__(self, blob: Blob) -> None:
        self.size: int = blob.size
        self._bucket, self._name = blob.bucket.name, blob.name
        base = client().api_endpoint
        path = f"/download/storage/v1/b/{self._bucket}/o/{quote(self._name, safe='')}"
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
        blob = bucket_of(f"gs://{self._bucket}").blob(self._name, generation=self._generation)
        return download_range(blob, start, stop)

    def _exchange(self, start: int, stop: int) -> bytearray | None:
        """The range, from this thread's connection; None after any other response."""
        from google.auth.exceptions import GoogleAuthError

        kept: dict[str, socket.socket] = _connections.__dict__
        connection = kept.pop(self._origin, None)
        content, reusable = None, False
        try:
            headers = _credential_headers(self._url)
            more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            request = f"{self._request}{more}Range: bytes={start}-{stop - 1}\r\n\r\n"
            connection = connection or _connect(self._origin)
            connection.sendall(request.encode("latin1"))
            content, reusable = _receive(connection, stop - start)
        except (OSError, http.client.HTTPException, GoogleAuthError):
            pass
        if connection is not None and reusable:
            kept[self._origin] = connection
        elif connection is not None:
            connection.close()
        return content


def _receive(connection: socket.socket, count: int) -> tuple[bytearray | None, bool]:
    """The body of a response, and whether the connection can be used again.

    The body is None unless the response is 206 with `count` bytes.
    """
    received = b""
    while (end := received.find(b"\r\n\r\n")) < 0:
        more = connection.recv(_READ_BYTES)
        if not more or len(received) > _READ_BYTES:
            return None, False
        received += more
    status, _, lines = received[:end].lower().partition(b"\r\n")
    fields = dict(line.split(b":", 1) for line in lines.split(b"\r\n") if b":" in line)
    filled = len(received) - end - 4
    if (
        not status.startswith(b"http/1.1 206")
        or fields.get(b"content-length", b"").strip() != b"%d" % count
        or b"transfer-encoding" in fields
        or filled > count
    ):
        return None, False
    content = bytearray(count)
    content[:filled] = received[end + 4 :]
    room = memoryview(content)
    while filled < count:
        got = connection.recv_into(room[filled:])
        if not got:
            return None, False
        filled += got
    return content, fields.get(b"connection", b"").strip() != b"close"


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


def _connect(origin: str) -> socket.socket:
    scheme, _, host = origin.partition("://")
    opened: http.client.HTTPConnection
    if scheme == "https":
        opened = http.client.HTTPSConnection(host, timeout=_SECONDS, context=_trusted())
    else:
        opened = http.client.HTTPConnection(host, timeout=_SECONDS)
    opened.connect()
    connection: socket.socket = opened.sock
    return connection


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
