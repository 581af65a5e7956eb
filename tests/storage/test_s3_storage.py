"""Storage on s3://: which stores are refused, whom it asks, and what it says when that fails."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.faulty_proxy import CUT_DOWNLOAD, LOSE_ANSWER
from support.s3_proxy import S3Proxy
from support.s3_server import client_variables

from fineshards.errors import InputError, OutputError, UsageError
from fineshards.sources.files import find_files
from fineshards.storage.open import open_storage
from fineshards.storage.s3 import S3Storage

pytestmark = pytest.mark.cloud

PROMISE = (
    "s3://data/out cannot be written: the store does not have the checked and conditional writes "
    "that keep two attempts from overwriting each other; "
)
ADVICE = "Use a store that has them, such as Amazon S3, or a local folder."


@pytest.fixture
def storage(s3: S3Proxy) -> S3Storage:
    return S3Storage("s3://data/out")


@pytest.mark.parametrize(
    ("ignored", "why"),
    [
        ("if-none-match", "it ignores If-None-Match of uploads"),
        ("if-match", "it ignores If-Match of uploads"),
        ("x-amz-checksum-crc32c", "it does not compare uploads with their CRC-32C checksums"),
    ],
)
def test_a_store_that_ignores_a_condition_is_refused_before_anything_is_written(
    s3: S3Proxy, storage: S3Storage, ignored: str, why: str
) -> None:
    s3.ignored = {ignored}
    for _ in range(2):
        with pytest.raises(OutputError) as caught:
            storage.write("metadata/job.json", b"content")
        assert str(caught.value) == f"{PROMISE}{why}. {ADVICE}"
    assert s3.names("data") == []


def test_a_store_that_refuses_conditions_is_refused(s3: S3Proxy, storage: S3Storage) -> None:
    s3.fail("^PUT .*probe", 501, range(2, 100))
    with pytest.raises(OutputError) as caught:
        storage.write("metadata/job.json", b"content")
    assert str(caught.value).startswith(f"{PROMISE}it refuses them: injected status 501")
    assert s3.names("data") == []


def test_a_store_is_tried_once_by_the_launch_and_by_none_of_its_workers(
    s3: S3Proxy, storage: S3Storage
) -> None:
    s3.fail("^PUT .*probe", LOSE_ANSWER, (1, 3))
    storage.write("a", b"1")
    made = s3.count("probe")
    storage.write("b", b"1")
    pickle.loads(pickle.dumps(storage)).write("c", b"1")
    assert s3.count("probe") == made > 0
    assert s3.names("data") == ["out/a", "out/b", "out/c"]


def test_the_endpoint_is_pickled_with_the_storage(
    s3: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers elsewhere have no variable of this machine."""
    by_environment, given = (
        S3Storage("s3://data/out"),
        pickle.dumps(open_storage("s3://data/out", s3.address)),
    )
    by_environment.write("a", b"1")
    content = pickle.dumps(by_environment)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert pickle.loads(content).read("a") == b"1"
    assert pickle.loads(given).read("a") == b"1"
    # The one for S3 alone comes first, as everywhere.
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.address)
    assert S3Storage("s3://data/out").read("a") == b"1"


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^minio:9000: is not the URL of a store\. Give one such"):
        open_storage("s3://data/out", "minio:9000").read("a")


def test_a_delete_works_where_conditions_of_deletes_are_refused(
    s3: S3Proxy, storage: S3Storage
) -> None:
    storage.write("a", b"1")
    s3.fail("^DELETE", 501)
    storage.delete("a")
    assert s3.names("data") == []


def test_a_missing_bucket_is_named(s3: S3Proxy) -> None:
    storage = S3Storage("s3://nowhere/out")
    for action in (
        lambda: storage.read("a"),
        lambda: list(storage.entries("")),
        lambda: list(storage.names("")),
        lambda: storage.write("a", b""),
    ):
        with pytest.raises(OutputError, match="there is no bucket nowhere"):
            action()


def test_an_answer_that_is_cut_still_says_that_an_object_is_missing(
    s3: S3Proxy, storage: S3Storage
) -> None:
    rule = s3.fail("^GET /(data|nowhere)/", CUT_DOWNLOAD, range(1, 100))
    assert storage.read_if_there("a") is None
    with pytest.raises(OutputError, match="there is no such object"):
        storage.read("a")
    assert rule.hits == 2


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (
            403,
            "AccessDenied",
            r"no permission \(403\). Ask for the permissions of docs/cloud.md on s3://da",
        ),
        (403, "InvalidAccessKeyId", "the store refuses the credentials: .* Check or renew them"),
        (400, "ExpiredToken", r"the store refuses the credentials: .*\(400 ExpiredToken\)\. Check"),
    ],
)
def test_a_refusal_is_reported_at_once(
    s3: S3Proxy, storage: S3Storage, status: int, code: str, message: str
) -> None:
    """Also where the answer to HEAD has no body that could say why."""
    s3.codes = {status: code}
    s3.fail("", status, range(1, 100))
    for action in (
        lambda: storage.size("a"),
        lambda: find_files(["s3://data/in/a.parquet"]),
        lambda: find_files(["s3://data/in/*.parquet"]),
        lambda: storage.write("a", b"1"),
        lambda: storage.read("a"),
        lambda: list(storage.entries("")),
    ):
        with pytest.raises((OutputError, InputError), match=message):
            action()


def run(program: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


READ = """
from fineshards.errors import OutputError
from fineshards.storage.open import open_storage
try:
    open_storage("s3://data/out").read("a")
except OutputError as error:
    print(error)
"""


def test_missing_and_wrong_credentials_are_reported(s3: S3Proxy, tmp_path: Path) -> None:
    hidden = {name for name in os.environ if name.startswith("AWS_")}
    plain = {name: value for name, value in os.environ.items() if name not in hidden}
    plain |= {"AWS_ENDPOINT_URL": s3.address, "AWS_EC2_METADATA_DISABLED": "true"}
    plain |= {"HOME": str(tmp_path)}
    done = run(READ, plain)
    assert done.stdout.startswith("s3://data/out/a cannot be read: no valid AWS credentials were f")
    assert done.stdout.count("\n") == 1
    done = run(READ, plain | client_variables(s3.address) | {"AWS_SECRET_ACCESS_KEY": "wrong"})
    assert "the store refuses the credentials" in done.stdout
    assert "SignatureDoesNotMatch" in done.stdout
    assert done.stderr == ""


def test_boto_is_imported_for_s3_alone() -> None:
    program = """
import sys
from fineshards.storage.open import open_storage
open_storage(".").size("a")
assert not {"boto3", "botocore"} & set(sys.modules)
"""
    done = run(program, dict(os.environ))
    assert done.returncode == 0, done.stderr


def test_a_forked_process_has_connections_of_its_own(s3: S3Proxy, storage: S3Storage) -> None:
    for number in range(3):
        storage.write(str(number), str(number).encode())
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        found = b"".join(storage.read(str(number)) for number in range(3))
        os.write(writer, found)
        os._exit(0)
    assert [storage.read(str(number)) for number in (2, 1, 0)] == [b"2", b"1", b"0"]
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 100) == b"012"
