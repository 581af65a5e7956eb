"""An output folder on a local disk.

A file is written under a temporary name in `checkpoints/`, flushed to the disk, then renamed. So a
file that exists is complete, and `test/` and `train/` never show an unfinished one. Files that are
not durable are not flushed, so a power cut may damage them.
"""

import errno
import filecmp
import mmap
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, BinaryIO

from fineshards.errors import OutputError
from fineshards.storage.base import TEMPORARY, Entry, Storage, always, below
from fineshards.storage.retries import translating

# What Linux answers where a file system lacks what is asked of it; to a link it is EPERM.
_NOT_SUPPORTED = {errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}


class LocalStorage(Storage):
    """An output folder on a local disk."""

    on_disk = True

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def path(self, name: str) -> str:
        return os.path.join(self.root, below(name, self.root))

    def scratch_folder(self) -> str:
        self._refuse_linked_folder(f"{TEMPORARY}/x", "written")
        return self.path(TEMPORARY)

    def size(self, name: str) -> int | None:
        state = self._state(name)
        return None if state is None else state.st_size

    def version(self, name: str) -> str | None:
        state = self._state(name)
        return None if state is None else f"{state.st_ino}-{state.st_mtime_ns}"

    def entries(self, folder: str) -> Iterator[Entry]:
        for name, is_folder in self._walk(folder):
            state = None if is_folder else self._state(name)
            if state is not None and stat.S_ISREG(state.st_mode):
                yield Entry(name, state.st_size, state.st_mtime)

    def others(self, folder: str) -> Iterator[tuple[str, str]]:
        for name, is_folder in self._walk(folder):
            kind = "a folder" if is_folder else self._kind(name)
            if kind is not None:
                yield name, kind

    def _walk(self, folder: str) -> Iterator[tuple[str, bool]]:
        """The names of everything below a folder, and whether each is a folder."""

        def refuse(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                with translating(_reason, "read", os.path.normpath(error.filename)):
                    raise error

        for parent, folders, files in os.walk(self.path(folder), onerror=refuse):
            place = os.path.relpath(parent, self.root).replace(os.sep, "/")
            prefix = "" if place == "." else f"{place}/"
            yield from ((prefix + name, True) for name in folders)
            yield from ((prefix + name, False) for name in files)

    def names(self, prefix: str) -> Iterator[str]:
        folder, separator, beginning = prefix.rpartition("/")
        children: list[str] = []
        with self._explained("read", folder), suppress(FileNotFoundError, NotADirectoryError):
            children = os.listdir(self.path(folder))
        for name in children:
            if name.startswith(beginning):
                full = f"{folder}{separator}{name}"
                yield f"{full}/" if os.path.isdir(self.path(full)) else full

    def open(self, name: str, read_ahead: int = 0) -> BinaryIO:
        return self._open(name)

    def _open(self, name: str, buffering: int = -1) -> BinaryIO:
        # Looked at first, because opening a named pipe waits for a writer.
        kind = self._kind(name)
        if kind is not None:
            raise OutputError(
                f"{self.path(name)} cannot be read: it is {kind}, not a file. Put the file back, "
                "or build the dataset again."
            )
        with self._explained("read", name):
            return open(self.path(name), "rb", buffering)

    def open_mapped(self, name: str) -> mmap.mmap | bytes:
        with self._open(name, buffering=0) as file:  # a buffer would take half of the time
            if os.fstat(file.fileno()).st_size == 0:
                return b""  # The system refuses to map an empty file.
            with self._explained("mapped into memory", name):
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def claim(self, name: str, content: bytes) -> bool:
        target = self.path(name)
        with self._temporary(name) as temporary:
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, target)  # unlike a rename, this never replaces a file
            except FileExistsError:
                pass
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
                raise OutputError(
                    f"{target} cannot be written: its file system has no hard links, which keep "
                    "two commands from overwriting each other. Choose a folder on another disk; a "
                    "dataset can be copied there."
                ) from error
            _sync_folder(os.path.dirname(target))
        return self.read(name) == content

    @contextmanager
    def create(self, name: str, durable: bool = True, old: str | None = None) -> Iterator[BinaryIO]:
        target = self.path(name)
        with self._temporary(name) as temporary:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            if old is not None and self.version(name) != old:
                self._check_same(name, temporary)
            os.replace(temporary, target)
            if durable:
                _sync_folder(os.path.dirname(target))

    @contextmanager
    def _temporary(self, name: str) -> Iterator[str]:
        """A path to write a file at first, which is deleted; turns OSError into OutputError."""
        self._refuse_linked_folder(name, "written")
        temporary = self.path(f"{TEMPORARY}/{os.path.basename(name)}.{uuid.uuid4().hex}")
        try:
            with self._explained("written", name):
                os.makedirs(self.scratch_folder(), exist_ok=True)
                os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
                yield temporary
        finally:
            # What stays of an unfinished file is never taken for one.
            with suppress(OSError):
                os.unlink(temporary)

    @contextmanager
    def open_at(self, name: str, start: int, new: bool = False) -> Iterator[BinaryIO]:
        self._refuse_linked_folder(name, "written")
        path, flags = self.path(name), os.O_WRONLY | (os.O_CREAT if new else 0)
        with self._explained("written", name):
            if new:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            with os.fdopen(os.open(path, flags, 0o666), "wb") as file:  # which cuts nothing off
                file.seek(start)
                yield file

    def publish(self, name: str, target: str, size: int) -> None:
        self._refuse_linked_folder(target, "written")
        path = self.path(target)
        with self._explained("written", target):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(self.path(name), "r+b") as file:
                if os.fstat(file.fileno()).st_size < size:
                    raise OutputError(
                        f"{self.path(name)} has fewer than {size} bytes: someone changed the "
                        "checkpoints folder. Run the same command again to resume."
                    )
                file.truncate(size)
                os.fsync(file.fileno())
            os.replace(self.path(name), path)
            _sync_folder(os.path.dirname(path))

    def _check_same(self, name: str, temporary: str) -> None:
        """Raises OutputError unless another attempt has written the same file by now."""
        try:
            same = filecmp.cmp(temporary, self.path(name), shallow=False)
        except FileNotFoundError:
            same = False
        if not same:
            raise OutputError(
                f"{self.path(name)} was changed while a file was made to replace it. Run again "
                "when no one else writes there."
            )

    def delete(self, name: str, check: Callable[[], object] = always) -> None:
        """See Storage. A link is deleted, and never what it leads to.

        What another process puts there after the check is deleted too: a disk has no versions.
        """
        check()
        self._refuse_linked_folder(name, "deleted")
        with self._explained("deleted", name), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self.path(name))

    def delete_folder(self, name: str, check: Callable[[], object] = always) -> None:
        """See Storage. The check is called once."""
        check()
        self._refuse_linked_folder(name, "deleted")

        def ignore_missing(_function: object, _path: str, info: Any) -> None:
            if not isinstance(info[1], FileNotFoundError | NotADirectoryError):
                raise info[1]

        with self._explained("deleted", name):
            shutil.rmtree(self.path(name), onerror=ignore_missing)

    def _refuse_linked_folder(self, name: str, action: str) -> None:
        """Raises OutputError for a name whose folder is a link that leads out of this one."""
        folder = os.path.realpath(os.path.dirname(self.path(name)))
        root = os.path.realpath(self.root)
        if os.path.commonpath([folder, root]) != root:
            raise OutputError(
                f"{self.path(name)} is not {action}, because a link leads to {folder}, out of "
                f"{self.root}. Remove the link, or put a folder in its place, then run again."
            )

    def _kind(self, name: str) -> str | None:
        """What has this name, if it is not a file; None for a file, and if there is nothing."""
        state = self._state(name)
        if state is None:
            return "a link that leads nowhere" if os.path.islink(self.path(name)) else None
        if stat.S_ISREG(state.st_mode):
            return None
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
        return kinds.get(stat.S_IFMT(state.st_mode), "a device")

    def _state(self, name: str) -> os.stat_result | None:
        """The state of a file; None if there is none, also where a link leads nowhere."""
        path = self.path(name)
        with translating(_reason, "read", path):
            try:
                return os.stat(path)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
        return None

    def _explained(self, action: str, name: str) -> AbstractContextManager[None]:
        return translating(_reason, action, self.path(name))


def _reason(error: Exception, what: str, _path: str) -> str | None:
    """Why an operation failed and what to do; None for an error that is not the system's."""
    if not isinstance(error, OSError):
        return None
    of_process = {
        errno.EMFILE: "Close files and connections, or raise the limit (ulimit -n).",
        errno.ENFILE: "Close files on this machine, or raise the limit (sysctl fs.file-max).",
        errno.ENOMEM: "Free memory, or allow more mappings (sysctl vm.max_map_count).",
    }
    advice = {
        "read": "Check that it exists and that you may read it.",
        "written": "Check that the folder exists, that you may write to it and that the disk "
        "has space, then run again.",
        "deleted": "Check that you may write to its folder, then run again.",
        "mapped into memory": "Copy the dataset to a disk whose files can be mapped.",
    }
    return f"{error.strerror or error}. {of_process.get(error.errno or 0) or advice[what]}"


def _sync_folder(path: str) -> None:
    # A rename reaches the disk with its folder; without this a power cut could undo it.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
