"""Input files that fsspec reads, on whatever its packages know: Azure, SFTP, HDFS, SMB and others.

A file is pinned by the best that its store tells of it: an ETag, a version, the time of its last
change, or its size. That is looked at before and after each block, because few stores read a
version that is asked for.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from fineshards.errors import InputError, MissingLibraryError, UsageError
from fineshards.extras import missing_extra
from fineshards.shards.job.records import SourceFile
from fineshards.sources.places.place import (
    WILDCARDS,
    FoundFile,
    Place,
    find_matches,
    split_root,
)
from fineshards.storage.retries import retried, translating

# What stores call the version of a file's content, the best first. They are compared as text.
_ETAGS = ("etag", "ETag", "sha")
_TIMES = (
    *("mtime", "last_modified", "LastModified", "modificationTime", "modify", "last_write_time"),
    "created",
)
# What is read without this module.
_SUPPORTED = "local paths, file://, gs://, s3://, https://, http://, hf://datasets/"
_Result = TypeVar("_Result")


class FsspecFiles(Place):
    """Files of any protocol that fsspec knows."""

    def find(self, pattern: str) -> list[FoundFile]:
        """Returns the files that a URL, a folder or a pattern means.

        Raises UsageError for a protocol that fsspec does not know, MissingLibraryError if its
        package is not installed, and InputError if the store cannot be listed.
        """
        store = _store(pattern)
        if not WILDCARDS.search(pattern):
            info = _info(store, pattern)
            if info is not None and info["type"] == "file":
                return [_found(pattern, pattern, info)]
        root, wanted = split_root(pattern)  # hdfs:///folder names no host
        return find_matches(wanted, partial(_list, store, root))

    def state(self, file: SourceFile) -> tuple[int, str] | None:
        store = _store(file.path)
        store.invalidate_cache()
        info = _info(store, file.path)
        described = info and _found(file.path, file.path, info)
        return (described.size, described.identity) if described else None

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        store = _store(file.path)
        name = store._strip_protocol(file.path)
        content: bytes = _tried("read", file.path, lambda: store.cat_file(name, start, stop))
        # Not every file system of fsspec notices that a connection ended, and formats would take
        # that for the end of the file.
        if len(content) != stop - start:
            raise InputError(
                f"{file.path} cannot be read: received {len(content)} bytes from byte {start} on, "
                f"expected {stop - start}. Run the same command again."
            )
        return content


def _store(url: str) -> Any:
    """The file system of a URL, with what fsspec's own settings say of its protocol."""
    import fsspec  # slow

    protocol = url.partition("://")[0]
    if "::" in url or protocol not in fsspec.available_protocols():
        raise UsageError(
            f"--input {url}: {protocol}:// cannot be read. Give {_SUPPORTED}, or a protocol of "
            "fsspec, such as az:// or sftp://. For a dataset by its name use --dataset."
        )
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        cause = error.__cause__ or error
        named = missing_extra(cause) if isinstance(cause, ModuleNotFoundError) else None
        raise named or MissingLibraryError(f"{url} cannot be read: {error}.") from error
    return _tried("read", url, lambda: fsspec.core.url_to_fs(url)[0])


def _info(store: Any, url: str) -> Mapping[str, Any] | None:
    def ask() -> Mapping[str, Any] | None:
        try:
            info: Mapping[str, Any] = store.info(store._strip_protocol(url))
        except FileNotFoundError:
            return None
        return info

    return _tried("read", url, ask)


def _list(store: Any, root: str, prefix: str, deep: bool) -> tuple[list[FoundFile], set[str]]:
    top = store._strip_protocol(f"{root}/").strip("/")
    folder = store._strip_protocol(f"{root}/{prefix.rpartition('/')[0]}")

    def ask() -> list[Mapping[str, Any]]:
        try:
            if deep:
                return list(store.find(folder, detail=True).values())
            return list(store.ls(folder, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return []

    files, folders = [], set[str]()
    for info in _tried("listed", f"{root}/{prefix}", ask):
        name = info["name"].strip("/").removeprefix(top).strip("/")
        if not name.startswith(prefix):
            continue
        if info["type"] != "directory":
            files.append(_found(f"{root}/{name}", name, info))
        elif not deep:
            folders.add(f"{name}/")
    return files, folders


def _found(url: str, name: str, info: Mapping[str, Any]) -> FoundFile:
    size = info.get("size")
    if size is None:
        raise InputError(f"{url} cannot be read: its store does not tell its size. Download it.")
    return FoundFile(url, name, int(size), identity_of(info))


def identity_of(info: Mapping[str, Any]) -> str:
    """The version of a file: the best that its store tells of it."""
    for kind, names in (("etag", _ETAGS), ("mtime", _TIMES)):
        for name in names:
            if value := info.get(name):
                # A listing may tell a time as a number, and a description as a date.
                if isinstance(value, datetime):
                    value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
                return f"{kind}:{value}".replace('"', "")
    return f"size:{info['size']}"


def _tried(what: str, url: str, action: Callable[[], _Result]) -> _Result:
    """Runs an action, again after a broken connection. Each package of fsspec has own errors."""

    def reason(error: Exception, *_: str) -> str:
        said = " ".join(str(error).split()).rstrip(".") or "no reason given"
        advice = "Check the URL and the credentials, or try again later"
        return f"{type(error).__name__}: {said}. {advice}."

    with translating(reason, what, url, InputError):
        return retried(
            action,
            lambda error: 0.0 if isinstance(error, ConnectionError | TimeoutError) else None,
            lambda error: f"{url}: {error}",
        )
