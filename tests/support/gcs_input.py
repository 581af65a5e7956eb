"""A bucket with input files, behind a proxy that sees what is fetched of them."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from support.faulty_proxy import Proxy, Request
from support.gcs_server import make_bucket

_numbers = count()


class Stored:
    """A bucket of its own behind a proxy; writes go past the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        server = f"http://{proxy.upstream}"
        self.name = f"data-{next(_numbers)}"
        make_bucket(server, self.name)
        self.url = f"gs://{self.name}"
        client = storage.Client(
            project="test",
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": server},
        )
        self.bucket = client.bucket(self.name)
        self.forget()

    def forget(self) -> None:
        """Forgets the rules and the requests until now."""
        self.proxy.rules.clear()
        self.proxy.requests.clear()

    def requests(self, part: str = "/o") -> list[Request]:
        """Requests whose line has this part; by default all but those for the bucket itself, which
        the client makes of its own accord."""
        return [request for request in self.proxy.requests if part in request.line]

    def downloads(self) -> list[Request]:
        """Requests for content."""
        return self.requests("alt=media")

    def put(self, name: str, content: bytes | Path, encoding: str | None = None) -> str:
        """Writes an object; returns its address."""
        blob = self.bucket.blob(name)
        blob.content_encoding = encoding
        body = content.read_bytes() if isinstance(content, Path) else content
        blob.upload_from_string(body, "application/octet-stream")
        return f"{self.url}/{name}"

    def generation(self, name: str) -> int:
        generation: int = self.bucket.get_blob(name).generation
        return generation

    def listed(self) -> dict[str, int]:
        """All objects: name to size."""
        return {blob.name: blob.size for blob in self.bucket.list_blobs()}

    def shards(self, folder: str) -> dict[str, bytes]:
        """What a dataset's split folders hold, without the empty folder objects."""
        return {
            blob.name.removeprefix(f"{folder}/"): blob.download_as_bytes()
            for split in ("test", "train")
            for blob in self.bucket.list_blobs(prefix=f"{folder}/{split}/")
            if not blob.name.endswith("/")
        }
