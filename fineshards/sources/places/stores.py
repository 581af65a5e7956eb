"""Input files in stores that list their objects: gs:// and s3:// themselves, others by fsspec.

A job records the version of each file. gs:// and s3:// get it with every request, so bytes of two
versions never mix. https://cloud.google.com/storage/docs/object-versioning
Few of fsspec's packages, for Azure, SFTP, HDFS, SMB and others, read a version that is asked for.
So the best that a store tells of a file, an ETag, a version, the time of its last change or its
size, is looked at before and after each block.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from fineshards.errors import (
    InputError,
    MissingLibraryError,
    UnavailableError,
    UsageError,
)
from fineshards.extras import missing_extra
from fineshards.shards.job.records import SourceFile
from fineshards.sources.places.place import (
    WILDCARDS,
    FoundFile,
    Place,
    check_same,
    find_matches,
    split_root,
)
from fineshards.storage.objects import ObjectStorage, split_url
from fineshards.storage.open import open_storage
from fineshards.storage.retries import retried, translating

_VERSIONS = {"gs": "generation", "s3": "etag"}


class ObjectFiles(Place):
    """Objects that `gs://bucket/pattern` or `s3://bucket/pattern` means."""

    def find(self, pattern: str) -> list[FoundFile]:
        return find_matches(split_root(pattern)[1], partial(_list_objects, _bucket(pattern)))

    def state(self, file: SourceFile) -> tuple[int, str] | None:
        store = _bucket(file.path)
        described = store.find_object(split_url(file.path)[1])
        return described and (described.size, f"{_VERSIONS[store.scheme]}:{described.version}")

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        key, version = split_url(file.path)[1], file.version.partition(":")[2]
        content = _bucket(file.path).fetch(key, start, stop, version)
        if content is None:
            check_same(file, self.state(file))
            raise UnavailableError(
                f"{file.path} was away while it was read. Run the same command again."
            )
        return content


def _bucket(url: str) -> ObjectStorage:
    store = open_storage(split_root(url)[0], error=UnavailableError)
    assert isinstance(store, ObjectStorage)
    return store


def _list_objects(
    store: ObjectStorage, prefix: str, deep: bool
) -> tuple[list[FoundFile], set[str]]:
    files, folders = [], set[str]()
    for listed in store.list_objects(prefix, "" if deep else "/"):
        if isinstance(listed, str):
            folders.add(listed)
        elif not listed.key.endswith("/"):  # a folder created by hand
            identity = f"{_VERSIONS[store.scheme]}:{listed.version}"
            files.append(FoundFile(f"{store.root}/{listed.key}", listed.key, listed.size, identity))
    return files, folders


# What stores call the version of a file's content, the best first. They are compared as text.
_ETAGS = ("etag", "ETag", "sha")
_TIMES = (
    *("mtime", "last_modified", "LastModified", "modificationTime", "modify", "last_write_time"),
    "created",
)
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
        described = (info := _info(store, file.path)) and _found(file.path, file.path, info)
        return (described.size, described.identity) if described else None

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        store = _store(file.path)
        name = store._strip_protocol(file.path)
        content: bytes = _tried("read", file.path, lambda: store.cat_file(name, start, stop))
        # Not every file system of fsspec notices that a connection ended, and formats would take
        # that for the end of the file.
        if len(content) != stop - start:
            raise UnavailableError(
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
            f"--input {url}: {protocol}:// cannot be read. Give local paths, file://, gs://, "
            "s3://, https://, http://, hf://datasets/, or a protocol of fsspec, such as az:// or "
            "sftp://. For a dataset by its name use --dataset."
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
        words = " ".join(str(error).split()).rstrip(".") or "no reason given"
        advice = "Check the URL and the credentials, or try again later"
        return f"{type(error).__name__}: {words}. {advice}."

    with translating(reason, what, url, UnavailableError):
        return retried(
            action,
            lambda error: 0.0 if isinstance(error, ConnectionError | TimeoutError) else None,
            lambda error: f"{url}: {error}",
        )
