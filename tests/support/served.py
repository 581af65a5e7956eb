"""A server on the loopback interface, as a context manager."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class Served:
    """Answers requests from a thread, as long as it is entered."""

    def listen(self, handler: type[BaseHTTPRequestHandler], **attributes: object) -> int:
        """Takes a port and returns it. attributes: of the handlers, such as this object."""
        bound = type("Bound", (handler,), attributes)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), bound)
        self._http.daemon_threads = True
        return self._http.server_port

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
