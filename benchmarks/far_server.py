"""A small, fast server of what reading a dataset needs of the Cloud Storage API, with a delay.

    python -m benchmarks.far_server FOLDER DELAY

serves `gs://BUCKET/NAME` from FOLDER/BUCKET/NAME: an object's metadata, and ranges of its content.
Every answer waits DELAY seconds, as a far service's does. It prints its port. `GET /counts` says
how many requests there were, by object, and how many were open at once at most. After `GET /hold?N`
no request is answered until N are open at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_REFUSED = b'{"error": {"code": 412, "message": "a precondition does not hold"}}'
_MISSING = b'{"error": {"code": 404, "message": "no such object"}}'


class Counts:
    """Requests by object, and how many were open at once at most."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.open = self.most_open = 0
        self.held: dict[Connection, Callable[[], None]] = {}
        self.hold = 0

    def release(self) -> None:
        """Lets requests be answered that are held back, if enough are open."""
        if self.open >= self.hold:
            held, self.held, self.hold = self.held, {}, 0
            for answer in held.values():
                answer()


class Connection(asyncio.Protocol):
    """One client's connection: requests one after the other, without bodies, answered late."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head, self._received = self._received[:end], self._received[end + 4 :]
            line, _, rest = head.partition(b"\r\n")
            self.request(line.split(b" ")[1].decode(), rest)

    def request(self, target: str, headers: bytes) -> None:
        """Takes a request."""
        asyncio.get_running_loop().call_later(self._delay, self.answer, target, headers)

    def answer(self, target: str, headers: bytes) -> None:
        """Answers a request, whose time has come."""
        self._transport.write(self.response(target, headers))

    def response(self, target: str, headers: bytes) -> bytes:
        """The answer to a request."""
        raise NotImplementedError


class StorageConnection(Connection):
    """Answers requests for objects, which are files of a folder."""

    def __init__(self, folder: Path, delay: float, counts: Counts) -> None:
        super().__init__(delay)
        self._folder, self.counts = folder, counts

    def request(self, target: str, headers: bytes) -> None:
        if target == "/counts":
            found = {**self.counts.requests, "": self.counts.most_open, "open": self.counts.open}
            self._transport.write(response_of(200, json.dumps(found).encode()))
            self.counts.requests.clear()
            self.counts.most_open = 0
            return
        if target.startswith("/hold?"):
            self.counts.hold = int(target.partition("?")[2])
            self.counts.release()
            self._transport.write(response_of(200, b""))
            return
        self.counts.open += 1
        self.counts.most_open = max(self.counts.most_open, self.counts.open)
        if not self.counts.hold:
            super().request(target, headers)
            return
        self.counts.held[self] = partial(super().request, target, headers)
        self.counts.release()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets a request that its client has given up."""
        self.counts.open -= self.counts.held.pop(self, None) is not None

    def answer(self, target: str, headers: bytes) -> None:
        self.counts.open -= 1
        super().answer(target, headers)

    def response(self, target: str, headers: bytes) -> bytes:
        url = urlsplit(target)
        bucket, _, name = url.path.partition("/b/")[2].partition("/o/")
        path = self._folder / bucket / unquote(name)
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            return response_of(404, _MISSING)
        try:
            state = os.fstat(file)
            generation = str(state.st_mtime_ns)
            query = parse_qs(url.query)
            about = "" if query.get("alt") == ["media"] else "about "
            self.counts.requests[f"{about}{bucket}/{unquote(name)}"] += 1
            if query.get("ifGenerationMatch", [generation]) != [generation]:
                return response_of(412, _REFUSED)
            if about:
                found = {"bucket": bucket, "name": unquote(name), "generation": generation}
                found |= {"size": str(state.st_size), "crc32c": "AAAAAA=="}
                found |= {"updated": "2026-01-01T00:00:00.000Z"}
                return response_of(200, json.dumps(found).encode())
            begin, stop = _range(headers, state.st_size)
            content = os.pread(file, stop - begin, begin)
            found_range = f"bytes {begin}-{stop - 1}/{state.st_size}"
            return response_of(206, content, found_range, generation)
        finally:
            os.close(file)


def _range(headers: bytes, size: int) -> tuple[int, int]:
    for header in headers.split(b"\r\n"):
        name, _, value = header.partition(b": ")
        if name.lower() == b"range":
            first, _, last = value.partition(b"=")[2].partition(b"-")
            return int(first), min(int(last) + 1, size) if last else size
    return 0, size


def response_of(
    status: int, content: bytes, content_range: str = "", generation: str = "0"
) -> bytes:
    """An answer of HTTP, with about as many headers as the service's."""
    kind = "application/json" if not content_range else "application/octet-stream"
    more = f"Content-Range: {content_range}\r\n" if content_range else ""
    head = (
        f"HTTP/1.1 {status} OK\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n{more}"
        f"X-Goog-Generation: {generation}\r\nX-Goog-Metageneration: 1\r\n"
        "X-Goog-Storage-Class: STANDARD\r\n"
        "Cache-Control: no-cache, no-store, max-age=0, must-revalidate\r\nVary: Origin\r\n"
        "ETag: made-up\r\nServer: benchmark\r\n\r\n"
    )
    return head.encode() + content


@dataclass(frozen=True)
class FarServer:
    """A running server. address: for STORAGE_EMULATOR_HOST. process: its number."""

    address: str
    process: int

    def counts(self) -> Counter[str]:
        """Requests by object since the last call; the key is empty for the most open at once.

        Requests for metadata have the key `about BUCKET/NAME`. open: those that wait for an answer.
        """
        return Counter(json.loads(self._ask("counts")))

    def hold(self, number: int) -> None:
        """Answers nothing until so many requests are open at once; 0 to go on at once."""
        self._ask(f"hold?{number}")

    def _ask(self, what: str) -> bytes:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.address}/{what}", timeout=10) as answer:
            content: bytes = answer.read()
        return content


@contextmanager
def far_server(
    folder: Path, delay: float, module: str = "benchmarks.far_server", *more: str
) -> Iterator[FarServer]:
    """Runs this server, or that of another module, in a process of its own. more: arguments."""
    command = [sys.executable, "-m", module, str(folder), str(delay), *more]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as server:
        try:
            assert server.stdout is not None
            yield FarServer(f"http://127.0.0.1:{int(server.stdout.readline())}", server.pid)
        finally:
            server.kill()


def serve(connection: Callable[[], Connection]) -> None:
    """Answers requests until the process is killed. connection: makes one."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            connection, "127.0.0.1", 0, backlog=256
        )
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    # The usual selector rounds waits up to whole milliseconds.
    asyncio.SelectorEventLoop(selectors.SelectSelector()).run_until_complete(run())


if __name__ == "__main__":
    counted = Counts()
    serve(lambda: StorageConnection(Path(sys.argv[1]), float(sys.argv[2]), counted))
