"""Byte ranges of objects of S3, thousands per second.

Boto needs two milliseconds of processor time per request. A URL that was signed once is good for
all ranges of an object, so here a request is one send (`range_requests.py`). After any response but
the expected one, and after a broken connection, boto makes the request again.
"""

from __future__ import annotations

import functools
import os
import ssl
import time
from urllib.parse import urlsplit

from fineshards.storage.ranges.range_requests import exchange
from fineshards.storage.s3_client import client
from fineshards.storage.s3_objects import S3Object, download_range

# A URL is used for half of the time for which it is signed.
_SIGNED_SECONDS = 3600


class S3Ranges:
    """One version of an object, in which all its ranges are read; see `Ranges`."""

    def __init__(self, source: S3Object) -> None:
        self.size = source.size
        self._source = source
        # The origin, the request without its range, and when it is made again; threads may do so.
        self._signed: tuple[str, str, float] = ("", "", 0.0)

    def read_at(self, start: int, stop: int) -> bytes | bytearray:
        """See Ranges. Takes one request."""
        if start >= stop:
            return b""
        origin, request, until = self._signed
        if time.monotonic() > until:
            origin, request, _ = self._signed = self._sign()
        content = exchange(origin, request, start, stop, _trusted) if request else None
        return content or download_range(self._source, start, stop)

    def _sign(self) -> tuple[str, str, float]:
        """The origin and the request; both are empty where a request goes through a proxy."""
        from botocore.exceptions import BotoCoreError
        from botocore.utils import get_environ_proxies

        source = self._source
        until = time.monotonic() + _SIGNED_SECONDS / 2
        try:
            url = client(source.endpoint).generate_presigned_url(
                "get_object",
                Params={"Bucket": source.bucket, "Key": source.name},
                ExpiresIn=_SIGNED_SECONDS,
            )
        except BotoCoreError:
            return "", "", 0.0
        split = urlsplit(url)
        if get_environ_proxies(url).get(split.scheme):
            return "", "", until
        request = (
            f"GET {split.path}?{split.query} HTTP/1.1\r\nHost: {split.netloc}\r\n"
            f'If-Match: "{source.etag}"\r\n'
        )
        return f"{split.scheme}://{split.netloc}", request, until


@functools.cache
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))
