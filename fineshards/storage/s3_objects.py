"""Objects of S3 and stores like it: found, listed, and read in the version that was found."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fineshards.errors import FineshardsError, OutputError
from fineshards.storage.checksums import checksum_to_base64, crc32c
from fineshards.storage.s3_client import (
    SCHEME,
    ask_bucket,
    check_bucket,
    client,
    code_of,
    explained,
    is_missing,
    retried,
    status_of,
)

# Metadata of our own objects. The CRC-32C, in base64, because not every store says that of an
# object made of parts; and a name for the attempt that wrote it.
CHECKSUM_KEY = "crc32c"
ATTEMPT_KEY = "attempt"


@dataclass(frozen=True, slots=True)
class S3Object:
    """One version of an object.

    name: its key. etag: without quotes. modified: seconds since the epoch. encoding: its
    Content-Encoding, empty for none. crc32c: in base64. attempt: differs between two writes of the
    same bytes, which have one ETag. Listings do not say encoding, crc32c and attempt.
    """

    bucket: str
    name: str
    size: int
    etag: str
    modified: float
    encoding: str = ""
    crc32c: str | None = None
    attempt: str = ""
    endpoint: str | None = None

    @property
    def url(self) -> str:
        """`s3://bucket/key`."""
        return f"{SCHEME}{self.bucket}/{self.name}"


def find_object(bucket: str, key: str, endpoint: str | None = None) -> S3Object | None:
    """An object's state, or None if there is none. Raises boto's errors, also for a missing bucket.

    Takes one request, and a second one if it is refused, or there is no object and the bucket was
    not seen yet.
    """
    try:
        found = retried(
            lambda: client(endpoint).head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        )
    except Exception as error:
        if status_of(error) in (400, 401, 403):
            ask_bucket(bucket, endpoint)
        if status_of(error) != 404:
            raise
        check_bucket(bucket, endpoint)
        return None
    return S3Object(
        bucket,
        key,
        found["ContentLength"],
        etag_of(found),
        found["LastModified"].timestamp(),
        found.get("ContentEncoding", ""),
        checksum_of(found),
        found["Metadata"].get(ATTEMPT_KEY, ""),
        endpoint,
    )


def etag_of(response: dict[str, Any]) -> str:
    """The ETag in a response, without quotes, which not every store puts around it."""
    etag: str = response["ETag"]
    return etag.strip('"')


def checksum_of(response: dict[str, Any]) -> str | None:
    """The CRC-32C of an object's whole content in base64, as far as a response says it."""
    said: str | None = response.get("ChecksumCRC32C")
    # That of an object made of parts may be a checksum of the parts' checksums.
    if said is None or "-" in said:
        said = response.get("Metadata", {}).get(CHECKSUM_KEY)
    return said


def own_metadata(checksum: str) -> dict[str, str]:
    """The metadata of an object of ours that is made now. checksum: the CRC-32C in base64."""
    return {CHECKSUM_KEY: checksum, ATTEMPT_KEY: uuid.uuid4().hex}


def list_objects(
    bucket: str, prefix: str, delimiter: str, endpoint: str | None = None
) -> Iterator[S3Object | str]:
    """The objects with a prefix, in the order of their keys, and folders as text.

    delimiter: `/` to leave out what lies in folders below; these then end with `/`. Raises boto's
    errors. Takes one request per thousand objects.
    """
    more: dict[str, str] = {"Delimiter": delimiter} if delimiter else {}
    while True:
        page = retried(
            lambda: client(endpoint).list_objects_v2(Bucket=bucket, Prefix=prefix, **more)
        )
        for found in page.get("Contents", ()):
            changed = found["LastModified"].timestamp()
            yield S3Object(
                bucket, found["Key"], found["Size"], etag_of(found), changed, endpoint=endpoint
            )
        yield from (folder["Prefix"] for folder in page.get("CommonPrefixes", ()))
        if not page.get("IsTruncated"):
            return
        more["ContinuationToken"] = page["NextContinuationToken"]


def read_object(bucket: str, key: str, endpoint: str | None) -> bytes | None:
    """An object's content, compared with its CRC-32C; None if there is no object.

    Raises boto's errors, also for a missing bucket. Takes one request.
    """

    def attempt() -> bytes:
        found = client(endpoint).get_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        content: bytes = found["Body"].read()
        checksum = checksum_of(found)
        if checksum not in (None, checksum_to_base64(crc32c(content))):
            raise ConnectionError("the content was damaged on its way")
        return content

    try:
        return retried(attempt)
    except Exception as error:
        if not is_missing(error):
            raise
        if code_of(error) != "NoSuchKey":
            check_bucket(bucket, endpoint)
        return None


def read_range(
    bucket: str, key: str, start: int, stop: int, etag: str = "", endpoint: str | None = None
) -> bytes:
    """Bytes `[start, stop)` of an object, fewer if it is shorter; raises boto's errors.

    etag: of the version that is read; without it, of whatever is there. Takes one request.
    """
    pinned = {"IfMatch": f'"{etag}"'} if etag else {}

    def attempt() -> bytes:
        found = client(endpoint).get_object(
            Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **pinned
        )
        content: bytes = found["Body"].read()
        return content

    return retried(attempt)


def download_range(
    source: S3Object, start: int, stop: int, kind: type[FineshardsError] = OutputError
) -> bytes:
    """Bytes `[start, stop)` of an object in the version that was found, in one request.

    Raises `kind` if the request fails, also after retries, or the object has changed.
    """
    if start >= stop:
        return b""
    with explained("read", source.url, kind):
        try:
            content = read_range(
                source.bucket, source.name, start, stop, source.etag, source.endpoint
            )
        except Exception as error:
            if status_of(error) not in (404, 412, 416):
                raise
            content = b""
    if len(content) != stop - start:
        raise kind(
            f"{source.url} was changed or deleted while it was read: the version with the ETag "
            f"{source.etag} no longer exists. Run again when no one writes there."
        )
    return content
