"""Input files on gs:// and s3://: objects found by pattern, each read in one version.

A job records the generation of an object, or its ETag, and sends it with every request, so bytes of
two versions never mix.
https://cloud.google.com/storage/docs/object-versioning
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
from fineshards.storage.objects import ObjectStorage
from fineshards.storage.ranges import RangeReader

_VERSIONS = {"gs": "generation", "s3": "etag"}


def find(pattern: str) -> patterns.Matches:
    """Returns the objects that `scheme://bucket/pattern` means, from one listing if it matches.

    Raises UsageError for a URL without a bucket, and InputError if the bucket cannot be listed.
    """
    root, wanted = patterns.split_root(pattern)
    return patterns.find_matches(wanted, partial(_list, _bucket(root)))


def check(file: SourceFile) -> None:
    """Raises InputError if the object was deleted or replaced since launch. Makes one request."""
    store = _bucket(file.path)
    found = store.find_object(split_url(file.path)[1])
    if found is None:
        raise patterns.deleted(file)
    patterns.check_same(file, found.size, f"{_VERSIONS[store.scheme]}:{found.version}")


def open_raw(file: SourceFile, read_ahead: int) -> BinaryIO:
    """Opens the object in the version that it had at launch. Makes no request yet.

    read_ahead: minimum bytes per request; 0 for exactly the bytes read.
    """
    store, key = _bucket(file.path), split_url(file.path)[1]

    def read_at(start: int, stop: int) -> bytes:
        content = store.fetch(key, start, stop, file.version.partition(":")[2])
        if content is None:
            check(file)
            raise patterns.deleted(file)
        return content

    return RangeReader(file.size, read_at).buffered(read_ahead)


def _bucket(url: str) -> ObjectStorage:
    scheme, bucket = url.partition("://")[0], split_url(url)[0]
    if scheme == "gs":
        require("google.cloud.storage", "google-cloud-storage", "gcs")
        from fineshards.storage.gcs import GcsStorage

        return GcsStorage(f"gs://{bucket}", InputError)
    require("boto3", "boto3", "s3")
    from fineshards.storage.s3 import S3Storage

    return S3Storage(f"s3://{bucket}", error=InputError)


def _list(store: ObjectStorage, prefix: str, deep: bool) -> tuple[list[FoundFile], set[str]]:
    files, folders = [], set[str]()
    for found in store.list_objects(prefix, "" if deep else "/"):
        if isinstance(found, str):
            folders.add(found)
        elif not found.key.endswith("/"):  # a folder created by hand
            identity = f"{_VERSIONS[store.scheme]}:{found.version}"
            url = f"{store.root}/{found.key}"
            files.append(FoundFile(url, found.key, found.size, identity, found.encoding))
    return files, folders
