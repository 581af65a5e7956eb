"""An output folder on S3, or a store like it.

Objects are created with `If-None-Match: *`, and replaced with `If-Match` and the ETag that was
found; every upload carries its CRC-32C. A store without these is refused before the first write.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-requests.html
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from fineshards.errors import FineshardsError, OutputError
from fineshards.storage.base import TEMPORARY
from fineshards.storage.checksums import checksum_to_base64, crc32c
from fineshards.storage.objects import ObjectStorage, StoredObject
from fineshards.storage.s3_client import (
    client,
    code_of,
    endpoint_of_environment,
    is_about_us,
    reason_of,
    retried,
    said,
    status_of,
)

# Metadata of our own objects: the CRC-32C, in base64, because not every store says it; and a name
# for the attempt that wrote it, because two writes of the same bytes have one ETag.
_CHECKSUM, _ATTEMPT = "crc32c", "attempt"


class S3Storage(ObjectStorage):
    """An output folder `s3://bucket/prefix`.

    endpoint: the URL of the store; by default the one that the environment names here, also where
    the storage is unpickled.
    """

    scheme = "s3"

    def __init__(
        self,
        root: str,
        endpoint: str | None = None,
        error: type[FineshardsError] = OutputError,
    ) -> None:
        super().__init__(root, error)
        self.endpoint = endpoint or endpoint_of_environment()
        # Goes with the storage to the workers of a job, so that only its launch tries the store.
        self._keeps_promises = False

    def make_folders(self, folders: tuple[str, ...]) -> None:
        """Does nothing: S3 has no folders."""

    def _find(self, key: str) -> StoredObject | None:
        try:
            found = self._send("head_object", Key=key, ChecksumMode="ENABLED")
        except Exception as error:
            if status_of(error) == 404:
                return None
            # The answer to HEAD has no body that could say why.
            self._send("list_objects_v2", Prefix=key, MaxKeys=1)
            raise
        return StoredObject(
            key,
            found["ContentLength"],
            _etag(found),
            found["LastModified"].timestamp(),
            _checksum(found),
            found.get("ContentEncoding", ""),
            found["Metadata"].get(_ATTEMPT, ""),
        )

    def _list(self, prefix: str, delimiter: str) -> Iterator[StoredObject | str]:
        more = {"Delimiter": delimiter} if delimiter else {}
        while True:
            page = self._send("list_objects_v2", Prefix=prefix, **more)
            for item in page.get("Contents", ()):
                changed = item["LastModified"].timestamp()
                yield StoredObject(item["Key"], item["Size"], _etag(item), changed)
            yield from (folder["Prefix"] for folder in page.get("CommonPrefixes", ()))
            if not page.get("IsTruncated"):
                return
            more["ContinuationToken"] = page["NextContinuationToken"]

    def _get(self, key: str, start: int = 0, stop: int = 0, version: str = "") -> bytes | None:
        asked = {"Range": f"bytes={start}-{stop - 1}"} if stop else {"ChecksumMode": "ENABLED"}
        if version:
            asked["IfMatch"] = f'"{version}"'

        def attempt() -> bytes:
            found = self._client.get_object(Bucket=self.bucket, Key=key, **asked)
            content: bytes = found["Body"].read()
            if not stop and _checksum(found) not in (None, checksum_to_base64(crc32c(content))):
                raise ConnectionError("the content was damaged on its way")
            return content

        try:
            return retried(attempt)
        except Exception as error:
            if status_of(error) == 416:
                return b""
            if not _condition_failed(error):
                raise
            return None

    def _put(self, key: str, content: Any, size: int, checksum: str, replaced: str | None) -> bool:
        if not self._keeps_promises:
            self._refuse_broken_promises()
            self._keeps_promises = True
        condition = {"IfMatch": f'"{replaced.split()[0]}"'} if replaced else {"IfNoneMatch": "*"}
        metadata = {_CHECKSUM: checksum, _ATTEMPT: uuid.uuid4().hex}

        def attempt() -> None:
            content.seek(0)
            self._client.put_object(
                Bucket=self.bucket,
                Key=key,
                Body=content,
                ContentLength=size,
                ChecksumCRC32C=checksum,
                Metadata=metadata,
                **condition,
            )

        try:
            retried(attempt)
        except Exception as error:
            if _condition_failed(error):
                return False
            raise
        return True

    def _refuse_broken_promises(self) -> None:
        """Raises OutputError unless uploads are checked, and conditional.

        A store that ignores a condition or a checksum does not say so, so each is broken on
        purpose, on an object of its own.
        """
        key, content = self.key(f"{TEMPORARY}/probe.{uuid.uuid4().hex}"), b"a probe of the store"
        put = {"Bucket": self.bucket, "Key": key, "Body": content}
        put["ChecksumCRC32C"] = checksum_to_base64(crc32c(content))

        def attempt(change: dict[str, str], expected: int) -> tuple[int, str]:
            try:
                self._client.put_object(**put | change)
            except Exception as error:
                status = status_of(error)
                if status != expected and (status not in (400, 501) or is_about_us(error)):
                    raise
                return status or 0, said(error)
            return 200, ""

        unchecked = "it does not compare uploads with their CRC-32C checksums"
        try:
            for change, expected, broken in (
                ({"ChecksumCRC32C": checksum_to_base64(0)}, 400, unchecked),
                ({}, 200, ""),
                ({"IfNoneMatch": "*"}, 412, "it ignores If-None-Match of uploads"),
                ({"IfMatch": f'"{"0" * 32}"'}, 412, "it ignores If-Match of uploads"),
            ):
                status, message = retried(partial(attempt, change, expected))
                if status != expected:
                    raise OutputError(
                        f"{self.root} cannot be written: the store does not have the checked and "
                        "conditional writes that keep two attempts from overwriting each other; "
                        f"{f'it refuses them: {message}' if message else broken}. Use a store that "
                        "has them, such as Amazon S3, or a local folder."
                    )
        finally:
            # What cannot be deleted now is left for the end of the job.
            with suppress(Exception):
                self._client.delete_object(Bucket=self.bucket, Key=key)

    def _delete(self, found: StoredObject) -> None:
        """See ObjectStorage. A store that does not know the condition may ignore it."""
        try:
            self._send("delete_object", Key=found.key, IfMatch=f'"{found.version}"')
        except Exception as error:
            if status_of(error) == 501:
                self._send("delete_object", Key=found.key)
            elif not _condition_failed(error):
                raise

    @property
    def _client(self) -> Any:
        return client(self.endpoint)

    def _send(self, what: str, **parameters: Any) -> dict[str, Any]:
        """Sends a request that can be repeated."""
        found: dict[str, Any] = retried(
            lambda: getattr(self._client, what)(Bucket=self.bucket, **parameters)
        )
        return found

    _reason = staticmethod(reason_of)


def _etag(response: dict[str, Any]) -> str:
    """The ETag in a response, without quotes, which not every store puts around it."""
    etag: str = response["ETag"]
    return etag.strip('"')


def _checksum(response: dict[str, Any]) -> str | None:
    """The CRC-32C of an object's whole content in base64, as far as a response says it."""
    found: str | None = response.get("ChecksumCRC32C")
    # That of an object made of parts may be a checksum of the parts' checksums.
    if found is None or "-" in found:
        found = response.get("Metadata", {}).get(_CHECKSUM)
    return found


def _condition_failed(error: BaseException) -> bool:
    """Whether a request was refused because of its condition; 404 is the answer of some stores.

    Of an answer without a body, or whose body was cut on its way, boto knows the status alone.
    """
    return status_of(error) == 412 or code_of(error) in ("NoSuchKey", "404")
