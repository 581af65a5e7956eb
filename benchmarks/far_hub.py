"""A hub with one dataset, far away: the part of its protocol that a build uses, with its limits.

    python -m benchmarks.far_hub FOLDER DELAY [REQUESTS SECONDS]

serves `hf://datasets/bench/text/NAME` from FOLDER/NAME. Every answer waits DELAY seconds. It prints
its port. As the real hub does, it answers 429 to anyone who asks for more files than is allowed in
five minutes without a token, or REQUESTS in SECONDS, and redirects to signed addresses on another
host, which expire after SIGNED_SECONDS. `GET /counts` says how many requests of each kind there
were, how many were refused, and in how many windows.
https://huggingface.co/docs/hub/rate-limits
"""

import asyncio
import hashlib
import json
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from benchmarks.far_server import Connection

# Requests, and in how many seconds, without a token.
ALLOWED = (3000, 300)
SIGNED_SECONDS = 10
COMMIT = "c" * 40


class _Hub:
    def __init__(self, folder: Path, allowed: int, seconds: int) -> None:
        self.allowed, self.seconds = allowed, seconds
        self.in_window: Counter[int] = Counter()
        self.paths = {path.name: path for path in sorted(folder.glob("*.parquet"))}
        self.requests: Counter[str] = Counter()
        self.began = time.monotonic()
        self.port = 0

    def answer(self, target: str, headers: bytes) -> bytes:
        """The answer to a request."""
        url = urlsplit(target)
        if url.path == "/counts":
            return _response(200, json.dumps(self.requests).encode())
        kind = {"api": "api", "stored": "content"}.get(url.path.split("/")[1], "resolvers")
        self.requests[kind] += 1
        if kind == "resolvers":
            window, passed = divmod(time.monotonic() - self.began, self.seconds)
            self.in_window[int(window)] += 1
            self.requests["windows"] = len(self.in_window)
            if self.in_window[int(window)] > self.allowed:
                self.requests["refused"] += 1
                left = math.ceil(self.seconds - passed)
                return _response(429, b"", f'RateLimit: "{kind}";r=0;t={left}\r\n')
        if kind == "api":
            return _response(200, json.dumps(self._api(url.path)).encode())
        name = unquote(url.path.rpartition("/")[2])
        path = self.paths[name]
        if kind == "resolvers":
            until = time.monotonic() + SIGNED_SECONDS
            stored = f"http://localhost:{self.port}/stored/{quote(name)}?until={until}"
            more = f"Location: {stored}\r\nX-Repo-Commit: {COMMIT}\r\n"
            more += f'ETag: "{_hash(name)}"\r\nX-Linked-Etag: "{_hash(name)}"\r\n'
            return _response(302, b"", more + f"X-Linked-Size: {path.stat().st_size}\r\n")
        if float(parse_qs(url.query)["until"][0]) < time.monotonic():
            self.requests["expired"] += 1
            return _response(403, b"Request has expired")
        return _content(path, headers)

    def _api(self, path: str) -> object:
        if "/tree/" not in path:
            return {"id": "bench/text", "sha": COMMIT}
        return [
            {
                "type": "file",
                "path": name,
                "size": path.stat().st_size,
                "oid": _hash(name)[:40],
                "lfs": {"oid": _hash(name), "size": path.stat().st_size, "pointerSize": 134},
            }
            for name, path in self.paths.items()
        ]


class _HubConnection(Connection):
    def __init__(self, hub: _Hub, delay: float) -> None:
        super().__init__(delay)
        self._hub = hub

    def response(self, target: str, headers: bytes) -> bytes:
        return self._hub.answer(target, headers)


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _content(path: Path, headers: bytes) -> bytes:
    wanted = next(line for line in headers.split(b"\r\n") if line.lower().startswith(b"range:"))
    first, _, last = wanted.partition(b"=")[2].partition(b"-")
    start, stop = int(first), min(int(last) + 1, path.stat().st_size)
    with path.open("rb") as file:
        content = os.pread(file.fileno(), stop - start, start)
    more = f"Content-Range: bytes {start}-{stop - 1}/{path.stat().st_size}\r\n"
    return _response(206, content, more)


def _response(status: int, content: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} .\r\nContent-Length: {len(content)}\r\n{more}\r\n"
    return head.encode() + content


async def _serve(folder: Path, delay: float, allowed: int, seconds: int) -> None:
    hub = _Hub(folder, allowed, seconds)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _HubConnection(hub, delay), "127.0.0.1", 0, backlog=256
    )
    hub.port = server.sockets[0].getsockname()[1]
    print(hub.port, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    requests, seconds = map(int, sys.argv[3:]) if sys.argv[3:] else ALLOWED
    asyncio.run(_serve(Path(sys.argv[1]), float(sys.argv[2]), requests, seconds))
