"""A server on the loopback interface, as a context manager."""

import sys
import threading
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
