"""Input files in datasets on the Hugging Face hub: `hf://datasets/OWNER/NAME@REVISION/path`.

The revision is pinned to its commit before anything is listed, so that what the URLs refer to
cannot change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO
from urllib.parse import unquote

from fineshards.errors import InputError, UsageError
from fineshards.shards.job.records import SourceFile
from fineshards.sources.patterns import FoundFile, Matches, find_matches
from fineshards.sources.places.fsspec_files import whole_reads
from fineshards.sources.places.hub_errors import (
    brief,
    http_error,
    hub_failures,
    quiet_http_client,
    quiet_hub,
)
from fineshards.storage.retries import TRANSIENT_STATUS, retried

# The hub's own references hold slashes.
_URL = re.compile(
    r"hf://datasets/(?P<name>[^/@]+/[^/@]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?"
    r"(/(?P<wanted>.*))?"
)
# A launch should not hang on a hub that accepts connections and never responds.
_TIMEOUT_SECONDS = 60.0


def find(pattern: str) -> Matches:
    """Returns the files that `hf://datasets/OWNER/NAME@REVISION/pattern` means.

    Without a revision it is that of the main branch. Raises UsageError or InputError if the hub has
    no such dataset, or cannot be reached.
    """
    match = _URL.fullmatch(pattern)
    if match is None:
        raise UsageError(
            f"--input {pattern}: expected hf://datasets/OWNER/NAME@REVISION/folder/*.parquet. "
            "Only datasets can be read from the hub, without wildcards in the name or revision."
        )
    quiet_hub()
    revision = match["revision"] and unquote(match["revision"])
    with hub_failures(f"--input {pattern}", revision="the @REVISION"):
        info = pin(match["name"], revision, f"--input {pattern}")
        return find_matches(match["wanted"] or "", partial(_list, info.id, info.sha))


def check(file: SourceFile) -> None:
    """Does nothing: a file of a commit cannot change."""


def open_raw(file: SourceFile, read_ahead: int) -> BinaryIO:
    """Opens the file; read_ahead: minimum bytes per request, 0 for exactly the bytes read."""
    quiet_http_client()
    import fsspec  # slow

    def open_pinned() -> Any:
        return fsspec.filesystem("hf").open(file.path, "rb", size=file.size, cache_type="none")

    opened = _attempted(file.path, open_pinned)
    return whole_reads(file, opened, read_ahead, partial(_attempted, file.path))


def _attempted(url: str, action: Callable[[], Any]) -> Any:
    """Runs requests of the library's, and again where it has given up on a failure that may pass.

    It gives up after half a minute. Raises UsageError or InputError for what stays.
    """

    def pause(error: Exception) -> float | None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        passes = status is None or status in TRANSIENT_STATUS
        return 0.0 if isinstance(error, (ConnectionError, http_error())) and passes else None

    with hub_failures(url):
        return retried(action, pause, lambda error: f"{url}: {brief(error)}")


def pin(name: str, revision: str | None, flags: str, *more: str) -> Any:
    """What the hub says of a dataset: its commit and current name, as it redirects old ones.

    more: of what else it should tell.
    """
    from huggingface_hub import HfApi

    expand: list[Any] = ["sha", *more]
    info = HfApi().dataset_info(name, revision=revision, timeout=_TIMEOUT_SECONDS, expand=expand)
    if info.sha is None:
        raise InputError(f"{flags}: the hub's answer does not contain the commit. Try again later.")
    return info


def content_hash(info: Any) -> str:
    """The identity of a file on the hub: SHA-256 where the hub has it (LFS), otherwise git's."""
    return f"etag:{info.lfs.sha256 if info.lfs else info.blob_id}"


def _list(
    repository: str, commit: str, prefix: str, deep: bool
) -> tuple[list[FoundFile], set[str]]:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.hf_api import RepoFile

    folder = prefix.rpartition("/")[0]
    files, folders = [], set[str]()
    try:
        for info in HfApi().list_repo_tree(
            repository, folder or None, recursive=deep, revision=commit, repo_type="dataset"
        ):
            if isinstance(info, RepoFile) and info.path.startswith(prefix):
                path = f"hf://datasets/{repository}@{commit}/{info.path}"
                files.append(FoundFile(path, info.path, info.size, content_hash(info)))
            elif info.path.startswith(prefix):
                folders.add(f"{info.path}/")
    except EntryNotFoundError:  # no such folder
        pass
    return files, folders
