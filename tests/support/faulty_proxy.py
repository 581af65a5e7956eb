"""A proxy in front of the storage server that lets the network fail where a test wants it to.

It adds what the real service has and fake-gcs-server lacks: preconditions. It records all requests.
The one for S3 is in `s3_proxy.py`.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from support.gcs_server import gcs_server
from support.served import Server

_REFUSED = "At least one of the pre-conditions you specified did not hold."

# Faults of a request.
CUT_UPLOAD = "cut in the middle of the request"
CUT_DOWNLOAD = "cut in the middle of the response"
LOSE_ANSWER = "done by the server, but the response is lost"


@dataclass(frozen=True)
class LeaveOut:
    """A fault: the response, which is JSON, lacks these fields."""

    fields: tuple[str, ...]


class LeaveOutZeros:
    """A fault: the response, which is JSON, lacks sizes of zero."""


Fault = int | str | LeaveOut | LeaveOutZeros | Callable[[], object]


@dataclass
class Rule:
    """A fault for some of the requests that match a pattern.

    pattern: matched against method and decoded URL, such as `POST /upload/…name=train`. fault: a
    status code, one of the faults above, or a function to call before the request is forwarded.
    numbers: which of the matching requests, counted from 1.
    """

    pattern: re.Pattern[str]
    fault: Fault
    numbers: Any
    seen: int = 0
    hits: int = 0


@dataclass
class Request:
    """A forwarded request. sent, received: bytes of its body and of the response's."""

    line: str
    sent: int
    status: int
    received: int


@dataclass
class Proxy:
    """A running proxy. address: its URL for clients. upstream: host and port of the server."""

    # Of the storage that it stands for, what the tests of all kinds need: requests as patterns.
    scheme: ClassVar[str] = "gs"
    upload: ClassVar[str] = "^POST /upload"
    download: ClassVar[str] = "alt=media"
    # Requests, and what a bad network does to them.
    faults: ClassVar[tuple[tuple[str, Fault], ...]] = (
        *(("^POST /upload", fault) for fault in (503, 429, CUT_UPLOAD, LOSE_ANSWER)),
        ("alt=media", CUT_DOWNLOAD),
        *(("^GET", status) for status in (408, 503)),
        *(("^DELETE", fault) for fault in (LOSE_ANSWER, 503)),
    )

    address: str
    upstream: str
    rules: list[Rule] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    connections: int = 0

    def fail(self, pattern: str, fault: Fault, numbers: Any = (1,)) -> Rule:
        """Adds a rule; `numbers` is any container of numbers."""
        rule = Rule(re.compile(pattern), fault, numbers)
        self.rules.append(rule)
        return rule

    def fail_often(self, step: int) -> None:
        """Adds a rule for each of `faults`, which every so many requests suffer."""
        for place, (pattern, fault) in enumerate(self.faults):
            self.fail(pattern, fault, range(2 + place, 1000, step))

    def files(self, bucket: str, folder: str) -> dict[str, bytes]:
        """The content of all objects below a folder, by name; without those that are folders."""
        return {
            name.removeprefix(f"{folder}/"): self.content(bucket, name)
            for name in self.names(bucket)
            if name.startswith(f"{folder}/") and not name.endswith("/")
        }

    def rule_for(self, line: str) -> Rule | None:
        with self.lock:
            for rule in self.rules:
                if rule.pattern.search(line):
                    rule.seen += 1
                    if rule.seen in rule.numbers:
                        rule.hits += 1
                        return rule
        return None

    def count(self, pattern: str) -> int:
        """The number of forwarded requests that match."""
        return sum(bool(re.search(pattern, request.line)) for request in self.requests)

    def ask(self, method: str, path: str, body: bytes = b"", headers: Any = None) -> Answer:
        """Sends a request to the server itself."""
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        try:
            connection.request(method, path, body or None, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    def metadata(self, bucket: str, name: str) -> dict[str, Any] | None:
        """An object's metadata, or None if there is no such object."""
        answer = self.ask("GET", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")
        if answer.status != 200:
            return None
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def names(self, bucket: str) -> list[str]:
        """The names of all objects in a bucket."""
        answer = self.ask("GET", f"/storage/v1/b/{bucket}/o?maxResults=100000")
        return sorted(item["name"] for item in json.loads(answer.body).get("items", []))

    def remove(self, bucket: str, name: str) -> None:
        """Deletes an object, if it is there."""
        path = f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        assert self.ask("DELETE", path).status in (200, 204, 404)

    def content(self, bucket: str, name: str) -> bytes:
        """The bytes of an object."""
        path = f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media"
        return self.ask("GET", path).body


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


def _problem(status: int, message: str) -> Answer:
    body = json.dumps({"error": {"code": status, "message": message}}).encode()
    return Answer(status, [("Content-Type", "application/json")], body)


class Handler(BaseHTTPRequestHandler):
    """Serves one connection, on behalf of Cloud Storage."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: Proxy

    def setup(self) -> None:
        super().setup()
        with self.proxy.lock:
            self.proxy.connections += 1

    def _handle(self) -> None:
        line = f"{self.command} {unquote(self.path)}"
        length = int(self.headers.get("Content-Length") or 0)
        rule = self.proxy.rule_for(line)
        fault = rule.fault if rule else None
        if fault == CUT_UPLOAD:
            self._forward_half(self.rfile.read(length // 2))
            self._hang_up()
            return
        body = self.rfile.read(length)
        if isinstance(fault, int):
            self._answer(self._problem(fault, f"injected status {fault}"))
            return
        if callable(fault):
            fault()
        answer = self._serve(line, body)
        if isinstance(fault, LeaveOut):
            content = json.loads(answer.body)
            kept = {key: value for key, value in content.items() if key not in fault.fields}
            answer.body = json.dumps(kept).encode()
        if isinstance(fault, LeaveOutZeros):
            answer.body = re.sub(rb',?"size":\s*"0"', b"", answer.body)
        self.proxy.requests.append(Request(line, length, answer.status, len(answer.body)))
        if fault == LOSE_ANSWER:
            self._hang_up()
        else:
            self._answer(answer, cut=fault == CUT_DOWNLOAD)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _handle  # noqa: N815

    def _problem(self, status: int, message: str) -> Answer:
        return _problem(status, message)

    def _serve(self, line: str, body: bytes) -> Answer:
        answer = self._serve_object(body)
        if answer.status == 404 and self._missing_bucket(self.path):
            answer = _problem(404, "The specified bucket does not exist.")
        return answer

    def _serve_object(self, body: bytes) -> Answer:
        proxy = self.proxy
        split = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(split.query).items()}
        with proxy.lock if self.command == "DELETE" else nullcontext():
            wrong = self._precondition(split.path, query)
            return wrong or proxy.ask(self.command, self.path, body, self._forwarded_headers())

    def _missing_bucket(self, path: str) -> bool:
        found = re.search(r"/storage/v1/b/([^/]+)", path)
        return bool(found) and self.proxy.ask("GET", f"/storage/v1/b/{found[1]}").status == 404

    def _precondition(self, path: str, query: dict[str, str]) -> Answer | None:
        """The error that the real service would return, if any."""
        found = re.fullmatch(r"(?:/download)?/storage/v1/b/([^/]+)/o/(.+)", path)
        if not found:
            return None
        bucket, name = found[1], unquote(found[2])
        if "ifGenerationMatch" in query:
            there = self.proxy.metadata(bucket, name)
            if (there["generation"] if there else "0") != query["ifGenerationMatch"]:
                return _problem(412, _REFUSED)
        return None

    def _forwarded_headers(self) -> dict[str, str]:
        # Including Host, so that the server names the proxy in the URL of a resumable upload.
        return dict(self.headers.items())

    def _forward_half(self, half: bytes) -> None:
        """Starts the request at the server and breaks it off there too."""
        connection = http.client.HTTPConnection(self.proxy.upstream, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self._forwarded_headers().items():
            connection.putheader(name, value)
        connection.endheaders(half)
        connection.close()

    def _answer(self, answer: Answer, cut: bool = False) -> None:
        self.send_response(answer.status)
        head = self.command == "HEAD"
        for name, value in answer.headers:
            if name.lower() not in ("transfer-encoding", "connection", "date") and (
                head or name.lower() != "content-length"
            ):
                self.send_header(name, value)
        if answer.status != 204 and not head:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if cut:
            self.wfile.write(answer.body[: len(answer.body) // 2])
            self._hang_up()
        elif not head:
            self.wfile.write(answer.body)

    def _hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def proxy_server(kind: type[Handler]) -> Iterator[tuple[type[Handler], str]]:
    """Serves at an address; the caller sets `proxy` of the handler that is yielded with it."""
    handler = type("Handler", (kind,), {})
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield handler, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def faulty_server(*buckets: str) -> Iterator[Proxy]:
    """Runs a storage server with these buckets behind a proxy."""
    with (
        proxy_server(Handler) as (handler, address),
        gcs_server(*buckets, seen_as=address) as behind,
    ):
        handler.proxy = Proxy(address, behind.removeprefix("http://"))
        yield handler.proxy
