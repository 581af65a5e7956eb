"""s3:// on MinIO, which refuses copies into uploads with checksums, and conditions of deletes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pyarrow.parquet as pq
import pytest
from support.engine_downloads import MissingError
from support.s3_proxy import S3Proxy, faulty_s3
from support.s3_server import client_variables, minio_server

from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.storage.base import FileRange
from fineshards.storage.s3 import S3Storage

pytestmark = pytest.mark.engines

MIB = 1 << 20
NAME = "train/train_0000.npy"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    try:
        with minio_server() as server, faulty_s3(server, "data") as proxy:
            for name, value in client_variables(proxy.address).items():
                monkeypatch.setenv(name, value)
            yield proxy
    except MissingError as error:
        pytest.skip(str(error))


def test_files_are_written_once_replaced_and_deleted(s3: S3Proxy) -> None:
    storage = S3Storage("s3://data/out")
    storage.write(NAME, b"first")
    storage.write(NAME, b"first")
    with pytest.raises(OutputError, match="already exists with other content"):
        storage.write(NAME, b"other")
    version = storage.version(NAME)
    storage.replace(NAME, b"longer", version)
    storage.replace(NAME, b"longer", version)
    with pytest.raises(OutputError, match="already exists with other content"):
        storage.replace(NAME, b"other", version)
    assert storage.read(NAME) == b"longer"
    storage.delete(NAME)
    with pytest.raises(OutputError, match="was deleted while it was written"):
        storage.replace(NAME, b"other", version)
    storage.write("train/other", b"")
    storage.delete_folder("train")
    assert s3.names("data") == []


def test_whole_blocks_are_copied_and_proven_by_their_md5(s3: S3Proxy) -> None:
    storage = S3Storage("s3://data/out")
    blocks = [random.Random(number).randbytes(6 * MIB) for number in range(4)]
    for number, block in enumerate(blocks):
        storage.write(f"blocks/{number}", block)
    parts = [FileRange(f"blocks/{number}", 0, 6 * MIB) for number in range(4)]
    header = b"h" * 128
    expected = header + b"".join(blocks)
    storage.compose("train/train_0000.npy", header, parts)
    s3.requests.clear()
    assert storage.compose("train/train_0001.npy", header, parts) == google_crc32c.value(expected)
    for number in range(2):
        assert s3.content("data", f"out/train/train_000{number}.npy") == expected
    # The first block goes through the worker, with the header.
    assert [r.sent for r in s3.requests if "partNumber" in r.line and r.sent] == [6 * MIB + 128]
    assert len([r for r in s3.requests if "partNumber" in r.line and not r.sent]) == 3
    assert s3.uploads("data") == []
    found = storage.find("train/train_0001.npy")
    assert found is not None
    assert found.crc32c is not None
    # A copy of other bytes is noticed, and the file sent.
    s3.damaged = "out/blocks/2"
    storage.compose("train/train_0002.npy", header, parts)
    assert s3.content("data", "out/train/train_0002.npy") == expected
    assert s3.uploads("data") == []


def test_a_build_gives_the_bytes_of_a_local_one(s3: S3Proxy, sample: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.parquet"
    pq.write_table(pq.read_table(sample).slice(0, 60), source, row_group_size=5)
    flags = [f"--input={source}", "--shard_tokens=3000", "--test_fraction=0.3", "--block_bytes=1"]
    for output in (str(tmp_path / "out"), "s3://data/out"):
        assert main(["build", f"--output={output}", *flags]) == 0
        assert main(["verify", output]) == 0
    found = (path for path in tmp_path.glob("out/**/*") if path.is_file())
    expected = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in found}
    assert {name: s3.content("data", name) for name in s3.names("data")} == expected
