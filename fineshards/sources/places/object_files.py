"""Input files on gs:// and s3://: objects found by pattern, each read in one version.

A job records the generation of an object, or its ETag, and sends it with every request, so bytes of
two versions never mix.
https://cloud.google.com/storage/docs/object-versioning
"""

from functools import partial

from fineshards.errors import InputError
from fineshards.shards.job.records import SourceFile
from fineshards.sources.places.place import (
    FoundFile,
    Place,
    check_same,
    find_matches,
    split_root,
)
from fineshards.storage.objects import ObjectStorage, split_url
from fineshards.storage.open import open_storage

_VERSIONS = {"gs": "generation", "s3": "etag"}


class ObjectFiles(Place):
    """Objects that `scheme://bucket/pattern` means."""

    def find(self, pattern: str) -> list[FoundFile]:
        return find_matches(split_root(pattern)[1], partial(_list, _bucket(pattern)))

    def state(self, file: SourceFile) -> tuple[int, str] | None:
        store = _bucket(file.path)
        described = store.find_object(split_url(file.path)[1])
        return described and (described.size, f"{_VERSIONS[store.scheme]}:{described.version}")

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        key, version = split_url(file.path)[1], file.version.partition(":")[2]
        content = _bucket(file.path).fetch(key, start, stop, version)
        if content is None:
            check_same(file, self.state(file))
            raise InputError(f"{file.path} was away while it was read. Run the same command again.")
        return content


class GcsFiles(ObjectFiles):
    """Objects that `gs://bucket/pattern` means."""

    is_light = True


def _bucket(url: str) -> ObjectStorage:
    store = open_storage(split_root(url)[0], error=InputError)
    assert isinstance(store, ObjectStorage)
    return store


def _list(store: ObjectStorage, prefix: str, deep: bool) -> tuple[list[FoundFile], set[str]]:
    files, folders = [], set[str]()
    for listed in store.list_objects(prefix, "" if deep else "/"):
        if isinstance(listed, str):
            folders.add(listed)
        elif not listed.key.endswith("/"):  # a folder created by hand
            identity = f"{_VERSIONS[store.scheme]}:{listed.version}"
            files.append(FoundFile(f"{store.root}/{listed.key}", listed.key, listed.size, identity))
    return files, folders
