"""Input files on Google Cloud Storage: objects found by pattern, each read at one generation.

An object is immutable: writing it again creates another generation. A job records the generation
number and sends it with every request, so bytes of two versions never mix.
https://cloud.google.com/storage/docs/object-versioning
"""

from __future__ import annotations

import fnmatch
import io
import re
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from fineshards.errors import InputError, UsageError
from fineshards.shards.records import SourceFile
from fineshards.storage.gcs_objects import ObjectReader, bucket_of, explained, retry, split_url

_WILDCARDS = re.compile(r"[*?[]")
_GENERATION = "generation:"
# The fields requested of a listing. All fields would be ten times as much.
_FIELDS = "items(name,size,generation,contentEncoding),prefixes,nextPageToken"


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object as listed.

    name: its path below the listed folder. encoding: its Content-Encoding, empty for none.
    """

    path: str
    name: str
    size: int
    identity: str
    encoding: str


def find_objects(pattern: str) -> tuple[list[FoundObject], list[FoundObject]]:
    """Returns the objects that match `gs://bucket/pattern`, sorted by name, from one listing.

    Patterns work as for local files. Also returns the objects that do not match, but lie below a
    folder that does. Raises UsageError for a URL without a bucket, and InputError if the bucket
    cannot be listed.
    """
    bucket, wanted = _split(pattern)
    prefix = _WILDCARDS.split(wanted, maxsplit=1)[0]
    rest = wanted.removeprefix(prefix)
    # Deeper folders are not listed if nothing in them can match.
    delimiter = None if "/" in rest or "**" in rest else "/"
    parts = wanted.split("/")
    listed, folders = _list(pattern, prefix, delimiter)
    matching = [blob for blob in listed if matches(blob.name.split("/"), parts)]
    # A name may contain brackets, which are special in a pattern.
    matching = matching or [blob for blob in listed if blob.name == wanted]
    names = {blob.name for blob in matching}
    below = []
    for blob in listed:
        folder = None if blob.name in names else _matching_folder(blob.name, parts)
        if folder is not None:
            below.append(_found(bucket, folder, blob))
    for folder in sorted(folders) if rest else ():
        if matches(folder.rstrip("/").split("/"), parts):
            below += find_below(f"gs://{bucket}/{folder}")
    return [_found(bucket, "", blob) for blob in matching], below


def _matching_folder(name: str, pattern: list[str]) -> str | None:
    """The first of the folders that hold an object which matches a pattern, with a slash."""
    parts = name.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        if matches(parts[:depth], pattern):
            return "/".join(parts[:depth]) + "/"
    return None


def find_below(folder: str) -> list[FoundObject]:
    """Returns all objects below `gs://bucket/folder`, sorted by name, from one listing."""
    bucket, name = _split(folder)
    prefix = f"{name.rstrip('/')}/" if name else ""
    return [_found(bucket, prefix, blob) for blob in _list(folder, prefix, None)[0]]


def _split(url: str) -> tuple[str, str]:
    bucket, name = split_url(url)
    if not bucket or _WILDCARDS.search(bucket):
        raise UsageError(
            f"--input {url}: does not name a bucket; expected gs://bucket/folder/*.parquet, "
            "without wildcards in the bucket name."
        )
    return bucket, name


def _list(url: str, prefix: str, delimiter: str | None) -> tuple[list[Any], set[str]]:
    """The objects with a prefix, sorted by name, and the folders that were not listed."""
    with explained("listed", url, InputError):
        listing = bucket_of(url).list_blobs(
            prefix=prefix, delimiter=delimiter, fields=_FIELDS, retry=retry()
        )
        # A name that ends with a slash is a folder created by hand.
        blobs = [blob for blob in listing if not blob.name.endswith("/")]
    return sorted(blobs, key=lambda blob: blob.name), set(listing.prefixes)


def _found(bucket: str, prefix: str, blob: Any) -> FoundObject:
    return FoundObject(
        path=f"gs://{bucket}/{blob.name}",
        name=blob.name.removeprefix(prefix),
        size=blob.size,
        identity=f"{_GENERATION}{blob.generation}",
        encoding=blob.content_encoding or "",
    )


def matches(name: list[str], pattern: list[str]) -> bool:
    """Whether a name matches, as a path does in `glob.glob(pattern, recursive=True)`.

    Both are split at slashes. A part that begins with a dot only matches a pattern with that dot.
    """
    if pattern == ["**"]:
        return bool(name) and not any(part.startswith(".") for part in name)
    if not name or not pattern:
        return not name and not pattern
    if pattern[0] == "**" and matches(name, pattern[1:]):
        return True
    if name[0].startswith(".") and not pattern[0].startswith("."):
        return False
    if pattern[0] == "**":
        return matches(name[1:], pattern)
    return fnmatch.fnmatchcase(name[0], pattern[0]) and matches(name[1:], pattern[1:])


def check_generation(file: SourceFile) -> None:
    """Raises InputError if the object was deleted or replaced since launch. Makes one request."""
    with explained("read", file.path, InputError):
        blob = bucket_of(file.path).get_blob(split_url(file.path)[1], retry=retry())
    if blob is None:
        raise InputError(
            f"{file.path} was deleted since the job was launched: it was {file.identity} of "
            f"{file.size} bytes. Start over with --overwrite."
        )
    if blob.generation != _generation(file):
        raise InputError(
            f"{file.path} changed since the job was launched: it was {file.identity} of "
            f"{file.size} bytes, now it is {_GENERATION}{blob.generation} of {blob.size} bytes. "
            "Start over with --overwrite. Writing an object again creates another generation, "
            "even with the same bytes."
        )


def open_object(file: SourceFile, read_ahead: int) -> BinaryIO:
    """Opens the generation of the object that the job was launched with. Makes no request yet.

    read_ahead: minimum bytes per request; 0 for exactly the bytes read.
    """
    with explained("read", file.path, InputError):
        reader = _PinnedReader(file)
    return cast(BinaryIO, io.BufferedReader(reader, read_ahead) if read_ahead else reader)


class _PinnedReader(ObjectReader):
    """Reads the generation of an object that a job was launched with."""

    def __init__(self, file: SourceFile) -> None:
        name = split_url(file.path)[1]
        blob = bucket_of(file.path).blob(name, generation=_generation(file))
        super().__init__(blob, file.size, InputError)
        self._file = file

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase. Makes one request."""
        try:
            return super().readinto(buffer)
        except InputError as error:
            from google.api_core.exceptions import NotFound, PreconditionFailed

            if isinstance(error.__cause__, NotFound | PreconditionFailed):
                check_generation(self._file)
            raise


def _generation(file: SourceFile) -> int:
    return int(file.identity.removeprefix(_GENERATION))
