"""An output folder of objects, as on gs:// and s3://: what its kinds have in common.

An object appears complete, when its upload ends. Objects are created under the
condition that there is none of that name: if another attempt created the object first, its bytes
must be the same. The few that are replaced, such as the manifest when a dataset grows, are replaced
in the version that was found.
"""

from __future__ import annotations

import io
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

from fineshards.errors import OutputError, UsageError
from fineshards.storage.base import Entry, Storage, always
from fineshards.storage.checksums import checksum_from_base64, checksum_to_base64, file_checksum
from fineshards.storage.names import below, split_url
from fineshards.storage.ranges import RangeReader
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


class ExistsError(OutputError):
    """An object exists with other content than the one to be written."""


class Stored(Protocol):
    """One version of an object. name: in its bucket. size: in bytes. crc32c: in base64."""

    @property
    def name(self) -> str:
        """See Stored."""

    @property
    def size(self) -> int:
        """See Stored."""

    @property
    def crc32c(self) -> str | None:
        """See Stored."""


Found = TypeVar("Found", bound=Stored)


class ObjectStorage(Storage, Generic[Found]):
    """An output folder `scheme://bucket/prefix`.

    endpoint: the URL of the store, where a scheme has several.
    """

    endpoint: str | None = None

    on_disk = False

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self.bucket, prefix = split_url(self.root)
        if not self.bucket:
            scheme = root.partition("://")[0]
            raise UsageError(f"{root} has no bucket name. Give {scheme}://bucket/folder.")
        self._prefix = f"{prefix}/" if prefix else ""

    def path(self, name: str) -> str:
        return f"{self.root}/{below(name, self.root)}"

    def key(self, name: str) -> str:
        """The full name of an object."""
        return self._prefix + below(name, self.root)

    def size(self, name: str) -> int | None:
        found = self.find(name)
        return None if found is None else found.size

    def matches(self, name: str, size: int, checksum: str) -> bool:
        """See Storage. A checksum that the store does not say is taken for right."""
        found = self.find(name)
        known = found is not None and found.crc32c is not None
        return found is not None and found.size == size and (found.crc32c == checksum or not known)

    def entries(self, folder: str) -> Iterator[Entry]:
        return self._entries(folder, "")

    def entries_by_beginning(self, folder: str, beginnings: Sequence[str]) -> Iterator[Entry]:
        if len(beginnings) == 1:
            yield from self._entries(folder, beginnings[0])
            return
        with ThreadPoolExecutor(_LIST_THREADS) as pool:
            waiting = iter(beginnings)
            # Not all at once, because nothing is taken from a listing until its turn comes.
            while chunk := list(islice(waiting, 2 * _LIST_THREADS)):
                for found in pool.map(lambda each: list(self._entries(folder, each)), chunk):
                    yield from found

    def _entries(self, folder: str, beginning: str) -> Iterator[Entry]:
        with self._explained("listed", self.path(folder)):
            for entry in self._list_entries((f"{folder}/" if folder else "") + beginning):
                if not entry.name.endswith("/"):
                    yield entry

    def open(self, name: str, read_ahead: int = 1 << 16) -> BinaryIO:
        return self.open_ranges(name).buffered(read_ahead)

    def open_ranges(self, name: str) -> RangeReader:
        """See Storage. Takes one request."""
        return self.reader(self.existing(name))

    def reader(self, found: Found) -> RangeReader:
        """Reads an object in the version that was found."""
        return RangeReader(found.size, partial(self.download, found))

    def read(self, name: str) -> bytes:
        """See Storage. Takes one request."""
        content = self.read_if_there(name)
        if content is None:
            raise self._missing(name)
        return content

    @contextmanager
    def _writing(self, name: str, durable: bool, replaced: str | None) -> Iterator[BinaryIO]:
        with temporary_room(), tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as content:
            yield content  # type: ignore[misc]
            self.upload(name, content, replaced)

    def claim(self, name: str, content: bytes) -> bool:
        try:
            self.write(name, content)
        except ExistsError:
            return False
        return True

    def write(self, name: str, content: bytes, durable: bool = True) -> int:
        """See Storage. The checksum is the one that the server has confirmed."""
        return checksum_from_base64(self.upload(name, io.BytesIO(content)).crc32c or "")

    def delete(self, name: str, check: Callable[[], object] = always) -> None:
        found = self.find(name)
        check()
        if found is not None:
            self.remove(found)

    def delete_folder(self, name: str, check: Callable[[], object] = always) -> None:
        self.delete_prefix(f"{name}/", check)

    def delete_prefix(self, prefix: str, check: Callable[[], object] = always) -> int:
        deleted = 0
        with (
            self._explained("deleted", f"{self.root}/{prefix}"),
            ThreadPoolExecutor(_DELETE_THREADS) as pool,
        ):
            found = self._list(prefix)
            # There may be millions of objects, and the pool would queue them all.
            while chunk := list(islice(found, _DELETE_QUEUE)):
                check()
                deleted += len(list(pool.map(self.remove, chunk)))
        return deleted

    def existing(self, name: str) -> Found:
        """An object with its metadata; raises OutputError if there is none."""
        found = self.find(name)
        if found is None:
            raise self._missing(name)
        return found

    def upload(self, name: str, content: Any, over: str | None = None) -> Found:
        """Creates an object from an open file; returns it with its metadata.

        over: the version that it replaces, if any. Raises OutputError if the object exists with
        other bytes.
        """
        content.seek(0)
        checksum = checksum_to_base64(file_checksum(content))
        size = content.tell()
        with self._explained("written", self.path(name)):
            made = self._put(name, content, size, checksum, over)
            return self.already_there(name, size, checksum) if made is None else made

    def already_there(self, name: str, size: int, checksum: str) -> Found:
        """The existing object because of which a request to create it was refused.

        Another attempt created it, or this one did and the response was lost. In both cases it has
        the same bytes. Raises OutputError if it has other bytes, or if there is none.
        """
        found = self._look_up(name)
        if found is None:
            raise OutputError(
                f"{self.path(name)} was deleted while it was written. Run again when no one else "
                "changes the output folder."
            )
        self.check_same(found, size, checksum)
        return found

    def check_same(self, found: Found, size: int, checksum: str) -> None:
        """Raises OutputError unless an object that was created or found has this content."""
        if (found.size, found.crc32c) != (size, checksum):
            raise ExistsError(
                f"{self.path(self.name_of(found))} already exists with other content: it has "
                f"{_content(found.size, found.crc32c)}, this job has {_content(size, checksum)}. "
                "If another job writes to this folder, choose another --output; otherwise delete "
                "the folder, or start again with --overwrite."
            )

    def name_of(self, found: Found) -> str:
        """The name of an object, relative to the output folder."""
        return found.name.removeprefix(self._prefix)

    # -- what differs

    @abstractmethod
    def find(self, name: str) -> Found | None:
        """An object with its metadata, or None if there is none."""

    @abstractmethod
    def download(self, found: Found, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)` of an object in the version that was found. Threads share it."""

    @abstractmethod
    def remove(self, found: Found, seconds: float | None = None) -> None:
        """Deletes an object in the version that was found or written.

        It is no error if that version is gone. seconds: for how long to retry; None for the
        default.
        """

    @abstractmethod
    def _put(
        self, name: str, content: Any, size: int, checksum: str, over: str | None
    ) -> Found | None:
        """Creates an object from an open file; None if there is one, or not the one to replace."""

    @abstractmethod
    def _look_up(self, name: str) -> Found | None:
        """As `find`, but the server may have left out metadata."""

    @abstractmethod
    def _list(self, prefix: str) -> Iterator[Found]:
        """All objects whose names, relative to the output folder, start with a prefix."""

    @abstractmethod
    def _list_entries(self, prefix: str) -> Iterator[Entry]:
        """As `_list`, but as entries."""

    @abstractmethod
    def _explained(self, what: str, url: str) -> AbstractContextManager[None]:
        """Raises the client's errors in the body as OutputError."""

    def _missing(self, name: str) -> OutputError:
        return OutputError(
            f"{self.path(name)} cannot be read: there is no such object. Check the name, or build "
            "the dataset again."
        )


def _content(size: int | None, checksum: str | None) -> str:
    """Size and checksum in words, as far as the server has said them."""
    length = "an unknown number of bytes" if size is None else f"{size} bytes"
    return f"{length} with {'unknown crc32c' if checksum is None else f'crc32c {checksum}'}"
