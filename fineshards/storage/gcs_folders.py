"""Folders of buckets with hierarchical namespace.

The storage library has no calls for them, so this module sends four requests of the JSON API over
google-auth. Google's own client for them (google-cloud-storage-control) would add gRPC and a second
set of retries and errors.
https://cloud.google.com/storage/docs/json_api/v1/folders
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from fineshards.storage.gcs_objects import client, credentials, explained, retry
from fineshards.storage.names import split_url


def has_folders(url: str) -> bool:
    """Whether the bucket of a `gs://` URL has hierarchical namespace; asked once per process.

    This requests the storage layout instead of the bucket's metadata, because the layout needs no
    more permission than listing does.
    https://cloud.google.com/storage/docs/json_api/v1/buckets/getStorageLayout
    """
    with explained("read", url):
        return _has_folders(split_url(url)[0], client().api_endpoint)


@functools.cache
def _has_folders(bucket: str, _endpoint: str) -> bool:
    from google.api_core.exceptions import NotFound

    try:
        layout = _request("GET", bucket, "storageLayout")
    except NotFound:
        # Emulators lack this request. If the bucket is missing, the first write reports it.
        return False
    enabled: bool = layout.get("hierarchicalNamespace", {}).get("enabled", False)
    return enabled


def make_folder(url: str) -> None:
    """Creates a folder and its parents; an existing one is kept."""
    from google.api_core.exceptions import Conflict

    bucket, name = split_url(url)
    with explained("created", url):
        try:
            _request("POST", bucket, "folders", {"recursive": "true"}, {"name": f"{name}/"})
        except Conflict:
            return


def remove_folders(url: str) -> None:
    """Deletes a folder that holds no objects, and the folders below it."""
    from google.api_core.exceptions import NotFound

    bucket, name = split_url(url)
    with explained("deleted", url):
        # Deepest first, because only an empty folder can be deleted.
        for folder in sorted(_folders(bucket, f"{name}/"), key=len, reverse=True):
            try:
                _request("DELETE", bucket, f"folders/{quote(folder, safe='')}")
            except NotFound:
                continue


def _folders(bucket: str, prefix: str) -> Iterator[str]:
    query = {"prefix": prefix}
    while True:
        page = _request("GET", bucket, "folders", query)
        yield from (folder["name"] for folder in page.get("items", []))
        if "nextPageToken" not in page:
            return
        query["pageToken"] = page["nextPageToken"]


def _request(
    method: str,
    bucket: str,
    path: str,
    parameters: dict[str, str] | None = None,
    body: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Sends a request about a bucket; returns the JSON. Raises google.api_core's exceptions."""
    from google.api_core.exceptions import from_http_response
    from google.auth.transport.requests import AuthorizedSession

    # google-auth is typed, but not these two.
    new_session: Any = AuthorizedSession
    error_from: Any = from_http_response

    found, _ = credentials(os.environ.get("STORAGE_EMULATOR_HOST"))

    def attempt() -> dict[str, Any]:
        with new_session(found) as session:
            response = session.request(
                method,
                f"{client().api_endpoint}/storage/v1/b/{bucket}/{path}",
                params=parameters,
                json=body,
                timeout=60,
            )
        if not response.ok:
            raise error_from(response)
        content: dict[str, Any] = response.json() if response.content else {}
        return content

    result: dict[str, Any] = retry()(attempt)()
    return result
