"""Lists and models that decide, read from local folders or gs://, and pinned by their SHA-256.

`pin` looks at a file now, and what it finds becomes part of the job. `pinned` returns what `pin`
found last in this process, so that it costs nothing per record batch. `read` and `local_copy` give
the content that was pinned or fail. What is made of a file is cached by its `Pinned`.
"""

import fnmatch
import glob
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import IO, NamedTuple

from fineshards.errors import InputError, OutputError
from fineshards.extras import require
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage
from fineshards.storage.temporary import scratch_folder

_READ_BYTES = 1 << 20
_WILDCARDS = re.compile(r"[*?[]")


class Pinned(NamedTuple):
    """A file with its SHA-256 in hexadecimal, as it was found."""

    path: str
    sha256: str


_pinned: dict[str, Pinned] = {}
_matched: dict[str, tuple[Pinned, ...]] = {}


def pin(path: str) -> Pinned:
    """Returns the file as it is now; raises InputError if it cannot be read."""
    storage, name = _place(path)
    with _explained(path):
        version = storage.version(name)
    if version is None:
        raise InputError(f"{path}: there is no such file. Correct the path, or put the file there.")
    file = _pinned[path] = Pinned(path, _sha256(path, version))
    return file


def pinned(path: str) -> Pinned:
    """Returns the file as this process pinned it last."""
    return _pinned.get(path) or pin(path)


def pin_pattern(pattern: str) -> tuple[Pinned, ...]:
    """Returns the files that match a pattern now, sorted by path.

    In a pattern, `*` and `?` match within a name, and local patterns may have `**` for any folders.
    Raises InputError if there are none.
    """
    if not _WILDCARDS.search(pattern):
        paths = [pattern]
    elif "://" in pattern:
        paths = _listed(pattern)
    else:
        paths = glob.glob(os.path.expanduser(pattern), recursive=True)
    files = tuple(pin(path) for path in sorted(paths) if not os.path.isdir(path))
    if not files:
        raise InputError(f"{pattern}: no file matches. Correct the pattern.")
    _matched[pattern] = files
    return files


def pinned_pattern(pattern: str) -> tuple[Pinned, ...]:
    """Returns the files of a pattern as this process pinned them last."""
    return _matched.get(pattern) or pin_pattern(pattern)


def read(file: Pinned) -> bytes:
    """The content of a pinned file; raises InputError if it is another one by now."""
    storage, name = _place(file.path)
    with _explained(file.path), storage.open(name, _READ_BYTES) as opened:
        content = opened.read()
    _check(file, hashlib.sha256(content).hexdigest())
    return content


@contextmanager
def local_copy(file: Pinned) -> Iterator[str]:
    """The path of a local file with the content of a pinned one, while the body runs.

    For libraries that read from a path alone. A local file is used itself; a copy of another one is
    deleted afterwards.
    """
    path = os.path.expanduser(file.path)
    with ExitStack() as stack:
        with _explained(file.path):
            if "://" in file.path:
                storage, name = _place(file.path)
                path = os.path.join(stack.enter_context(scratch_folder()), os.path.basename(name))
                with storage.open(name, _READ_BYTES) as opened, open(path, "wb") as target:
                    shutil.copyfileobj(opened, target, _READ_BYTES)
            with open(path, "rb") as whole:
                _check(file, _digest(whole))
        yield path


def package_file(package: str, library: str, extra: str, *parts: str) -> str:
    """The path of a file inside an installed package, which is not imported.

    Raises MissingLibraryError, which names the library and the extra, if there is none.
    """
    require(package, library, extra)
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return os.path.join(spec.submodule_search_locations[0], *parts)


# One file has one entry per version; the job of a person who edits a list has some.
@lru_cache(maxsize=64)
def _sha256(path: str, version: str) -> str:
    storage, name = _place(path)
    with _explained(path), storage.open(name, _READ_BYTES) as opened:
        return _digest(opened)


def _digest(opened: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while content := opened.read(_READ_BYTES):
        digest.update(content)
    return digest.hexdigest()


def _check(file: Pinned, sha256: str) -> None:
    if sha256 != file.sha256:
        raise InputError(
            f"{file.path} has sha256 {sha256}, expected {file.sha256}: it changed since the job "
            "was launched. Restore the file, or start over with --overwrite."
        )


def _listed(pattern: str) -> list[str]:
    """The objects that match a pattern whose wildcards match within a name."""
    folder = _WILDCARDS.split(pattern, maxsplit=1)[0].rpartition("/")[0]
    storage = open_storage(folder)
    parts = [re.compile(fnmatch.translate(part)) for part in pattern.split("/")]
    with _explained(pattern):
        paths = [storage.path(entry.name) for entry in storage.entries("")]
    split = {path: path.split("/") for path in paths}
    return [
        path
        for path, names in split.items()
        if len(names) == len(parts)
        and all(part.match(name) for part, name in zip(parts, names, strict=True))
    ]


def _place(path: str) -> tuple[Storage, str]:
    folder, separator, name = path.rpartition("/")
    return open_storage(folder or separator or "."), name


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except OutputError as error:  # which names the file
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
