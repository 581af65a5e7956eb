"""Input files in datasets on the Hugging Face hub: `hf://datasets/OWNER/NAME@REVISION/path`.

The revision is pinned to its commit before anything is listed, so that what the URLs refer to
cannot change.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from fineshards.errors import InputError, UsageError
from fineshards.shards.job.records import SourceFile
from fineshards.sources.patterns import FoundFile, Matches, find_matches
from fineshards.sources.places.http_files import RefusedError, asked_wait, fetch, web_session
from fineshards.sources.places.hub_errors import brief, http_error, hub_failures, quiet_hub
from fineshards.storage.ranges import RangeReader
from fineshards.storage.retries import TRANSIENT_STATUS, retried

# The hub's own references hold slashes.
_URL = re.compile(
    r"hf://datasets/(?P<name>[^/@]+/[^/@]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?"
    r"(/(?P<wanted>.*))?"
)
# A launch should not hang on a hub that accepts connections and never responds.
_TIMEOUT_SECONDS = 60.0
# Signed addresses that a process keeps: it reads one file or a few at a time.
_MOST_ADDRESSES = 64

# Where the hub keeps each file's content, as it said when it was last asked.
_addresses: dict[str, str] = {}
_asking = threading.Lock()
# Of the processes that were forked from one, so many ask at once: enough for the hub's limit, which
# is 17 requests per second at most. Each locks its byte.
_AT_ONCE = 4
_turns = tempfile.TemporaryFile()  # noqa: SIM115


def _forget_in_child() -> None:
    global _asking
    _asking = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


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
    """Opens the file; read_ahead: minimum bytes per request, 0 for exactly the bytes read.

    Each process asks the hub once per file, which counts against the hub's limit, and reads from
    where the hub keeps the content until that address is refused.
    """
    session = web_session()

    def download(start: int, stop: int) -> bytes:
        address = _address(file.path)
        try:
            return content(address, start, stop)
        except RefusedError:
            return content(_address(file.path, refused=address), start, stop)

    def content(address: str, start: int, stop: int) -> bytes:
        found = fetch(session, address, start, stop, name=file.path, headers=_headers(address))
        if found.size != file.size:
            raise InputError(
                f"{file.path} cannot be read: the hub sends {found.size} bytes, expected "
                f"{file.size}. Run the same command again."
            )
        return found.content

    return RangeReader(file.size, download).buffered(read_ahead)


def _address(path: str, refused: str | None = None) -> str:
    """Where a file's content is; asks the hub if that is not known, or was refused."""
    with _asking:
        if _addresses.get(path) in (None, refused):
            if len(_addresses) >= _MOST_ADDRESSES:
                _addresses.clear()
            with _in_turn():
                _addresses[path] = _attempted(path, partial(_ask, path))
        return _addresses[path]


@contextmanager
def _in_turn() -> Iterator[None]:
    """Lets few worker processes ask at once; while they wait for the hub's limit, so do the others.

    The system unlocks what a process has locked when it ends, however it ends.
    """
    turn = os.getpid() % _AT_ONCE
    fcntl.lockf(_turns, fcntl.LOCK_EX, 1, turn)
    try:
        yield
    finally:
        fcntl.lockf(_turns, fcntl.LOCK_UN, 1, turn)


def _ask(path: str) -> str:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    match = _URL.fullmatch(path)
    assert match is not None
    url = hf_hub_url(
        match["name"], match["wanted"], repo_type="dataset", revision=match["revision"]
    )
    location: str = get_hf_file_metadata(url, timeout=_TIMEOUT_SECONDS).location
    return location


def _headers(address: str) -> dict[str, str]:
    """The credentials for what the hub sends itself, small files; other addresses are signed."""
    from huggingface_hub import constants, get_token

    own = urlsplit(address).netloc == urlsplit(constants.ENDPOINT).netloc
    token = get_token() if own else None
    return {"Authorization": f"Bearer {token}"} if token else {}


def _attempted(url: str, action: Callable[[], Any]) -> Any:
    """Runs requests of the library's, again after failures that may pass, as the hub asks.

    Raises UsageError or InputError for what stays.
    """
    quiet_hub()

    def pause(error: Exception) -> float | None:
        response = getattr(error, "response", None)
        if not isinstance(error, (ConnectionError, http_error())):
            return None
        if response is None:
            return 0.0
        return asked_wait(response.headers) if response.status_code in TRANSIENT_STATUS else None

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
