"""Where source files may be, by the scheme of their URL. Each kind of place is a module."""

from __future__ import annotations

import os
from typing import BinaryIO, Protocol

from fineshards.shards.job.records import SourceFile
from fineshards.sources.patterns import Matches
from fineshards.sources.places import fsspec_files, http_files, hub_files, object_files


class Place(Protocol):
    """What the module of a place has. Its libraries are imported when a file is read from it."""

    def find(self, pattern: str, /) -> Matches:
        """Returns the files that a URL, pattern or folder means, as they are now."""
        ...

    def check(self, file: SourceFile, /) -> None:
        """Raises InputError if a file has changed since it was found."""
        ...

    def open_raw(self, file: SourceFile, read_ahead: int, /) -> BinaryIO:
        """Opens a file as it is stored, for random access.

        read_ahead: minimum bytes per request; 0 for exactly the bytes read.
        """
        ...


_PLACES: dict[str, Place] = {
    "gs": object_files,
    "s3": object_files,
    "hf": hub_files,
    "http": http_files,
    "https": http_files,
}


def is_url(path: str) -> bool:
    """Whether a path or pattern is not that of a local file."""
    return "://" in path


def without_scheme(path: str) -> str:
    """The local path that a URL of fsspec's names, such as local:///data; any other as it is."""
    scheme, separator, local = path.partition("://")
    return os.path.expanduser(local) if separator and scheme in ("file", "local") else path


def place_of(url: str) -> Place:
    """Returns the module for a URL: that of its scheme, or fsspec's."""
    return _PLACES.get(url.partition("://")[0], fsspec_files)


def imports_libraries(pattern: str) -> bool:
    """Whether finding files by a pattern imports libraries that are large or start threads."""
    return is_url(pattern) and not pattern.startswith("gs://")


def never_changes(file: SourceFile) -> bool:
    """Whether a file cannot be another one than it was: it is of a commit."""
    return file.path.startswith("hf://")


def is_content_hash(file: SourceFile) -> bool:
    """Whether a file's identity is a hash of its content, as on the hub and on S3."""
    return file.path.startswith(("hf://", "s3://"))
