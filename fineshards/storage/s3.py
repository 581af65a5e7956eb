"""An output folder on S3, or a store like it.

Objects are created with `If-None-Match: *`, and replaced with `If-Match` and the ETag that was
found; every upload carries its CRC-32C. A store without these is refused before the first write.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-requests.html

`boto3` is imported inside functions because that takes a quarter of a second, and only `s3://`
needs it.
"""

import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from fineshards.credentials import refuse_secrets_in_endpoint
from fineshards.errors import FineshardsError, OutputError, UsageError
from fineshards.storage.base import TEMPORARY
from fineshards.storage.checksums import checksum_to_base64, crc32c
from fineshards.storage.objects import ObjectStorage, StoredObject
from fineshards.storage.retries import TRANSIENT_STATUS

# Metadata of our own objects: the CRC-32C, in base64, because not every store says it; and a name
# for the attempt that wrote it, because two writes of the same bytes have one ETag.
_CHECKSUM, _ATTEMPT = "crc32c", "attempt"
# Of one process; further threads wait for one.
_CONNECTIONS = 64
# Transient errors with other status codes. BadDigest: the content was damaged on its way.
# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_TRANSIENT_CODES = {
    *("BadDigest", "ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "SlowDown"),
}
_REFUSED_CREDENTIALS = {
    *("ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"),
}

# Refusals because of who sent a request, or where to.
_ABOUT_US = {"NoSuchBucket", *_REFUSED_CREDENTIALS}

# By process, because a fork that used its parent's connections would read the responses to its
# parent's requests; and by endpoint.
_clients: dict[tuple[int, str | None], Any] = {}
_making = threading.Lock()


def _begin_again() -> None:
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_begin_again)


class S3Storage(ObjectStorage):
    """An output folder `s3://bucket/prefix`.

    endpoint: the URL of the store; by default the one that the environment names here, also where
    the storage is unpickled.
    """

    scheme, service = "s3", "S3"

    def __init__(
        self,
        root: str,
        endpoint: str | None = None,
        error: type[FineshardsError] = OutputError,
    ) -> None:
        super().__init__(root, error)
        by_environment = map(os.environ.get, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
        self.endpoint = next(filter(None, (endpoint, *by_environment)), None)
        # Goes with the storage to the workers of a job, so that only its launch tries the store.
        self._keeps_promises = False

    def _find(self, key: str) -> StoredObject | None:
        try:
            head = self._send("head_object", Key=key, ChecksumMode="ENABLED")
        except Exception as error:
            if _status_of(error) == 404:
                return None
            # The answer to HEAD has no body that could say why.
            self._send("list_objects_v2", Prefix=key, MaxKeys=1)
            raise
        return StoredObject(
            key,
            head["ContentLength"],
            _etag(head),
            head["LastModified"].timestamp(),
            _checksum(head),
            head["Metadata"].get(_ATTEMPT, ""),
        )

    def _list(self, prefix: str, delimiter: str) -> Iterator[StoredObject | str]:
        parameters = {"Delimiter": delimiter} if delimiter else {}
        while True:
            page = self._send("list_objects_v2", Prefix=prefix, **parameters)
            for item in page.get("Contents", ()):
                changed = item["LastModified"].timestamp()
                yield StoredObject(item["Key"], item["Size"], _etag(item), changed)
            yield from (folder["Prefix"] for folder in page.get("CommonPrefixes", ()))
            if not page.get("IsTruncated"):
                return
            parameters["ContinuationToken"] = page["NextContinuationToken"]

    def _get(self, key: str, start: int = 0, stop: int = 0, version: str = "") -> bytes | None:
        parameters = {"Range": f"bytes={start}-{stop - 1}"} if stop else {"ChecksumMode": "ENABLED"}
        if version:
            parameters["IfMatch"] = f'"{version}"'

        def attempt() -> bytes:
            answer = self._client.get_object(Bucket=self.bucket, Key=key, **parameters)
            content: bytes = answer["Body"].read()
            if not stop and _checksum(answer) not in (None, checksum_to_base64(crc32c(content))):
                raise ConnectionError("the content was damaged on its way")
            return content

        try:
            return self._retried(attempt)
        except Exception as error:
            if _status_of(error) == 416:
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
            self._retried(attempt)
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
                status = _status_of(error)
                is_about_us = status not in (400, 501) or _code_of(error) in _ABOUT_US
                if status != expected and is_about_us:
                    raise
                return status or 0, self._message(error)
            return 200, ""

        unchecked = "it does not compare uploads with their CRC-32C checksums"
        try:
            for change, expected, broken in (
                ({"ChecksumCRC32C": checksum_to_base64(0)}, 400, unchecked),
                ({}, 200, ""),
                ({"IfNoneMatch": "*"}, 412, "it ignores If-None-Match of uploads"),
                ({"IfMatch": f'"{"0" * 32}"'}, 412, "it ignores If-Match of uploads"),
            ):
                status, message = self._retried(partial(attempt, change, expected))
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

    def _delete(self, stored: StoredObject) -> None:
        """See ObjectStorage. A store that does not know the condition may ignore it."""
        try:
            self._send("delete_object", Key=stored.key, IfMatch=f'"{stored.version}"')
        except Exception as error:
            if _status_of(error) == 501:
                self._send("delete_object", Key=stored.key)
            elif not _condition_failed(error):
                raise

    @property
    def _client(self) -> Any:
        return client(self.endpoint)

    def _send(self, what: str, **parameters: Any) -> dict[str, Any]:
        """Sends a request that can be repeated."""
        answer: dict[str, Any] = self._retried(
            lambda: getattr(self._client, what)(Bucket=self.bucket, **parameters)
        )
        return answer

    @staticmethod
    def _is_transient(error: Exception) -> bool:
        import urllib3.exceptions
        from botocore import exceptions as boto

        if isinstance(error, boto.ClientError):
            return _status_of(error) in TRANSIENT_STATUS or _code_of(error) in _TRANSIENT_CODES
        broken = (boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError)
        return isinstance(error, (*broken, urllib3.exceptions.HTTPError, ConnectionError))

    @staticmethod
    def _message(error: Exception) -> str:
        text = str(error) or type(error).__name__
        if (status := _status_of(error)) is not None:
            message = _part_of_answer(error, "Error", "Message") or ""
            text = f"{message} ({status} {_code_of(error)})"
        return " ".join(text.split()).rstrip(".")

    def _reason(self, error: Exception, what: str, url: str) -> str | None:
        from botocore import exceptions as boto

        missing = (
            *(boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError),
            *(boto.NoAuthTokenError, boto.TokenRetrievalError, boto.SSOError),
        )
        message = self._message(error)
        if isinstance(error, missing):
            return (
                f"no valid AWS credentials were found ({message}). Set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE after aws configure or aws sso login."
            )
        if self._is_transient(error):
            return f"{message}. Run again when the store is reachable."
        status, code = _status_of(error), _code_of(error)
        if code in _REFUSED_CREDENTIALS:
            return f"the store refuses the credentials: {message}. Check or renew them."
        if code == "NoSuchBucket":
            return f"there is no bucket {self.bucket}. Check the name, or create it."
        if status == 404:
            return "there is no such object. Check the name."
        if status in (401, 403):
            return (
                f"no permission ({status}). Ask for the permissions of docs/cloud.md on "
                f"s3://{self.bucket}. aws sts get-caller-identity shows which account is in use."
            )
        is_of_boto = isinstance(error, boto.BotoCoreError | boto.ClientError)
        return f"{message}." if is_of_boto else None


def _etag(response: dict[str, Any]) -> str:
    """The ETag in a response, without quotes, which not every store puts around it."""
    etag: str = response["ETag"]
    return etag.strip('"')


def _checksum(response: dict[str, Any]) -> str | None:
    """The CRC-32C of an object's whole content in base64, as far as a response says it."""
    checksum: str | None = response.get("ChecksumCRC32C")
    # That of an object made of parts may be a checksum of the parts' checksums.
    if checksum is None or "-" in checksum:
        checksum = response.get("Metadata", {}).get(_CHECKSUM)
    return checksum


def _condition_failed(error: BaseException) -> bool:
    """Whether a request was refused because of its condition; 404 is the answer of some stores.

    Of an answer without a body, or whose body was cut on its way, boto knows the status alone.
    """
    return _status_of(error) == 412 or _code_of(error) in ("NoSuchKey", "404")


def client(endpoint: str | None) -> Any:
    """This process's boto3 client for a store, made when it is first used; threads share it.

    Raises UsageError if the endpoint is not a URL.
    """
    key = (os.getpid(), endpoint)
    with _making:
        if key not in _clients:
            _clients[key] = _new_client(endpoint)
        return _clients[key]


def _new_client(endpoint: str | None) -> Any:
    refuse_secrets_in_endpoint(endpoint, "AWS_ENDPOINT_URL")
    import boto3
    from botocore.config import Config

    config = Config(
        signature_version="s3v4",
        max_pool_connections=_CONNECTIONS,
        # `_retried` does this, for transfers too.
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Our uploads carry a CRC-32C. Boto's own checksum would be a second one, in a form that
        # not every store understands.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        return boto3.session.Session().client("s3", endpoint_url=endpoint, config=config)
    except ValueError as error:
        raise UsageError(
            f"{endpoint}: is not the URL of a store. Give one such as https://host:9000, by "
            "--s3_endpoint or AWS_ENDPOINT_URL."
        ) from error


def _part_of_answer(error: BaseException, part: str, field: str) -> Any:
    answer: dict[str, Any] = getattr(error, "response", None) or {}
    return answer.get(part, {}).get(field)


def _status_of(error: BaseException) -> int | None:
    """The status code of a refused request; None for other errors."""
    status: int | None = _part_of_answer(error, "ResponseMetadata", "HTTPStatusCode")
    return status


def _code_of(error: BaseException) -> str:
    """S3's name of an error, such as NoSuchKey; the status code if the response had no body."""
    return str(_part_of_answer(error, "Error", "Code") or "")
