"""A page that follows a job, for this machine alone: `fineshards status --serve`.

The server reads the output folder when a page asks, so nothing is read while no page is open. It
listens on the loopback interface. Requests under another name are refused, because a site could
give its own name this machine's address (DNS rebinding) and read what is meant for the person here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socketserver
import sys
import threading
import time
from dataclasses import asdict
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fineshards.errors import FineshardsError, UsageError
from fineshards.job_status.stages import (
    count_tokens,
    describe_pace,
    list_writing,
    of_what_is_left,
    stages_of,
    stillness,
)
from fineshards.job_status.status import Status, StatusReader, pause_after
from fineshards.printable import printable
from fineshards.reports.markup import asset, content_policy, page
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage
from fineshards.wording import approximately, duration

_OTHER_PORT = 8765
_HOST = "127.0.0.1"
# Whatever the port is: `ssh -L` may give the page another one.
_NAMES = re.compile(rf"({re.escape(_HOST)}|localhost)(:\d+)?", re.IGNORECASE | re.ASCII)
# Seconds between looks at the folder at least: while a job runs, and once it has finished.
_RUNNING_SECONDS, _FINISHED_SECONDS = 1.0, 30.0


def live_server(folder: str, port: int) -> LiveServer:
    """A server of the page, which listens and does not answer yet.

    port: 0 for a free one. Raises OutputError if the folder holds no job, and UsageError if the
    port cannot be used.
    """
    storage = open_storage(folder)
    StatusReader(storage)  # a misspelt folder is an error here
    try:
        return LiveServer(storage.root, _Looks(storage), port)
    except OSError as error:
        other = _OTHER_PORT
        if port > 1023:  # lower ones are the administrator's
            other = port + 1 if port < 65535 else port - 1
        raise UsageError(
            f"port {port} cannot be used: {os.strerror(error.errno or 0)}. Give another one, such "
            f"as --serve {other}, or --serve 0 for a free one."
        ) from error


class LiveServer(ThreadingHTTPServer):
    """Serves the page and what it asks for."""

    daemon_threads = True

    def __init__(self, folder: str, looks: _Looks, port: int) -> None:
        self.folder = folder
        self.looks = looks
        super().__init__((_HOST, port), _Handler)

    def server_bind(self) -> None:
        """See socketserver. http.server would also look up this machine's name, for seconds."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """See socketserver. A browser that goes away is no error of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{_HOST}:{self.server_address[1]}/"


class _Looks:
    """The latest look at a folder, for all who ask."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._reader: StatusReader | None = None
        self._lock = threading.Lock()
        self._found: Status | FineshardsError | None = None
        self._next = 0.0

    def latest(self) -> Status | FineshardsError:
        """The status, or what went wrong; read again if it is some time ago."""
        with self._lock:
            began = time.monotonic()
            if self._found is None or began >= self._next:
                self._found = self._look()
                ended = time.monotonic()
                is_over = isinstance(self._found, Status) and self._found.stage == "finished"
                least = _FINISHED_SECONDS if is_over else _RUNNING_SECONDS
                # What failed took as long as its retries, which says nothing of a look.
                took = ended - began if isinstance(self._found, Status) else 0.0
                self._next = ended + pause_after(took, least)
            return self._found

    def _look(self) -> Status | FineshardsError:
        try:
            self._reader = self._reader or StatusReader(self._storage)
            found = self._reader.read()
        except FineshardsError as error:
            self._reader = None  # another job may take its place
            return error
        except Exception as error:
            self._reader = None
            return FineshardsError(
                f"the status cannot be read: unexpected {type(error).__name__}. The job does not "
                "depend on it. Please report this, with the version of fineshards."
            )
        if found.stage == "finished":
            self._reader = None  # another generation may follow
        return found


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fineshards", ""
    timeout = 60

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1:  # RFC 9112, 3.2; what stands between may go by another one than we do
            self._answer(HTTPStatus.BAD_REQUEST, "A request has one Host header.\n")
        elif not _NAMES.fullmatch(hosts[0]):
            self._answer(HTTPStatus.FORBIDDEN, f"This page is at {self.server.address} only.\n")
        elif self.path == "/":
            self._answer(HTTPStatus.OK, live_page(), "text/html")
        elif self.path == "/status.json":
            answer = answer_of(self.server.folder, self.server.looks.latest())
            self._answer(HTTPStatus.OK, json.dumps(answer), "application/json")
        else:
            self._answer(HTTPStatus.NOT_FOUND, "There is nothing here. The page is at /.\n")

    def do_HEAD(self) -> None:
        """See http.server. As GET, without the body."""
        self.do_GET()

    def end_headers(self) -> None:
        policy = content_policy(*_assets(), connects=True)
        self.send_header("Content-Security-Policy", f"{policy}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a page asks every other second."""

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def answer_of(folder: str, found: Status | FineshardsError) -> dict[str, Any]:
    """What the page is told: the status as `status --json` prints it, and how it is shown.

    Or the sentence of an error.
    """
    if isinstance(found, FineshardsError):
        return {
            "folder": printable(folder),
            "error": printable(str(found)),
            "status": None,
            "shown": None,
        }
    return {
        "folder": printable(folder),
        "error": None,
        "status": asdict(found),
        "shown": _shown(folder, found),
    }


def _shown(folder: str, status: Status) -> dict[str, Any]:
    is_over = status.stage == "finished"
    still = stillness(status)
    quoted = shlex.quote(printable(folder))
    commands = [f"fineshards verify {quoted}", f"fineshards report {quoted}"]
    note = describe_pace(status)
    return {
        "state": still or status.stage,
        "figures": _finished_figures(status) if is_over else _figures(status, bool(still)),
        "note": note[:1].upper() + note[1:] if still else None,
        "stages": [
            {
                "name": stage.name,
                "state": stage.state,
                "detail": printable(stage.detail),
                "percent": min(100, 100 * stage.done // stage.total)
                if stage.total and stage.state == "now"
                else None,
            }
            for stage in stages_of(status)
        ],
        "writing": [[printable(name), how] for name, how in list_writing(status)],
        "splits": [
            [split, *(f"{sums[what]:,}" for what in ("documents", "tokens", "shards"))]
            for split, sums in (status.splits or {}).items()
        ],
        "commands": commands if is_over else [],
    }


def _figures(status: Status, is_idle: bool) -> list[tuple[str, str]]:
    """The key figures of an unfinished job: their names, and what they are."""
    unknown = "–"
    rate, per_second = "Tokens per second", unknown
    if status.stage == "judging":
        rate = "Text per second"
        if status.bytes_per_second:
            per_second = f"{status.bytes_per_second / 1e6:,.1f} MB"
    elif status.stage == "writing":
        rate, per_second = "Shards", f"{status.shards:,}"
    elif status.tokens_per_second:
        per_second = approximately(round(status.tokens_per_second))
    left = unknown if status.seconds_left is None else duration(status.seconds_left)
    pace = [(rate, per_second), (of_what_is_left(status).capitalize(), left)]
    if status.seconds_running is not None:
        pace.insert(0, ("Running for", duration(status.seconds_running)))
    return [
        ("Tokens", count_tokens(status)),
        *([] if is_idle else pace),
        ("Last written", f"{duration(status.seconds_idle)} ago"),
    ]


def _finished_figures(status: Status) -> list[tuple[str, str]]:
    documents = sum(sums["documents"] for sums in (status.splits or {}).values())
    figures = [
        ("Tokens", f"{status.tokens:,}"),
        ("Documents", f"{documents:,}"),
        ("Shards", f"{status.shards:,}"),
        ("Files", f"{status.files:,}"),
    ]
    if status.generation > 1:
        figures.append(("Generation", f"{status.generation:,}"))
    return figures


@cache
def live_page() -> str:
    """The page, which is the same for every job: its script fills it."""
    return page("job_status/live.html", *_assets(), connects=True)


@cache
def _assets() -> tuple[str, str]:
    """The script and the style of the page."""
    return asset("job_status/live.js"), asset("reports/style.css") + asset("job_status/live.css")
