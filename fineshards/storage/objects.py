"""An output folder of objects, as on gs:// and s3://: what the stores have in common.

An object appears complete, when its upload ends. Objects are created under the condition that there
is none of that name: if another attempt created the object first, its bytes must be the same. The
few that are replaced, such as the manifest when a dataset grows, are replaced in the version that
was found.
"""

import io
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, ClassVar, NamedTuple, TypeVar

from fineshards.errors import FineshardsError, OutputError, UsageError
from fineshards.storage.base import Entry, Storage, always, below
from fineshards.storage.checksums import checksum_from_base64, checksum_to_base64, file_checksum
from fineshards.storage.ranges import RangeReader
from fineshards.storage.retries import retried, translating
from fineshards.storage.temporary import temporary_room

# A file being written is kept in memory up to this size, then on the worker's disk, so that its
# upload can restart from the beginning.
_SPOOL_BYTES = 8 << 20
# Objects are deleted one by one, each under its condition.
_DELETE_THREADS = 32
# Listings at the same time, each of a thousand objects per request.
_LIST_THREADS = 16
# Names that wait for these threads at most.
_DELETE_QUEUE = 10_000

_Result = TypeVar("_Result")


def split_url(url: str) -> tuple[str, str]:
    """Bucket and key of `scheme://bucket/key`."""
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key


class ExistsError(OutputError):
    """An object exists with other content than the one to be written."""


class StoredObject(NamedTuple):
    """One version of an object.

    key: its name in the bucket. version: its generation, or its ETag without quotes. modified: in
    seconds since the epoch. crc32c: in base64. attempt: differs between two writes of the same
    bytes where the version does not. Listings need not say the last two.
    """

    key: str
    size: int
    version: str
    modified: float
    crc32c: str | None = None
    attempt: str = ""


class ObjectStorage(Storage):
    """An output folder `scheme://bucket/prefix`. With the root `scheme://bucket`, a whole bucket.

    error: what is raised when a request fails. endpoint: the URL of the store, where a scheme has
    several. service: what the log calls the store.
    """

    scheme: ClassVar[str]
    service: ClassVar[str]
    endpoint: str | None = None
    on_disk = False

    def __init__(self, root: str, error: type[FineshardsError] = OutputError) -> None:
        self.root = root.rstrip("/")
        self.bucket, prefix = split_url(self.root)
        if not self.bucket:
            raise UsageError(f"{root} has no bucket name. Give {self.scheme}://bucket/folder.")
        self._prefix = f"{prefix}/" if prefix else ""
        self._error = error

    # -- by keys

    def find_object(self, key: str) -> StoredObject | None:
        """An object, or None if there is none."""
        with self._explained("read", self._url(key)):
            return self._find(key)

    def list_objects(self, prefix: str, delimiter: str = "") -> Iterator[StoredObject | str]:
        """The objects whose keys start with a prefix, in any order, and folders as text.

        delimiter: `/` to leave out what lies in folders below; these then end with `/`.
        """
        with self._explained("listed", self._url(prefix)):
            yield from self._list(prefix, delimiter)

    def fetch(self, key: str, start: int, stop: int, version: str = "") -> bytes | None:
        """Bytes `[start, stop)` of an object, fewer if it is shorter; None if there is none.

        version: the only one that is read; whatever is there by default. Takes one request.
        """
        with self._explained("read", self._url(key)):
            return self._get(key, start, stop, version) if start < stop else b""

    def _url(self, key: str) -> str:
        return f"{self.scheme}://{self.bucket}/{key}"

    # -- by names

    def path(self, name: str) -> str:
        return f"{self.root}/{below(name, self.root)}"

    def key(self, name: str) -> str:
        """The full name of an object."""
        return self._prefix + below(name, self.root)

    def find(self, name: str) -> StoredObject | None:
        """As `find_object`, by its name in the output folder."""
        return self.find_object(self.key(name))

    def size(self, name: str) -> int | None:
        stored = self.find(name)
        return None if stored is None else stored.size

    def version(self, name: str) -> str | None:
        """See Storage. Two writes of the same bytes may have one ETag."""
        stored = self.find(name)
        return None if stored is None else f"{stored.version} {stored.attempt}".strip()

    def matches(self, name: str, size: int, checksum: str) -> bool:
        """See Storage. A checksum that the store does not say is taken for right."""
        stored = self.find(name)
        return stored is not None and stored.size == size and stored.crc32c in (checksum, None)

    def entries(self, folder: str) -> Iterator[Entry]:
        return self.entries_by_beginning(folder, ("",))

    def entries_by_beginning(self, folder: str, beginnings: Sequence[str]) -> Iterator[Entry]:
        keys = [self.key(f"{folder}/" if folder else "") + beginning for beginning in beginnings]
        if len(keys) == 1:
            yield from self._entries(keys[0])
            return
        with ThreadPoolExecutor(_LIST_THREADS) as pool:
            waiting = iter(keys)
            # Not all at once, because nothing is taken from a listing until its turn comes.
            while chunk := list(islice(waiting, 2 * _LIST_THREADS)):
                for entries in pool.map(lambda key: list(self._entries(key)), chunk):
                    yield from entries

    def _entries(self, prefix: str) -> Iterator[Entry]:
        cut = len(self._prefix)
        for stored in self.list_objects(prefix):
            if isinstance(stored, StoredObject) and not stored.key.endswith("/"):
                yield Entry(stored.key[cut:], stored.size, stored.modified)

    def names(self, prefix: str) -> Iterator[str]:
        for stored in self.list_objects(self._prefix + prefix, "/"):
            if isinstance(stored, str):
                yield stored.removeprefix(self._prefix)
            elif not stored.key.endswith("/"):
                yield stored.key.removeprefix(self._prefix)

    def open(self, name: str, read_ahead: int = 1 << 16) -> BinaryIO:
        return self.open_ranges(name).buffered(read_ahead)

    def open_ranges(self, name: str) -> RangeReader:
        """See Storage. Takes one request."""
        stored = self.find(name)
        if stored is None:
            raise self._missing(name)
        return RangeReader(stored.size, partial(self._fetch_version, stored))

    def _fetch_version(self, stored: StoredObject, start: int, stop: int) -> bytes:
        content = self.fetch(stored.key, start, stop, stored.version)
        if content is None or len(content) != stop - start:
            raise self._error(
                f"{self._url(stored.key)} was changed or deleted while it was read: the version "
                f"{stored.version} no longer exists. Run again when no one writes there."
            )
        return content

    def read(self, name: str) -> bytes:
        """See Storage. Takes one request."""
        content = self.read_if_there(name)
        if content is None:
            raise self._missing(name)
        return content

    def read_if_there(self, name: str) -> bytes | None:
        """See Storage. Takes one request."""
        with self._explained("read", self.path(name)):
            return self._get(self.key(name))

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """See Storage. Takes one request."""
        content = self.fetch(self.key(name), start, stop)
        if content is None:
            raise self._missing(name)
        return self._whole_range(name, content, start, stop)

    @contextmanager
    def create(self, name: str, durable: bool = True, old: str | None = None) -> Iterator[BinaryIO]:
        with temporary_room(), tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as content:
            yield content  # type: ignore[misc]
            self._upload(name, content, old)

    def claim(self, name: str, content: bytes) -> bool:
        try:
            self.write(name, content)
        except ExistsError:
            return False
        return True

    def write(self, name: str, content: bytes, durable: bool = True) -> int:
        """See Storage. The checksum is the one that the server has confirmed."""
        return self._upload(name, io.BytesIO(content), None)

    def _upload(self, name: str, content: Any, replaced: str | None) -> int:
        """Creates an object from an open file; returns the CRC-32C that the server has confirmed.

        Raises OutputError if the object exists with other bytes. With the same, another attempt
        created it, or this one did and the response was lost.
        """
        content.seek(0)
        checksum, size = checksum_to_base64(file_checksum(content)), content.tell()
        with self._explained("written", self.path(name)):
            if not self._put(self.key(name), content, size, checksum, replaced):
                self._check_same(name, size, checksum)
        return checksum_from_base64(checksum)

    def _check_same(self, name: str, size: int, checksum: str) -> None:
        stored = self.find(name)
        if stored is None:
            raise OutputError(
                f"{self.path(name)} was deleted while it was written. Run again when no one else "
                "changes the output folder."
            )
        if (stored.size, stored.crc32c) != (size, checksum):
            raise ExistsError(
                f"{self.path(name)} already exists with other content: it has {stored.size} bytes "
                f"with crc32c {stored.crc32c or 'unknown'}, this job has {size} bytes with crc32c "
                f"{checksum}. If another job writes to this folder, choose another --output; "
                "otherwise delete the folder, or start again with --overwrite."
            )

    def delete(self, name: str, check: Callable[[], object] = always) -> None:
        stored = self.find(name)
        check()
        if stored is not None:
            self._remove(stored)

    def delete_folder(self, name: str, check: Callable[[], object] = always) -> None:
        with ThreadPoolExecutor(_DELETE_THREADS) as pool:
            objects = self.list_objects(f"{self._prefix}{name}/")
            # There may be millions of objects, and the pool would queue them all.
            while chunk := list(islice(objects, _DELETE_QUEUE)):
                check()
                list(pool.map(self._remove, chunk))

    def _remove(self, stored: StoredObject | str) -> None:
        assert isinstance(stored, StoredObject)
        with self._explained("deleted", self._url(stored.key)):
            self._delete(stored)

    def _retried(self, action: Callable[[], _Result]) -> _Result:
        """Runs requests that can be repeated, again after a transient error."""
        return retried(
            action,
            lambda error: 0.0 if self._is_transient(error) else None,
            lambda error: f"{self.service}: {self._message(error)}",
        )

    def _explained(self, what: str, url: str) -> AbstractContextManager[None]:
        return translating(self._reason, what, url, self._error)

    def _missing(self, name: str) -> OutputError:
        return OutputError(
            f"{self.path(name)} cannot be read: there is no such object. Check the name, or build "
            "the dataset again."
        )

    # -- requests, which raise the client's errors if they fail, also after retries

    @abstractmethod
    def _find(self, key: str) -> StoredObject | None:
        """See find_object."""

    @abstractmethod
    def _list(self, prefix: str, delimiter: str) -> Iterator[StoredObject | str]:
        """See list_objects."""

    @abstractmethod
    def _get(self, key: str, start: int = 0, stop: int = 0, version: str = "") -> bytes | None:
        """See fetch. Without a range the whole object, compared with its checksum."""

    @abstractmethod
    def _put(self, key: str, content: Any, size: int, checksum: str, replaced: str | None) -> bool:
        """Creates an object from an open file; False if there is one, or not the one to replace.

        The server compares the bytes with the checksum before the object appears.
        """

    @abstractmethod
    def _delete(self, stored: StoredObject) -> None:
        """Deletes an object in the version that was found. It is no error if that is gone."""

    @staticmethod
    @abstractmethod
    def _is_transient(error: Exception) -> bool:
        """Whether a request can be repeated: the store was away or busy, a connection broke."""

    @staticmethod
    @abstractmethod
    def _message(error: Exception) -> str:
        """An error's message on one line, without the final period."""

    @abstractmethod
    def _reason(self, error: Exception, what: str, url: str) -> str | None:
        """Why a request failed and what to do; None for an error that is not the client's."""
