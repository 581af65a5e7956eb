"""Where source files may be, by the scheme of their URL."""

import os
from functools import partial
from typing import BinaryIO

import fineshards.sources.places.hub_files  # noqa: F401 - before workers fork, which share its turns
from fineshards.plugin_registry import Plugins
from fineshards.shards.job.records import SourceFile
from fineshards.sources.places.fsspec_files import FsspecFiles
from fineshards.sources.places.place import Place
from fineshards.storage.ranges import RangeReader

_PLACES: Plugins[Place] = Plugins("places", makes=True)
_OTHERS = FsspecFiles()


def place_of(url: str) -> Place:
    """Returns the place of a URL: that of its scheme, or fsspec's."""
    return _PLACES.get(url.partition("://")[0], _OTHERS)


def open_raw(file: SourceFile, read_ahead: int) -> BinaryIO:
    """Opens a file as it is stored, for random access; makes no request yet.

    read_ahead: minimum bytes per request; 0 for exactly the bytes read.
    """
    read = partial(place_of(file.path).read, file)
    return RangeReader(file.size, read).buffered(read_ahead)


def is_url(path: str) -> bool:
    """Whether a path or pattern is not that of a local file."""
    return "://" in path


def without_scheme(path: str) -> str:
    """The local path that a URL of fsspec's names, such as local:///data; any other as it is."""
    scheme, separator, local = path.partition("://")
    return os.path.expanduser(local) if separator and scheme in ("file", "local") else path


def imports_libraries(pattern: str) -> bool:
    """Whether finding files by a pattern imports libraries that are large or start threads."""
    return is_url(pattern) and not place_of(pattern).is_light
