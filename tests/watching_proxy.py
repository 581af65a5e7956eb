"""A proxy before a storage server: sees every request, and lets a test step in between.

A test's rule is asked before a request goes on to the server. It may do something itself first
(write the object anew), and it may say what shall go wrong.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Fault:
    """status: what is answered instead of the server's answer; or cut: the bytes of the body after
    which the connection breaks."""

    status: int = 0
    cut: int = -1


@dataclass(frozen=True)
class Request:
    """sent: bytes of the body that the client was sent."""

    method: str
    path: str
    range: str
    status: int
    sent: int

    @property
    def is_download(self) -> bool:
        """Whether content is asked for, not metadata."""
        return self.method == "GET" and "alt=media" in self.path


Rule = Callable[[str, str], Fault | None]


class WatchingProxy:
    """Use as a context manager; `url` is what STORAGE_EMULATOR_HOST should be."""

    def __init__(self, server: str) -> None:
        self.server = urlsplit(server).netloc
        self.requests: list[Request] = []
        self.rule: Rule | None = None
        self._http = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Bound", (_Handler,), {"proxy": self})
        )
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> WatchingProxy:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def reset(self) -> None:
        """Forgets the requests and the rule."""
        self.requests, self.rule = [], None

    def on_objects(self) -> list[Request]:
        """All requests but those for the bucket, which the client makes of its own accord."""
        return [request for request in self.requests if "/o" in request.path]

    def downloads(self, name: str = "") -> list[Request]:
        """The requests for content of objects whose names have `name` in them."""
        return [
            request for request in self.requests if request.is_download and name in request.path
        ]


class _Handler(BaseHTTPRequestHandler):
    proxy: WatchingProxy
    protocol_version = "HTTP/1.1"
    upstream: http.client.HTTPConnection | None = None

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def handle(self) -> None:
        with suppress(ConnectionError):  # clients go as they please
            super().handle()

    def finish(self) -> None:
        super().finish()
        if self.upstream is not None:
            self.upstream.close()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(self.path)
        fault = self.proxy.rule(self.command, path) if self.proxy.rule else None
        if fault is not None and fault.status:
            self._send(fault.status, [], b'{"error": {"message": "made to fail"}}')
            return
        if self.upstream is None:
            self.upstream = http.client.HTTPConnection(self.proxy.server, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name != "Host"}
        self.upstream.request(self.command, self.path, body, headers)
        answer = self.upstream.getresponse()
        self._send(
            answer.status, answer.getheaders(), answer.read(), -1 if fault is None else fault.cut
        )

    def _send(
        self, status: int, headers: list[tuple[str, str]], body: bytes, cut: int = -1
    ) -> None:
        part = body if cut < 0 else body[:cut]
        self.proxy.requests.append(
            Request(
                self.command,
                unquote(self.path),
                self.headers.get("Range", ""),
                status,
                len(part),
            )
        )
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(part)
        if cut >= 0:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Requests are recorded, not printed."""
