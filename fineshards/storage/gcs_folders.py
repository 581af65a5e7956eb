"""Real folders, which buckets with hierarchical namespace have.

The storage library has no calls for them. They are four requests of the JSON API, sent over a
connection of google-auth; Google's own client for them (google-cloud-storage-control) would bring
gRPC and another set of retries and errors along.
https://cloud.google.com/storage/docs/json_api/v1/folders
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from fineshards.storage.gcs_objects import client, credentials, explained, retry, split_url


def has_folders(url: str) -> bool:
    """Whether the bucket of a `gs://` address has real folders; asked once a process.

    Storage layout is asked for instead of the bucket's metadata, because it takes no more
    permission than listing does.
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
        # Servers for tests do not know it; and where there is no bucket, writing will tell.
        return False
    enabled: bool = layout.get("hierarchicalNamespace", {}).get("enabled", False)
    return enabled


def make_folder(url: str) -> None:
    """Makes a folder, and those above it, unless it is there."""
    from google.api_core.exceptions import Conflict

    bucket, name = split_url(url)
    with explained("made", url):
        try:
            _request("POST", bucket, "folders", {"recursive": "true"}, {"name": f"{name}/"})
        except Conflict:
            return


def remove_folders(url: str) -> None:
    """Removes a folder without objects in it, and the folders below it."""
    from google.api_core.exceptions import NotFound

    bucket, name = split_url(url)
    with explained("deleted", url):
        # The deepest first: a folder must be empty to be deleted.
        for folder in sorted(_folders(bucket, f"{name}/"), key=len, reverse=True):
            try:
                _request("DELETE", bucket, f"folders/{quote(folder, safe='')}")
            except NotFound:
                continue


def _folders(bucket: str, prefix: str) -> Iterator[str]:
    asked = {"prefix": prefix}
    while True:
        page = _request("GET", bucket, "folders", asked)
        yield from (folder["name"] for folder in page.get("items", []))
        if "nextPageToken" not in page:
            return
        asked["pageToken"] = page["nextPageToken"]


def _request(
    method: str,
    bucket: str,
    path: str,
    parameters: dict[str, str] | None = None,
    body: dict[str, str] | None = None,
) -> dict[str, Any]:
    """One request about a bucket; returns its JSON. Raises google.api_core's exceptions."""
    from google.api_core.exceptions import from_http_response
    from google.auth.transport.requests import AuthorizedSession

    # google-auth has types, but not for these.
    session_of: Any = AuthorizedSession
    raised: Any = from_http_response

    found, _ = credentials(os.environ.get("STORAGE_EMULATOR_HOST"))

    def attempt() -> dict[str, Any]:
        with session_of(found) as session:
            answer = session.request(
                method,
                f"{client().api_endpoint}/storage/v1/b/{bucket}/{path}",
                params=parameters,
                json=body,
                timeout=60,
            )
        if not answer.ok:
            raise raised(answer)
        content: dict[str, Any] = answer.json() if answer.content else {}
        return content

    sent: dict[str, Any] = retry()(attempt)()
    return sent
