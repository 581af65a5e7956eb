"""A web server on 127.0.0.1 with files that are read by ranges, and what such servers get wrong."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from support.served import Handler, Served


@dataclass(frozen=True)
class Request:
    path: str
    range: str | None
    status: int
    sent: int


@dataclass
class Web(Served):
    """The server, as a context manager. Its switches may be changed while it runs.

    ranges: whether it reads parts of files. says: which headers tell a file's version. faults: one
    for each coming request, in order: a status, the number of bytes after which the body is cut, or
    a function that is called before the answer; None for none. retry_after: when faults ask to be
    asked again. absent: the status for what is not there.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    says: tuple[str, ...] = ("ETag", "Last-Modified")
    faults: list[int | Callable[[], object] | None] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    times: dict[str, str] = field(default_factory=dict)
    retry_after: str = ""
    absent: int = 404

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.listen(_Handler, web=self)}"

    def put(self, name: str, content: bytes, changed: str = "01:00:00") -> str:
        """Puts a file, last changed at this time of a day, and returns its URL."""
        self.files[f"/{name}"] = content
        self.times[f"/{name}"] = f"Sun, 22 Nov 2026 {changed} GMT"
        return f"{self.url}/{name}"


class _Handler(Handler):
    web: Web

    def answer(self) -> None:
        if self.command != "GET":
            self.send(501, b"")
            return
        web, path = self.web, urlsplit(self.path).path
        fault = web.faults.pop(0) if web.faults else None
        if callable(fault):
            fault()
        if path in web.redirects:
            self._send(302, b"", {"Location": web.redirects[path]})
            return
        content = web.files.get(path)
        if isinstance(fault, int) and fault >= 400:
            waits = {"Retry-After": self.web.retry_after} if self.web.retry_after else {}
            self._send(fault, b"", waits)
        elif content is None:
            self._send(web.absent, b"")
        else:
            self._send_file(path, content, fault if isinstance(fault, int) else None)

    def _send_file(self, path: str, content: bytes, cut: int | None) -> None:
        tells = {
            "ETag": f'"{hashlib.md5(content).hexdigest()}"',
            "Last-Modified": self.web.times[path],
        }
        headers = {name: tells[name] for name in self.web.says} | self.web.headers
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match is None or not self.web.ranges:
            self._send(200, content, headers, cut)
            return
        start, stop = int(match[1]), min(int(match[2]) + 1, len(content))
        if start >= len(content):
            self._send(416, b"", headers | {"Content-Range": f"bytes */{len(content)}"})
            return
        content_range = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        self._send(206, content[start:stop], content_range | headers, cut)

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        self.web.requests.append(
            Request(self.path, self.headers.get("Range"), status, len(body[:cut]))
        )
        self.send(status, body, headers, cut)
