"""Input files on web servers: single URLs, read by range requests and pinned by what answers say.

Every answer names the size of the whole file, and most servers also its ETag or the time of its
last change. All three are compared with those at launch for every range, so bytes of two versions
never mix. https://www.rfc-editor.org/rfc/rfc9110#name-range-requests
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from fineshards.errors import InputError, UnavailableError, UsageError
from fineshards.shards.job.records import SourceFile
from fineshards.sources.places.place import FoundFile, Place, check_same
from fineshards.storage.retries import TRANSIENT_STATUS, retried, translating

if TYPE_CHECKING:
    from requests import Response, Session

# How long a launch tries again: a misspelt name should not take long.
_FIND_SECONDS = 3.0
# Seconds to connect, and between two bytes.
_TIMEOUT = (20.0, 60.0)
_RATE_LIMIT = re.compile(r";\s*r=0\s*;\s*t=(\d{1,9})\b")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")


class WebRange(NamedTuple):
    """A range of a file as a server answers it. size, identity: of the whole file.

    url: that of the server which has the content.
    """

    content: bytes
    size: int
    identity: str
    url: str


class WebFiles(Place):
    """Single files, of which servers tell no more than their headers."""

    def find(self, url: str) -> list[FoundFile]:
        """Returns the one file that a URL names.

        Raises UsageError for a URL that looks like a pattern or a folder, and InputError for a file
        that cannot be read by ranges.
        """
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise UsageError(f"--input {url}: is not a URL: {error}. Correct it.") from error
        if not parts.hostname or "*" in parts.path or not parts.path or parts.path.endswith("/"):
            raise UsageError(
                f"--input {url}: a web server does not list its files, so patterns and folders "
                "cannot be read from it. Give the URL of each file."
            )
        answer = fetch(url, 0, 1, seconds=_FIND_SECONDS)
        return [FoundFile(url, url, answer.size, answer.identity)]

    def state(self, file: SourceFile) -> tuple[int, str]:
        answer = fetch(file.path, 0, 1)
        return answer.size, answer.identity

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        answer = fetch(file.path, start, stop)
        check_same(file, (answer.size, answer.identity))
        return answer.content


@functools.cache
def _session(_process: int) -> Session:
    """The connections of a process."""
    import requests

    session = requests.Session()
    # As stored: a compressed answer has no ranges of the file.
    session.headers["Accept-Encoding"] = "identity"
    return session


def fetch(
    url: str,
    start: int,
    stop: int,
    *,
    name: str | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> WebRange:
    """Bytes `[start, stop)` of a file; fewer if it has fewer.

    name: what messages call it where its URL is signed, which is a secret. headers: credentials.
    seconds: how long it is tried again where a failure may pass; None for the default. Raises
    RefusedError where the server refuses access, MissingError for a file that is not there, and
        UnavailableError for other failures that stay.
    """
    from requests import exceptions
    from urllib3.exceptions import HTTPError

    stay = (exceptions.InvalidURL, exceptions.InvalidSchema, exceptions.TooManyRedirects)
    passing = (_TransientError, exceptions.RequestException, HTTPError, ConnectionError)
    session, name = _session(os.getpid()), name or url
    headers = {**(headers or {}), "Range": f"bytes={start}-{stop - 1}"}

    def attempt() -> WebRange:
        with session.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            return _range_of(name, response, start, stop)

    def pause(error: Exception) -> float | None:
        if isinstance(error, stay) or not isinstance(error, passing):
            return None
        return error.wait if isinstance(error, _TransientError) else 0.0

    def reason(error: Exception, *_: str) -> str | None:
        if isinstance(error, stay):
            return f"{_brief(error)}. Check the URL."
        if isinstance(error, passing):
            return f"{_brief(error)}. Run the same command again when the server is reachable."
        return None

    with translating(reason, "read", name, UnavailableError):
        return retried(attempt, pause, lambda error: f"{name}: {_brief(error)}", seconds)


class RefusedError(UnavailableError):
    """A server refuses access to a file."""


class MissingError(InputError):
    """A server has no file of that name."""


class _TransientError(Exception):
    """A failure that may pass. wait: how long the server asks to wait, in seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(f"{reason}, and asks to wait {wait:,.0f} s" if wait else reason)
        self.wait = wait


def asked_wait(headers: Any) -> float:
    """The seconds that an answer asks to wait before the next request; 0 if it does not.

    The hub says them in RateLimit (`"resolvers";r=0;t=120`), most servers in Retry-After, which
    may be a date. https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/
    """
    from urllib3 import Retry
    from urllib3.exceptions import InvalidHeader

    if limit := _RATE_LIMIT.search(headers.get("RateLimit", "")):
        return float(limit[1])
    with suppress(InvalidHeader, ValueError, OverflowError):
        return Retry().parse_retry_after(headers.get("Retry-After", ""))
    return 0.0


def _range_of(url: str, response: Response, start: int, stop: int) -> WebRange:
    """What a server has answered; raises InputError unless it is exactly what was asked for."""
    status, headers = response.status_code, response.headers
    if status in TRANSIENT_STATUS:
        raise _TransientError(f"the server answered {status}", asked_wait(headers))
    content_range = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    # Beyond the end of a file that is empty, or has become shorter.
    if status == 416 and content_range is not None and int(content_range[3]) <= start:
        return _whole(response, int(content_range[3]), b"")
    if status == 200 and headers.get("Content-Length") == "0":
        return _whole(response, 0, b"")
    if status in (401, 403):
        raise RefusedError(f"{url} cannot be read: the server refuses access ({status}).")
    if status in (404, 410):
        raise MissingError(f"{url} cannot be read: there is no such file ({status}). Check it.")
    if status != 206 or content_range is None or content_range[1] is None:
        why = "its server ignores range requests"
        if status != 200:
            answer = f"{status} with Content-Range {headers.get('Content-Range')!r}"
            why = f"to a range request the server answered {answer}"
        raise UnavailableError(
            f"{url} cannot be read in parts: {why}. Download the file, and give its path."
        )
    first, last, size = map(int, content_range.groups())
    expected = min(stop, size) - start
    if (first, last + 1 - first) != (start, expected):
        raise UnavailableError(
            f"{url} cannot be read: the server answered bytes {first} to {last}, expected {start} "
            f"to {start + expected - 1}. Download the file, and give its path."
        )
    content = response.raw.read(expected + 1, decode_content=False)
    if len(content) != expected:
        raise _TransientError(f"received {len(content)} bytes, expected {expected}")
    return _whole(response, size, content)


def _whole(response: Response, size: int, content: bytes) -> WebRange:
    """What an answer says of the whole file. Its identity is the best that the server tells."""
    headers, identity = response.headers, f"size:{size}"
    if etag := headers.get("ETag"):
        identity = "etag:" + etag.replace('"', "")
    elif changed := headers.get("Last-Modified"):
        identity = f"mtime:{changed}"
    return WebRange(content, size, identity, response.url)


def _brief(error: BaseException) -> str:
    """The innermost reason, which does not repeat the URL."""
    if isinstance(error, _TransientError):
        return str(error)
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {error}".rstrip(".")
