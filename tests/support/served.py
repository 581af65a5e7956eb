"""A server on the loopback interface, as a context manager, and its answers."""

import sys
import threading
from collections.abc import Mapping
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Server(ThreadingHTTPServer):
    """Prints no traceback where a client hangs up, as killed ones do."""

    daemon_threads = True
    # Killed clients leave connections in the queue.
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError | HTTPException):
            super().handle_error(request, client_address)


class Served:
    """Answers requests from a thread, as long as it is entered."""

    def listen(self, handler: type[BaseHTTPRequestHandler], **attributes: object) -> int:
        """Takes a port and returns it. attributes: of the handlers, such as this object."""
        bound = type("Bound", (handler,), attributes)
        self._http = Server(("127.0.0.1", 0), bound)
        return self._http.server_port

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class Handler(BaseHTTPRequestHandler):
    """Keeps connections open, and prints no requests."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """Answers a request of any method."""
        raise NotImplementedError

    def _answer(self) -> None:
        self.answer()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_CONNECT = _answer  # noqa: N815

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def send(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        """Answers. cut: the number of bytes of the body after which the server hangs up."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass
