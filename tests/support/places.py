"""Where datasets of a storm are: a folder, or a bucket of a server of the tests."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from support.gcs_server import gcs_server
from support.s3_server import boto, client_variables, seaweed_server

_BUCKET = "storms"


class Disk:
    """Folders below the one in which commands run."""

    name = "disk"
    url = ""

    def __init__(self, work: Path) -> None:
        self.environment: dict[str, str] = {}
        self._work = work

    def read(self, folder: str) -> dict[str, bytes]:
        """All files below a folder, by name."""
        path = self._work / folder
        return {
            each.relative_to(path).as_posix(): each.read_bytes()
            for each in sorted(path.rglob("*"))
            if each.is_file()
        }

    def clear(self) -> None:
        """Makes all folders but that of the input empty."""
        for folder in ("out", "to"):
            shutil.rmtree(self._work / folder, ignore_errors=True)

    def put(self, folder: str, files: dict[str, bytes]) -> None:
        """Adds files to a folder."""
        for name, content in files.items():
            path = self._work / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


class _Store:
    """A bucket. Each clearing begins a new folder: SeaweedFS keeps folders of deleted files."""

    name = ""

    def __init__(self) -> None:
        self._root, self._cleared = "0/", 0

    @property
    def url(self) -> str:
        """How the URLs of its folders begin."""
        return f"{self.name}://{_BUCKET}/{self._root}"

    def clear(self) -> None:
        """As of a disk."""
        self._cleared += 1
        self._root = f"{self._cleared}/"


class Gcs(_Store):
    """A bucket of fake-gcs-server."""

    name = "gs"

    def __init__(self, server: str) -> None:
        super().__init__()
        self.environment = {"STORAGE_EMULATOR_HOST": server}
        client = storage.Client(
            project="test",
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": server},
        )
        self._bucket = client.bucket(_BUCKET)

    def read(self, folder: str) -> dict[str, bytes]:
        """As of a disk."""
        prefix = f"{self._root}{folder}/"
        return {
            blob.name.removeprefix(prefix): blob.download_as_bytes()
            for blob in self._bucket.list_blobs(prefix=prefix)
        }

    def put(self, folder: str, files: dict[str, bytes]) -> None:
        """As of a disk."""
        for name, content in files.items():
            blob = self._bucket.blob(f"{self._root}{folder}/{name}")
            blob.upload_from_string(content, "application/octet-stream")


class S3(_Store):
    """A bucket of SeaweedFS."""

    name = "s3"

    def __init__(self, server: str) -> None:
        super().__init__()
        self.environment = client_variables(server)
        self._client: Any = boto(server)
        self._client.create_bucket(Bucket=_BUCKET)

    def read(self, folder: str) -> dict[str, bytes]:
        """As of a disk."""
        prefix, get = f"{self._root}{folder}/", self._client.get_object
        pages = self._client.get_paginator("list_objects_v2")
        names = [
            each["Key"]
            for page in pages.paginate(Bucket=_BUCKET, Prefix=prefix)
            for each in page.get("Contents", ())
        ]
        return {
            name.removeprefix(prefix): get(Bucket=_BUCKET, Key=name)["Body"].read()
            for name in names
        }

    def put(self, folder: str, files: dict[str, bytes]) -> None:
        """As of a disk."""
        for name, content in files.items():
            self._client.put_object(
                Bucket=_BUCKET, Key=f"{self._root}{folder}/{name}", Body=content
            )


@contextmanager
def all_places(work: Path) -> Iterator[list[Disk | Gcs | S3]]:
    """A folder and two servers, in the order of how fast they are."""
    with (
        gcs_server(_BUCKET) as gs,
        seaweed_server() as s3,
        patch.dict(os.environ, {"STORAGE_EMULATOR_HOST": gs}),
    ):
        yield [Disk(work), Gcs(gs), S3(s3)]
