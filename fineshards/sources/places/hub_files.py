"""Input files in datasets on the Hugging Face hub: `hf://datasets/OWNER/NAME@REVISION/path`.

The revision is pinned to its commit before anything is listed, so that what the URLs refer to
cannot change.
"""

import fcntl
import logging
import os
import re
import tempfile
import textwrap
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from fineshards.credentials import refuse_secrets_in_endpoint
from fineshards.errors import InputError, UnavailableError, UsageError
from fineshards.shards.job.records import SourceFile
from fineshards.sources.places.http_files import RefusedError, WebRange, fetch
from fineshards.sources.places.place import FoundFile, Place, find_matches

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


class HubFiles(Place):
    """Files in datasets.

    Each process asks the hub once per file, which counts against the hub's limit, and reads from
    where the hub keeps the content until that address is refused.
    """

    pinned = True

    def find(self, pattern: str) -> list[FoundFile]:
        """Returns the files that `hf://datasets/OWNER/NAME@REVISION/pattern` means.

        Without a revision it is that of the main branch. Raises UsageError or InputError if the hub
        has no such dataset, or cannot be reached.
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
            return find_matches(match["wanted"] or "", partial(list_files, info.id, info.sha))

    def state(self, file: SourceFile) -> tuple[int, str]:
        """A file of a commit cannot change."""
        return file.size, file.version

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        answer, address = None, _addresses.get(file.path, "")
        if address:
            with suppress(RefusedError):  # it has expired
                answer = _fetch(address, file, start, stop)
        if answer is None:
            with _in_turn(file.path):
                newer = _addresses.get(file.path, "")  # of another thread
                ask = _resolved if newer == address else partial(_fetch, newer)
                answer = ask(file, start, stop)
        if answer.size != file.size:
            raise UnavailableError(
                f"{file.path} cannot be read: the hub sends {answer.size} bytes, expected "
                f"{file.size}. Run the same command again."
            )
        return answer.content


def _resolved(file: SourceFile, start: int, stop: int) -> WebRange:
    """Bytes of a file, from where the hub says that they are."""
    from huggingface_hub import constants, errors, hf_hub_url

    match = _URL.fullmatch(file.path)
    assert match is not None
    name, path, revision = match["name"], match["wanted"], match["revision"]
    with hub_failures(file.path):
        if constants.HF_HUB_OFFLINE:
            raise errors.OfflineModeIsEnabled
        url = hf_hub_url(name, path, repo_type="dataset", revision=revision)
        try:
            answer = _fetch(url, file, start, stop)
        except RefusedError as error:
            raise access_refused(file.path) from error
    if len(_addresses) >= _MOST_ADDRESSES:
        _addresses.clear()
    _addresses[file.path] = answer.url
    return answer


def _fetch(address: str, file: SourceFile, start: int, stop: int) -> WebRange:
    """As `fetch`, with the token for what the hub sends itself; other addresses are signed."""
    from huggingface_hub import constants, get_token

    is_hub = urlsplit(address).netloc == urlsplit(constants.ENDPOINT).netloc
    token = get_token() if is_hub else None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return fetch(address, start, stop, name=file.path, headers=headers)


@contextmanager
def _in_turn(path: str) -> Iterator[None]:
    """Lets few files be asked for at once; while they wait for the hub, so do the others."""
    # Eight are enough for its limit of 17 per second. Each thread opens the file, so threads wait
    # too; the system unlocks it when a process ends.
    name = f"fineshards-{os.getuid()}-hub-{zlib.crc32(path.encode()) % 8}.lock"
    with open(os.path.join(tempfile.gettempdir(), name), "ab") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            yield
        finally:  # a process that was forked meanwhile has it open as well
            fcntl.flock(turn, fcntl.LOCK_UN)


def pin(name: str, revision: str | None, flags: str) -> Any:
    """What the hub says of a dataset: its commit and current name, as it redirects old ones."""
    from huggingface_hub import HfApi

    info = HfApi().dataset_info(name, revision=revision, timeout=_TIMEOUT_SECONDS, expand=["sha"])
    if info.sha is None:
        raise InputError(f"{flags}: the hub's answer does not contain the commit. Try again later.")
    return info


def list_files(
    repository: str, commit: str, prefix: str, deep: bool
) -> tuple[list[FoundFile], set[str]]:
    """The files of a commit whose names have a prefix, and the folders that were not listed."""
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
                # SHA-256 where the hub has it (LFS), otherwise git's.
                content_hash = info.lfs.sha256 if info.lfs else info.blob_id
                files.append(FoundFile(path, info.path, info.size, f"etag:{content_hash}"))
            elif not deep and info.path.startswith(prefix):
                folders.add(f"{info.path}/")
    except EntryNotFoundError:  # no such folder
        pass
    return files, folders


def quiet_hub() -> None:
    """Keeps huggingface_hub from printing: the terminal shows progress and errors of ours only."""
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    hub_logging.set_verbosity(logging.ERROR)
    for name in ("httpx", "httpx2"):  # which log every request at level INFO
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def hub_failures(
    flags: str, what: str = "dataset", revision: str = "--dataset_revision"
) -> Iterator[None]:
    """Turns failures of the hub into UsageError or InputError: why a name cannot be resolved.

    flags: those that give the name, or the name. what: kind of the repository. revision: how the
    user names a revision.
    """
    from huggingface_hub import constants, errors
    from requests import RequestException

    hub = constants.ENDPOINT
    # Of requests up to 0.36, of httpx from 1.0 and of httpx2 from 2.0.
    client_error: Any = errors.HfHubHTTPError.__bases__[0]
    refuse_secrets_in_endpoint(hub, "HF_ENDPOINT")
    try:
        yield
    except errors.HFValidationError as error:
        raise UsageError(f"{flags}: not a valid name on the hub: {error}") from error
    except errors.GatedRepoError as error:
        raise access_refused(flags, what) from error
    except errors.RepositoryNotFoundError as error:
        raise UsageError(
            f"{flags}: {hub} has no such {what}, or it is private. Check the name; "
            f"for a private {what}, set HF_TOKEN to a token with read access."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UsageError(
            f"{flags}: no such revision. Give a branch, a tag or a full commit hash, "
            f"or omit {revision} to read the main branch."
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise UsageError(
            f"{flags}: HF_HUB_OFFLINE is set, so {hub} is not contacted. Unset it, or give a "
            "local folder."
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise access_refused(flags, what) from error
        raise InputError(f"{flags}: {hub} answered {status}. Try again later.") from error
    except (ConnectionError, RequestException, client_error) as error:
        raise InputError(
            f"{flags}: {hub} cannot be reached ({brief(error)}). "
            "Check the network and HF_ENDPOINT, or give a local folder."
        ) from error


def access_refused(flags: str, what: str = "dataset") -> UsageError:
    """The error for a repository that exists, but whose files need permission."""
    return UsageError(
        f"{flags}: the hub refuses access. If the {what} is gated, accept its terms on its "
        "page, and set HF_TOKEN to a token with read access."
    )


def brief(error: Exception) -> str:
    """A library's message on one line; some go on with examples or every known format."""
    words = " ".join(str(error).split()) or type(error).__name__
    return textwrap.shorten(words.rstrip("."), 300, placeholder=" ...")
