"""s3:// on MinIO, which refuses conditions of deletes."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.engine_downloads import MissingError
from support.s3_proxy import S3Proxy, faulty_s3
from support.s3_server import client_variables, minio_server

from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.storage.s3 import S3Storage

pytestmark = pytest.mark.engines

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
