"""Input on s3://: which objects patterns and folders find, and reading one version of each."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from support.faulty_proxy import CUT_DOWNLOAD
from support.oracle import shards_in
from support.patterns import NAMES, matches_as_for_local_files, patterns, write_names
from support.s3_proxy import S3Proxy, faulty_s3
from support.s3_server import client_variables
from support.source_files import find, texts_of

from fineshards.cli.cli import main
from fineshards.errors import InputError, UsageError
from fineshards.sources.files import find_files, open_file

pytestmark = pytest.mark.cloud

Run = Callable[..., subprocess.CompletedProcess[str]]

TEXTS = [f"text number {number}, and some more words" for number in range(3000)]
LINES = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS)


def put(s3: S3Proxy, name: str, content: bytes) -> str:
    """Writes an object past the proxy and returns its URL."""
    s3.boto.put_object(Bucket="data", Key=name, Body=content)
    return f"s3://data/{name}"


@pytest.fixture(scope="module")
def same(s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same file names in a local folder and in a bucket."""
    folder = write_names(tmp_path_factory.mktemp("same"))
    with faulty_s3(s3_server, "same") as proxy, pytest.MonkeyPatch.context() as environment:
        for name in NAMES:
            proxy.boto.put_object(Bucket="same", Key=f"in/{name}", Body=b"")
        for name, value in client_variables(proxy.address).items():
            environment.setenv(name, value)
        yield folder


@settings(max_examples=60)
@given(patterns)
def test_a_pattern_matches_as_for_local_files(same: Path, pattern: str) -> None:
    matches_as_for_local_files("s3://same", same, pattern)


def test_one_listing_describes_all_files(s3: S3Proxy) -> None:
    urls = [put(s3, f"in/{number}.jsonl.gz", b"x" * number) for number in range(1, 4)]
    put(s3, "in/deep/4.jsonl", b"")
    files = find_files(["s3://data/in/*.gz"])
    (listing,) = s3.requests
    assert "prefix=in/&" in f"{listing.line}&"
    assert [(file.path, file.size, file.compression) for file in files] == [
        (url, size, "gzip") for size, url in enumerate(urls, 1)
    ]
    states = [s3.metadata("data", f"in/{number}.jsonl.gz") for number in range(1, 4)]
    assert [file.identity for file in files] == [
        f"etag:{state and state['ETag'].strip(chr(34))}" for state in states
    ]


def test_a_folder_means_all_data_files_below_it(s3: S3Proxy) -> None:
    wanted = [put(s3, f"in/{name}", b"") for name in ("a.jsonl", "b/c.jsonl")]
    put(s3, "in/README.md", b"")
    put(s3, "in/_SUCCESS", b"")
    put(s3, "in2/d.jsonl", b"")
    assert find("s3://data/in") == find("s3://data/in/") == find("s3://data/in/*") == wanted
    assert find("s3://data/i*") == [*wanted, "s3://data/in2/d.jsonl"]


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("s3://data/nothing/*.jsonl", UsageError, r"--input s3://data/nothing/\*\.jsonl: no file"),
        ("s3://nothing/a.jsonl", InputError, "cannot be listed: there is no bucket nothing"),
        ("s3://*/a.jsonl", UsageError, "expected s3://bucket-or-host/folder"),
    ],
)
def test_what_is_not_there_is_one_sentence(
    s3: S3Proxy, url: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        find(url)


def test_unused_columns_are_not_downloaded(s3: S3Proxy, tmp_path: Path) -> None:
    unused = [number.to_bytes(4) * 1000 for number in range(3000)]
    table = pa.table({"a": unused, "text": TEXTS})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=1500, compression="none", use_dictionary=False)
    (file,) = find_files([put(s3, "a.parquet", path.read_bytes())])
    assert texts_of(file) == TEXTS
    assert 100_000 < sum(request.received for request in s3.requests) < 1_000_000 < file.size


@pytest.mark.parametrize("fault", [503, 500, CUT_DOWNLOAD])
def test_what_passes_is_tried_again(s3: S3Proxy, fault: int | str) -> None:
    (file,) = find_files([put(s3, "a.jsonl", LINES)])
    s3.fail(r"GET /data/a\.jsonl", fault, numbers=[1])
    assert texts_of(file) == TEXTS


def test_a_changed_or_deleted_object_is_noticed(s3: S3Proxy) -> None:
    (file,) = find_files([put(s3, "a.jsonl", LINES)])
    put(s3, "a.jsonl", LINES)  # the same content
    assert texts_of(file) == TEXTS
    put(s3, "a.jsonl", LINES.replace(b"words", b"verbs"))
    with pytest.raises(InputError, match=r"s3://data/a\.jsonl changed since the job was launched"):
        texts_of(file)
    with (
        open_file(file) as opened,
        pytest.raises(InputError, match="changed since the job was launched"),
    ):
        opened.read()
    s3.boto.delete_object(Bucket="data", Key="a.jsonl")
    with pytest.raises(InputError, match=r"s3://data/a\.jsonl was deleted since the job was"):
        texts_of(file)


def test_a_build_from_s3_has_the_bytes_of_one_from_a_folder(
    s3: S3Proxy, tmp_path: Path, sample: Path, fineshards: Run
) -> None:
    """And the commands that read its source again."""
    put(s3, "in/a.parquet", sample.read_bytes())
    inputs = {"far": "s3://data/in/*.parquet", "near": str(sample)}
    for output, pattern in inputs.items():
        flags = [f"--input={pattern}", f"--output={tmp_path}/{output}", "--shard_tokens=200000"]
        assert main(["build", *flags]) == 0
    far, near = tmp_path / "far", tmp_path / "near"
    assert shards_in(far) == shards_in(near)
    (far / "train/train_0001.npy").unlink()
    assert main(["repair", str(far)]) == 0
    assert shards_in(far) == shards_in(near)
    appended = put(s3, "b.jsonl", LINES)
    environment = {**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    flags = [f"--input={appended}", f"--s3_endpoint={s3.address}"]
    done = fineshards("append", far, *flags, env=environment)
    assert done.returncode == 0, done.stderr
