"""The output folder as the job sees it: named files that appear whole or not at all.

Names are relative, with `/` between parts. A file is written under a temporary name inside
`checkpoints/`, flushed to the disk and then renamed, so a name that is there is complete, and the
folders `test/` and `train/` never hold anything but shards: readers that list a folder and load
whatever is in it (the seed's does) stay right while the job runs. Two attempts may write one name
at the same time; both succeed, and as the job's bytes depend on the name alone, so does the result.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from shards.errors import OutputError, UsageError

TEMPORARY = "checkpoints/unfinished"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in storage: name, size in bytes, time of last change in seconds since the epoch."""

    name: str
    size: int
    modified: float


class Storage:
    """A local output folder. Cheap to make and to pickle; opens nothing until it is used."""

    def __init__(self, root: str) -> None:
        if "://" in root:
            scheme = root.split("://")[0]
            raise UsageError(f"{root}: {scheme}:// is not supported; give a local folder.")
        self.root = os.path.abspath(root)

    def path(self, name: str) -> str:
        """The local path of a name."""
        return os.path.join(self.root, name)

    def size(self, name: str) -> int | None:
        """Size in bytes, or None when there is no such file."""
        try:
            return os.stat(self.path(name)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._cannot("read", name, error) from error

    def entries(self, folder: str) -> Iterator[Entry]:
        """All files below a folder, at any depth, in no particular order; none if it is missing.

        Files that vanish while the folder is read (another process may be at work) are left out.
        """
        for parent, _, files in os.walk(self.path(folder)):
            for file in files:
                path = os.path.join(parent, file)
                try:
                    state = os.stat(path)
                except FileNotFoundError:
                    continue
                name = os.path.relpath(path, self.root).replace(os.sep, "/")
                yield Entry(name, state.st_size, state.st_mtime)

    def strays(self, folders: tuple[str, ...]) -> Iterator[str]:
        """What a reader that lists `folders` by prefix would stumble over, apart from their files.

        That is what lies beside them under a name that begins like theirs, and folders in them.
        """
        for name in self._names(""):
            if name.startswith(folders) and name not in folders:
                yield name
        for folder in folders:
            for name in self._names(folder):
                if not os.path.isfile(self.path(f"{folder}/{name}")):
                    yield f"{folder}/{name}"

    def _names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self.path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def open(self, name: str) -> BinaryIO:
        """Opens a file for reading; raises OutputError when it is not there."""
        try:
            return open(self.path(name), "rb")
        except OSError as error:
            raise self._cannot("read", name, error) from error

    def read(self, name: str) -> bytes:
        """The content of a small file; raises OutputError when it is not there."""
        with self.open(name) as file:
            return file.read()

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """A file to write; it appears under `name` when the block ends without an exception."""
        target = self.path(name)
        temporary = None
        try:
            os.makedirs(self.path(TEMPORARY), exist_ok=True)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            temporary = self.path(f"{TEMPORARY}/{os.path.basename(name)}.{uuid.uuid4().hex}")
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
            _sync_folder(os.path.dirname(target))
        except OSError as error:
            raise self._cannot("written", name, error) from error
        finally:
            if temporary:
                Path(temporary).unlink(missing_ok=True)

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file."""
        with self.create(name) as file:
            file.write(content)

    def delete(self, name: str) -> None:
        """Removes a file; one that is already gone is no error."""
        try:
            os.unlink(self.path(name))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise self._cannot("deleted", name, error) from error

    def delete_folder(self, name: str) -> None:
        """Removes a folder and all below it; one that is already gone is no error."""

        def skip_what_is_gone(_function: object, _path: str, info: Any) -> None:
            if not isinstance(info[1], FileNotFoundError | NotADirectoryError):
                raise info[1]

        try:
            shutil.rmtree(self.path(name), onerror=skip_what_is_gone)
        except OSError as error:
            raise self._cannot("deleted", name, error) from error

    def _cannot(self, what: str, name: str, error: OSError) -> OutputError:
        advice = {
            "read": "Check that it exists and is yours to read.",
            "written": "Check that the folder exists, is yours to write and has space; "
            "then run again.",
            "deleted": "Check that its folder is yours to write; then run again.",
        }
        return OutputError(
            f"{self.path(name)} cannot be {what}: {error.strerror or error}. {advice[what]}"
        )


def _sync_folder(path: str) -> None:
    # A rename is on the disk only when the folder is: without this a power cut could undo it.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
