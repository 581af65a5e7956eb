"""Input files on S3 and stores like it: objects found by pattern, each read with one ETag.

Every request for content names the ETag that the job was launched with, so bytes of two versions
never mix.
"""

from __future__ import annotations

from functools import partial
from typing import BinaryIO

from fineshards.errors import InputError
from fineshards.extras import require
from fineshards.shards.job.records import SourceFile
from fineshards.sources import patterns
from fineshards.sources.patterns import FoundFile
from fineshards.storage.names import split_url
from fineshards.storage.ranges import RangeReader
from fineshards.storage.s3_client import explained
from fineshards.storage.s3_objects import S3Object, download_range, find_object, list_objects

_ETAG = "etag:"


def find(pattern: str) -> patterns.Matches:
    """Returns the objects that `s3://bucket/pattern` means, from one listing if it matches.

    Raises UsageError for a URL without a bucket, and InputError if the bucket cannot be listed.
    """
    root, wanted = patterns.split_root(pattern)
    require("boto3", "boto3", "s3")
    return patterns.find_matches(wanted, partial(_list, pattern, root))


def check(file: SourceFile) -> None:
    """Raises InputError if the object was deleted or replaced since launch. Makes one request."""
    with explained("read", file.path, InputError):
        found = find_object(*split_url(file.path))
    if found is None:
        raise patterns.deleted(file)
    patterns.check_same(file, found.size, f"{_ETAG}{found.etag}")


def open_raw(file: SourceFile, read_ahead: int) -> BinaryIO:
    """Opens the object with the ETag that it had at launch. Makes no request yet.

    read_ahead: minimum bytes per request; 0 for exactly the bytes read.
    """
    etag = file.version.removeprefix(_ETAG)
    found = S3Object(*split_url(file.path), file.size, etag, 0.0)
    download = partial(download_range, found, kind=InputError)
    return RangeReader(file.size, download).buffered(read_ahead)


def _list(url: str, root: str, prefix: str, deep: bool) -> tuple[list[FoundFile], set[str]]:
    files, folders = [], set[str]()
    with explained("listed", url, InputError):
        for found in list_objects(split_url(root)[0], prefix, "" if deep else "/"):
            if isinstance(found, str):
                folders.add(found)
            elif not found.name.endswith("/"):  # a folder created by hand
                identity = f"{_ETAG}{found.etag}"
                files.append(FoundFile(found.url, found.name, found.size, identity))
    return files, folders
