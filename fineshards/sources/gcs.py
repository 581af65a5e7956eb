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
_FIELDS = "items(name,size,generation,contentEncoding),nextPageToken"


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object as listed. encoding: its Content-Encoding, empty for none."""

    path: str
    size: int
    identity: str
    encoding: str


def find_objects(pattern: str) -> list[FoundObject]:
    """Returns the objects that match `gs://bucket/pattern`, sorted by name, from one listing.

    Patterns work as for local files. Raises UsageError for a URL without a bucket, and InputError
    if the bucket cannot be listed.
    """
    bucket, wanted = split_url(pattern)
    if not bucket or _WILDCARDS.search(bucket):
        raise UsageError(
            f"--input {pattern}: does not name a bucket; expected gs://bucket/folder/*.parquet, "
            "without wildcards in the bucket name."
        )
    prefix = _WILDCARDS.split(wanted, maxsplit=1)[0]
    rest = wanted.removeprefix(prefix)
    # Deeper folders are not listed if nothing in them can match.
    delimiter = None if "/" in rest or "**" in rest else "/"
    parts = wanted.split("/")
    with explained("listed", pattern, InputError):
        listing = bucket_of(pattern).list_blobs(
            prefix=prefix, delimiter=delimiter, fields=_FIELDS, retry=retry()
        )
        blobs = [
            blob
            for blob in listing
            # A name that ends with a slash is a folder created by hand.
            if not blob.name.endswith("/")
            and (blob.name == wanted or _matches(blob.name.split("/"), parts))
        ]
    # A name may contain brackets, which are special in a pattern.
    blobs = [blob for blob in blobs if _matches(blob.name.split("/"), parts)] or blobs
    return [
        FoundObject(
            path=f"gs://{bucket}/{blob.name}",
            size=blob.size,
            identity=f"{_GENERATION}{blob.generation}",
            encoding=blob.content_encoding or "",
        )
        for blob in sorted(blobs, key=lambda blob: blob.name)
    ]


def _matches(name: list[str], pattern: list[str]) -> bool:
    """Whether a name matches, as a path does in `glob.glob(pattern, recursive=True)`.

    Both are split at slashes. A part that begins with a dot only matches a pattern with that dot.
    """
    if pattern == ["**"]:
        return bool(name) and not any(part.startswith(".") for part in name)
    if not name or not pattern:
        return not name and not pattern
    if pattern[0] == "**" and _matches(name, pattern[1:]):
        return True
    if name[0].startswith(".") and not pattern[0].startswith("."):
        return False
    if pattern[0] == "**":
        return _matches(name[1:], pattern)
    return fnmatch.fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])


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
