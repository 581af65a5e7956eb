"""Requests to S3 and stores like it: the client, retries, and plain error messages.

`boto3` is imported inside functions because that takes a quarter of a second, and only `s3://`
needs it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from fineshards.credentials import refuse_secrets_in_endpoint
from fineshards.errors import UsageError
from fineshards.storage import retries
from fineshards.storage.names import split_url

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

_Result = TypeVar("_Result")


class _Clients:
    """The clients of this process, by endpoint. A client is shared by all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.session: Any = None
        self.by_endpoint: dict[str | None, Any] = {}

    def make(self, endpoint: str | None) -> Any:
        """A new client; the caller holds the lock."""
        refuse_secrets_in_endpoint(endpoint, "AWS_ENDPOINT_URL")
        import boto3
        from botocore.config import Config

        config = Config(
            signature_version="s3v4",
            max_pool_connections=_CONNECTIONS,
            # `retried` does this, for transfers too.
            retries={"total_max_attempts": 1, "mode": "standard"},
            # Our uploads carry a CRC-32C. Boto's own checksum would be a second one, in a form that
            # not every store understands.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        # It holds the credentials, and the descriptions of requests, which take time to read.
        self.session = self.session or boto3.session.Session()
        try:
            return self.session.client("s3", endpoint_url=endpoint, config=config)
        except ValueError as error:
            raise UsageError(
                f"{endpoint}: is not the URL of a store. Give one such as https://host:9000, by "
                "--s3_endpoint or AWS_ENDPOINT_URL."
            ) from error


_clients = _Clients()


def _forget_in_child() -> None:
    global _clients
    _clients = _Clients()


# A fork that used its parent's connections would read the responses to its parent's requests.
os.register_at_fork(after_in_child=_forget_in_child)


def endpoint_of_environment() -> str | None:
    """The URL of the store that the environment names; None for AWS's own."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def client(endpoint: str | None = None) -> Any:
    """This process's boto3 client for a store, made when it is first used.

    endpoint: the store's URL; by default that of the environment. Raises UsageError if it is not a
    URL.
    """
    endpoint = endpoint or endpoint_of_environment()
    with _clients.lock:
        if endpoint not in _clients.by_endpoint:
            _clients.by_endpoint[endpoint] = _clients.make(endpoint)
        return _clients.by_endpoint[endpoint]


def retried(action: Callable[[], _Result]) -> _Result:
    """Runs requests that can be repeated, again after a transient error or a broken connection."""
    return retries.retried(
        action,
        lambda error: 0.0 if _is_transient(error) else None,
        lambda error: f"S3: {said(error)}",
    )


def _is_transient(error: BaseException) -> bool:
    import urllib3.exceptions
    from botocore import exceptions as boto

    if isinstance(error, boto.ClientError):
        return status_of(error) in retries.TRANSIENT_STATUS or code_of(error) in _TRANSIENT_CODES
    broken = (boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError)
    return isinstance(error, (*broken, urllib3.exceptions.HTTPError, ConnectionError))


def status_of(error: BaseException) -> int | None:
    """The status code of a refused request; None for other errors."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def code_of(error: BaseException) -> str:
    """S3's name of an error, such as NoSuchKey; the status code if the response had no body."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def is_about_us(error: BaseException) -> bool:
    """Whether a request was refused because of who sent it, or where to."""
    return code_of(error) in {"NoSuchBucket", *_REFUSED_CREDENTIALS}


def reason_of(error: Exception, what: str, url: str) -> str | None:
    """Why a request failed and what to do; None for an error that is not the store's."""
    from botocore import exceptions as boto

    bucket = split_url(url)[0]
    missing = (
        *(boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError),
        *(boto.NoAuthTokenError, boto.TokenRetrievalError, boto.SSOError),
    )
    if isinstance(error, missing):
        return (
            f"no valid AWS credentials were found ({said(error)}). Set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE after aws configure or aws sso login."
        )
    if _is_transient(error):
        return f"{said(error)}. Run again when the store is reachable."
    if isinstance(error, boto.ClientError):
        code = code_of(error)
        if code in _REFUSED_CREDENTIALS:
            return f"the store refuses the credentials: {said(error)}. Check or renew them."
        if code == "NoSuchBucket":
            return f"there is no bucket {bucket}. Check the name, or create it."
        if status_of(error) == 404:
            return "there is no such object. Check the name."
        if status_of(error) in (401, 403):
            return (
                f"no permission ({status_of(error)}). Ask for the permissions of docs/cloud.md on "
                f"s3://{bucket}. aws sts get-caller-identity shows which account is in use."
            )
        return f"{said(error)}."
    return f"{said(error)}." if isinstance(error, boto.BotoCoreError) else None


def said(error: BaseException) -> str:
    """An error's message on one line, without the final period."""
    text = str(error) or type(error).__name__
    if status_of(error) is not None:
        response: dict[str, Any] = error.response  # type: ignore[attr-defined]
        message = response.get("Error", {}).get("Message", "")
        text = f"{message} ({status_of(error)} {code_of(error)})"
    return " ".join(text.split()).rstrip(".")
