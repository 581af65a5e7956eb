"""Input files on Google Cloud Storage: objects found by pattern, each read at one generation.

An object is immutable: writing it again creates another generation. A job records the generation
number and sends it with every request, so bytes of two versions never mix.
https://cloud.google.com/storage/docs/object-versioning
"""

from __future__ import annotations

from functools import partial
from typing import Any, BinaryIO

from fineshards.errors import InputError
from fineshards.shards.job.records import SourceFile
from fineshards.sources import patterns
from fineshards.sources.patterns import FoundFile
from fineshards.storage.gcs_objects import bucket_of, download_range, explained, retry, with_size
from fineshards.storage.names import split_url
from fineshards.storage.ranges import RangeReader

_GENERATION = "generation:"
# The fields requested of a listing. All fields would be ten times as much.
_FIELDS = "items(name,size,crc32c,generation,contentEncoding),prefixes,nextPageToken"


def find(pattern: str) -> patterns.Matches:
    """Returns the objects that `gs://bucket/pattern` means, from one listing if it matches.

    Raises UsageError for a URL without a bucket, and InputError if the bucket cannot be listed.
    """
    root, wanted = patterns.split_root(pattern)
    return patterns.find_matches(wanted, partial(_list, pattern, root))


def _list(url: str, root: str, prefix: str, deep: bool) -> tuple[list[FoundFile], set[str]]:
    with explained("listed", url, InputError):
        listing = bucket_of(url).list_blobs(
            prefix=prefix, delimiter=None if deep else "/", fields=_FIELDS, retry=retry()
        )
        # A name that ends with a slash is a folder created by hand.
        found = [_found(root, blob) for blob in listing if not blob.name.endswith("/")]
    return found, set(listing.prefixes)


def _found(root: str, blob: Any) -> FoundFile:
    url, size = f"{root}/{blob.name}", with_size(blob).size
    if size is None:
        raise InputError(f"{url} cannot be read: the listing leaves out its size. Run again.")
    identity, encoding = f"{_GENERATION}{blob.generation}", blob.content_encoding or ""
    return FoundFile(url, blob.name, size, identity, encoding)


def check(file: SourceFile) -> None:
    """Raises InputError if the object was deleted or replaced since launch. Makes one request."""
    with explained("read", file.path, InputError):
        blob = bucket_of(file.path).get_blob(split_url(file.path)[1], retry=retry())
    if blob is None:
        raise patterns.deleted(file)
    if blob.generation != _generation(file):
        patterns.check_same(file, with_size(blob).size or 0, f"{_GENERATION}{blob.generation}")


def open_raw(file: SourceFile, read_ahead: int) -> BinaryIO:
    """Opens the generation of the object that the job was launched with. Makes no request yet.

    read_ahead: minimum bytes per request; 0 for exactly the bytes read.
    """

    def download(start: int, stop: int) -> bytes:
        try:
            return download_range(file.path, _generation(file), start, stop, InputError)
        except InputError as error:
            from google.api_core.exceptions import NotFound, PreconditionFailed

            if isinstance(error.__cause__, NotFound | PreconditionFailed):
                check(file)
            raise

    return RangeReader(file.size, download).buffered(read_ahead)


def _generation(file: SourceFile) -> int:
    return int(file.version.removeprefix(_GENERATION))
