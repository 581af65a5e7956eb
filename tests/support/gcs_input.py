"""A bucket with input files, behind a proxy that records the requests for them."""

from itertools import count
from pathlib import Path

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from support.faulty_proxy import Proxy, Request
from support.gcs_server import make_bucket

_numbers = count()


class Stored:
    """A new bucket behind a proxy. Writes bypass the proxy."""

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
        """Forgets all rules and recorded requests."""
        self.proxy.rules.clear()
        self.proxy.requests.clear()

    def requests(self, part: str = "/o") -> list[Request]:
        """Requests whose line contains `part`.

        By default all but those for the bucket itself, which the client library adds.
        """
        return [request for request in self.proxy.requests if part in request.line]

    def downloads(self) -> list[Request]:
        """Requests for content."""
        return self.requests("alt=media")

    def put(self, name: str, content: bytes | Path, encoding: str | None = None) -> str:
        """Writes an object and returns its URL."""
        blob = self.bucket.blob(name)
        blob.content_encoding = encoding
        body = content.read_bytes() if isinstance(content, Path) else content
        blob.upload_from_string(body, "application/octet-stream")
        return f"{self.url}/{name}"

    def generation(self, name: str) -> int:
        generation: int = self.bucket.get_blob(name).generation
        return generation

    def listed(self) -> dict[str, int]:
        """The sizes of all objects, by name."""
        return {blob.name: blob.size for blob in self.bucket.list_blobs()}

    def shards(self, folder: str) -> dict[str, bytes]:
        """The contents of a dataset's split folders, without the empty folder objects."""
        return {
            blob.name.removeprefix(f"{folder}/"): blob.download_as_bytes()
            for split in ("test", "train")
            for blob in self.bucket.list_blobs(prefix=f"{folder}/{split}/")
            if not blob.name.endswith("/")
        }
