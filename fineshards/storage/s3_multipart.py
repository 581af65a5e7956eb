"""An object made of parts, which are sent, or copied from other objects.

No copy is trusted unseen: the store must show the CRC-32C of a copied part, or at least the MD5 of
an object that was copied whole. It does so before the new object exists.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, Self, TypeVar

from fineshards.storage.checksums import checksum_to_base64, crc32c
from fineshards.storage.objects import ObjectStorage
from fineshards.storage.s3_client import (
    REFUSED_CREDENTIALS,
    client,
    code_of,
    condition,
    condition_failed,
    retried,
    status_of,
)
from fineshards.storage.s3_objects import S3Object, checksum_of, etag_of, own_metadata
from fineshards.storage.s3_plan import Segment, plan_parts
from fineshards.storage.s3_probe import check_multipart

# How long to retry giving an upload up; after that its parts are left for a lifecycle rule.
_CLEANUP = 30.0
# An ETag that is the MD5 of its object. That of an object made of parts ends with their number.
_MD5 = re.compile(r"[0-9a-f]{32}")
# What a store that lacks a request or its checksums answers.
_REFUSED = (400, 501)

_Result = TypeVar("_Result")

# By endpoint, bucket, kind of upload, and whether checksums were asked for.
_failed: set[tuple[str | None, str, str, bool]] = set()


def _lacks(error: Exception) -> bool:
    """Whether an error says that the store lacks what was asked, and not that it refuses us."""
    return status_of(error) in _REFUSED and code_of(error) not in REFUSED_CREDENTIALS


class NotCheckedError(Exception):
    """The store does not prove that a part is what it must be."""


def in_a_proven_way(
    storage: ObjectStorage[S3Object], kind: str, attempt: Callable[[bool], _Result]
) -> _Result:
    """Runs an attempt that asks the store for checksums, then one that does without.

    A way that has failed in this process is not tried again. kind: of the upload. Raises
    NotCheckedError if neither is proven.
    """
    for checked in (True, False):
        way = (storage.endpoint, storage.bucket, kind, checked)
        if way not in _failed:
            try:
                return attempt(checked)
            except NotCheckedError:
                _failed.add(way)
    raise NotCheckedError


def send_in_parts(
    storage: ObjectStorage[S3Object],
    name: str,
    content: BinaryIO,
    size: int,
    checksum: str,
    over: str | None,
) -> S3Object | None:
    """Creates an object from an open file; None if there is one, or not the one to replace."""

    def attempt(checked: bool) -> S3Object | None:
        with Upload(storage, name, size, checksum, over, checked) as upload:
            for number, part in enumerate(plan_parts([Segment(size, False)]), 1):
                content.seek(part.start)
                upload.send(number, content.read(part.stop - part.start))
            return upload.complete()

    return in_a_proven_way(storage, "send", attempt)


class Upload:
    """One upload in parts; given up unless it is completed.

    size, checksum: of the whole object. over: the version that it replaces, if any. checked:
    whether the store is asked for the CRC-32C of the parts and of the object. The methods raise
    boto's errors.
    """

    def __init__(
        self,
        storage: ObjectStorage[S3Object],
        name: str,
        size: int,
        checksum: str,
        over: str | None,
        checked: bool,
    ) -> None:
        check_multipart(storage)
        self._storage = storage
        self._place = {"Bucket": storage.bucket, "Key": storage.key(name)}
        self._size = size
        self._checksum = checksum
        self._over = over
        self._checked = checked
        self._parts: dict[int, dict[str, Any]] = {}
        self._completed = False

    def __enter__(self) -> Self:
        asked = {"ChecksumAlgorithm": "CRC32C", "ChecksumType": "FULL_OBJECT"}
        metadata = own_metadata(self._checksum)

        def attempt() -> str:
            made = self._client().create_multipart_upload(
                **self._place, Metadata=metadata, **(asked if self._checked else {})
            )
            name: str = made["UploadId"]
            return name

        try:
            upload = retried(attempt)
        except Exception as error:
            if self._checked and _lacks(error):
                raise NotCheckedError from error
            raise
        self._upload = self._place | {"UploadId": upload}
        return self

    def __exit__(self, *failure: object) -> None:
        if not self._completed:
            with suppress(Exception):
                retried(lambda: self._client().abort_multipart_upload(**self._upload), _CLEANUP)

    def send(self, number: int, content: bytes) -> None:
        """Sends a part."""
        checksum = checksum_to_base64(crc32c(content))
        if self._checked:
            check = {"ChecksumCRC32C": checksum}
        else:
            md5 = hashlib.md5(content, usedforsecurity=False).digest()
            check = {"ContentMD5": base64.b64encode(md5).decode()}
        sent = retried(
            lambda: self._client().upload_part(
                **self._upload, PartNumber=number, Body=content, **check
            )
        )
        self._add(number, sent, checksum)

    def copy(self, number: int, source: S3Object, start: int, checksum: str) -> None:
        """Copies the bytes of an object from `start` on, in the version that was found.

        checksum: what that of the part must be. Raises NotCheckedError if the store does not show
        that it is.
        """
        whole = start == 0
        place = {"Bucket": source.bucket, "Key": source.name}
        extent = {} if whole else {"CopySourceRange": f"bytes={start}-{source.size - 1}"}
        try:
            answer = retried(
                lambda: self._client().upload_part_copy(
                    **self._upload,
                    PartNumber=number,
                    CopySource=place,
                    CopySourceIfMatch=f'"{source.etag}"',
                    **extent,
                )
            )
        except Exception as error:
            if _lacks(error):
                raise NotCheckedError from error
            raise
        copied = answer["CopyPartResult"]
        shown = copied.get("ChecksumCRC32C")
        if shown is None and not self._checked and whole and _MD5.fullmatch(source.etag):
            shown = checksum if etag_of(copied) == source.etag else None
        if shown != checksum:
            raise NotCheckedError
        self._add(number, copied, checksum)

    def complete(self) -> S3Object | None:
        """Makes the object; None if there is one, or not the one to replace.

        Raises NotCheckedError if the store finds another checksum than it must have.
        """
        parts = [self._parts[number] for number in sorted(self._parts)]
        check = {"ChecksumCRC32C": self._checksum, "ChecksumType": "FULL_OBJECT"}

        def attempt() -> dict[str, Any] | None:
            try:
                made: dict[str, Any] = self._client().complete_multipart_upload(
                    **self._upload,
                    MultipartUpload={"Parts": parts},
                    **condition(self._over),
                    **(check if self._checked else {}),
                )
            except Exception as error:
                # There is no such upload if an earlier try has made the object.
                if condition_failed(error) or code_of(error) == "NoSuchUpload":
                    return None
                if self._checked and _lacks(error):
                    raise NotCheckedError from error
                raise
            return made

        made = retried(attempt)
        if made is None:
            return None
        self._completed = True
        bucket, key = self._place["Bucket"], self._place["Key"]
        checksum = checksum_of(made) or self._checksum
        return S3Object(bucket, key, self._size, etag_of(made), 0.0, crc32c=checksum)

    def _add(self, number: int, made: dict[str, Any], checksum: str) -> None:
        check = {"ChecksumCRC32C": checksum} if self._checked else {}
        self._parts[number] = {"PartNumber": number, "ETag": made["ETag"], **check}

    def _client(self) -> Any:
        return client(self._storage.endpoint)
