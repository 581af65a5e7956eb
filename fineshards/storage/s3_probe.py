"""Whether a store keeps the promises that writing relies on: tried once per process and bucket.

A store that ignores a condition or a checksum does not say so, so each is broken on purpose, on an
object of the probe's own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from fineshards.errors import OutputError
from fineshards.storage.base import TEMPORARY
from fineshards.storage.checksums import checksum_to_base64, crc32c
from fineshards.storage.objects import ObjectStorage
from fineshards.storage.s3_client import (
    REFUSED_CREDENTIALS,
    client,
    code_of,
    explained,
    reason,
    retried,
    status_of,
)
from fineshards.storage.s3_objects import S3Object

_CONTENT = b"Does this store keep its promises?"
_CHECKSUM = checksum_to_base64(crc32c(_CONTENT))
_WRONG_CHECKSUM = checksum_to_base64(crc32c(b""))
_NO_ETAG = f'"{"0" * 32}"'
# How long to retry deleting what a probe leaves; after that it is left for the end of the job.
_CLEANUP_SECONDS = 30.0

# By endpoint, bucket and kind of write.
_passed: set[tuple[str | None, str, str]] = set()


def check_writes(storage: ObjectStorage[S3Object]) -> None:
    """Raises OutputError unless uploads are checked, and conditional."""
    with _probe(storage, "put") as place:
        if place is None:
            return
        put = client(storage.endpoint).put_object
        checked = {**place, "Body": _CONTENT, "ChecksumCRC32C": _CHECKSUM}
        wrong = checked | {"ChecksumCRC32C": _WRONG_CHECKSUM}
        if not _is_refused(lambda: put(**wrong), 400):
            raise _refusal(storage, "it does not compare uploads with their CRC-32C checksums")
        # 412: an earlier try, whose response was lost.
        _is_refused(lambda: put(**checked, IfNoneMatch="*"), 412)
        for condition in ({"IfNoneMatch": "*"}, {"IfMatch": _NO_ETAG}):
            if not _is_refused(partial(put, **checked, **condition), 412):
                raise _refusal(storage, f"it ignores {_header(condition)} of uploads")


@contextmanager
def _probe(storage: ObjectStorage[S3Object], kind: str) -> Iterator[dict[str, Any] | None]:
    """A name to try things on, which is deleted afterwards; None if the store has passed before."""
    known = (storage.endpoint, storage.bucket, kind)
    if known in _passed:
        yield None
        return
    place = {"Bucket": storage.bucket, "Key": storage.key(f"{TEMPORARY}/probe.{uuid.uuid4().hex}")}
    with explained("written", storage.root):
        try:
            yield place
        except Exception as error:
            about_us = code_of(error) in {"NoSuchBucket", *REFUSED_CREDENTIALS}
            if status_of(error) in (400, 501) and not about_us:
                raise _refusal(storage, f"it refuses them: {reason(error)}") from error
            raise
        finally:
            with suppress(Exception):
                retried(lambda: client(storage.endpoint).delete_object(**place), _CLEANUP_SECONDS)
    _passed.add(known)


def _is_refused(request: Callable[[], object], status: int) -> bool:
    """Whether a request that must be refused with a status is."""

    def attempt() -> bool:
        try:
            request()
        except Exception as error:
            if status_of(error) == status:
                return True
            raise
        return False

    return retried(attempt)


def _header(condition: dict[str, str]) -> str:
    return "If-Match" if "IfMatch" in condition else "If-None-Match"


def _refusal(storage: ObjectStorage[S3Object], why: str) -> OutputError:
    return OutputError(
        f"{storage.root} cannot be written: the store does not have the checked and conditional "
        f"writes that keep two attempts from overwriting each other; {why}. Use a store that has "
        "them, such as Amazon S3, or a local folder."
    )
