"""A proxy in front of an S3 server that lets the network fail where a test wants it to.

Clients sign for the proxy's address, which is passed on. It records all requests.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote_plus, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from support.faulty_proxy import (
    CUT_DOWNLOAD,
    CUT_UPLOAD,
    LOSE_ANSWER,
    Answer,
    Fault,
    Handler,
    Proxy,
    proxy_server,
)
from support.s3_server import KEY_ID, SECRET, boto

_FOLDER = re.compile(rb"<CommonPrefixes><Prefix>(.*?)</Prefix></CommonPrefixes>")


@dataclass
class S3Proxy(Proxy):
    """A running proxy.

    ignored: headers that are removed from requests, as if the server did not know them.
    codes: S3's names of injected status codes.
    """

    scheme: ClassVar[str] = "s3"
    upload: ClassVar[str] = "^PUT (?!.*/unfinished/probe)"
    download: ClassVar[str] = "^GET /data/."
    faults: ClassVar[tuple[tuple[str, Fault], ...]] = (
        *(("^PUT", fault) for fault in (503, 500, CUT_UPLOAD, LOSE_ANSWER)),
        *(("^GET", fault) for fault in (CUT_DOWNLOAD, 503)),
        ("^HEAD", 503),
        ("^DELETE", LOSE_ANSWER),
    )

    ignored: set[str] = field(default_factory=set)
    codes: dict[int, str] = field(
        default_factory=lambda: {
            403: "AccessDenied",
            409: "ConditionalRequestConflict",
            501: "NotImplemented",
            503: "SlowDown",
        }
    )

    @cached_property
    def boto(self) -> Any:
        """A client of the server itself."""
        return boto(f"http://{self.upstream}")

    def metadata(self, bucket: str, name: str) -> dict[str, Any] | None:
        """An object's state, or None if there is no such object."""
        listed = self.boto.list_objects_v2(Bucket=bucket, Prefix=name).get("Contents", ())
        return next((found for found in listed if found["Key"] == name), None)

    def names(self, bucket: str) -> list[str]:
        """The names of all objects in a bucket."""
        pages = self.boto.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return sorted(found["Key"] for page in pages for found in page.get("Contents", ()))

    def content(self, bucket: str, name: str) -> bytes:
        """The bytes of an object."""
        content: bytes = self.boto.get_object(Bucket=bucket, Key=name)["Body"].read()
        return content

    def remove(self, bucket: str, name: str) -> None:
        """Deletes an object, if it is there."""
        self.boto.delete_object(Bucket=bucket, Key=name)

    def clear(self, bucket: str) -> None:
        """Makes an empty bucket. Seaweed deletes one with its content, in a fifth of a second."""
        with suppress(self.boto.exceptions.NoSuchBucket):
            self.boto.delete_bucket(Bucket=bucket)
        self.boto.create_bucket(Bucket=bucket)


class _S3Handler(Handler):
    proxy: S3Proxy

    def _problem(self, status: int, message: str) -> Answer:
        code = self.proxy.codes.get(status, "InternalError")
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        return Answer(status, [("Content-Type", "application/xml")], body)

    def _serve(self, line: str, body: bytes) -> Answer:
        proxy = self.proxy
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        answer = proxy.ask(self.command, self.path, body, self._forwarded_headers())
        if "delimiter" in query:
            self._hide_empty_folders(answer, urlsplit(self.path).path.strip("/"))
        return answer

    def _hide_empty_folders(self, answer: Answer, bucket: str) -> None:
        """Seaweed lists the folders of deleted objects for a while; AWS has no folders."""

        def kept(found: re.Match[bytes]) -> bytes:
            folder = unquote_plus(found[1].decode())  # as boto asks for
            listed = self.proxy.boto.list_objects_v2(Bucket=bucket, Prefix=folder)
            return found[0] if listed.get("Contents") else b""

        answer.body = _FOLDER.sub(kept, answer.body)

    def _forwarded_headers(self) -> dict[str, str]:
        # The proxy has asked for the body already.
        headers = {name: value for name, value in self.headers.items() if name != "Expect"}
        if not self.proxy.ignored & {name.lower() for name in headers}:
            return headers
        # Signatures cover all headers, so the request is signed again.
        signed = {
            name: value
            for name, value in headers.items()
            if name.lower() not in {*self.proxy.ignored, "authorization", "x-amz-date"}
        }
        url = f"http://{self.headers['Host']}{self.path}"
        request = AWSRequest(self.command, url, headers=signed)
        request.context["payload_signing_enabled"] = False
        S3SigV4Auth(Credentials(KEY_ID, SECRET), "s3", "us-east-1").add_auth(request)
        return dict(request.headers.items())


@contextmanager
def faulty_s3(server: str, *buckets: str) -> Iterator[S3Proxy]:
    """Runs a proxy in front of a server; these buckets are made, or emptied."""
    with proxy_server(_S3Handler) as (handler, address):
        proxy = S3Proxy(address, server.removeprefix("http://"))
        handler.proxy = proxy
        for bucket in buckets:
            proxy.clear(bucket)
        yield proxy
