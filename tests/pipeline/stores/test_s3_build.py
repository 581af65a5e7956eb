"""Builds with output on s3://: the bytes of local builds despite failures, and no leftovers."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.faulty_proxy import CUT_DOWNLOAD, CUT_UPLOAD, LOSE_ANSWER
from support.killed_runs import run_until_done
from support.oracle import files_in
from support.process_tree import start
from support.s3_proxy import S3Proxy

from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.pipeline.launch import prepare
from fineshards.storage.base import Storage

pytestmark = pytest.mark.cloud

OUTPUT = "s3://data/deep/out"
FLAGS = ["--shard_tokens=3000", "--test_fraction=0.3", "--block_bytes=1"]


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Path:
    """20 more documents."""
    path = tmp_path_factory.mktemp("more") / "b.parquet"
    pq.write_table(pq.read_table(sample).slice(40, 20), path, row_group_size=5)
    return path


@pytest.fixture(scope="module")
def expected(small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files of a local build, by name."""
    return locally(tmp_path_factory, small)


def locally(folders: pytest.TempPathFactory, source: Path, *flags: str) -> dict[str, bytes]:
    """All files of a local build, by name."""
    output = folders.mktemp("local") / "out"
    assert main(["build", f"--input={source}", f"--output={output}", *FLAGS, *flags]) == 0
    return files_in(output)


def command(source: Path, *flags: str) -> list[str]:
    return ["build", f"--input={source}", f"--output={OUTPUT}", *FLAGS, *flags]


def dataset_in(s3: S3Proxy, begins: tuple[str, ...] = ("",)) -> dict[str, bytes]:
    """The content of the objects in the bucket, by name below the output folder."""
    prefix = OUTPUT.removeprefix("s3://data/") + "/"
    found = {name.removeprefix(prefix): name for name in s3.names("data")}
    return {name: s3.content("data", key) for name, key in found.items() if name.startswith(begins)}


@pytest.mark.parametrize("flags", [[], ["--shuffle_seed=3"]])
def test_a_build_gives_the_bytes_of_a_local_one_and_no_leftovers(
    s3: S3Proxy, small: Path, tmp_path_factory: pytest.TempPathFactory, flags: list[str]
) -> None:
    assert main(command(small, *flags)) == 0
    assert dataset_in(s3) == locally(tmp_path_factory, small, *flags)
    assert main(["verify", OUTPUT, "--sample=100%"]) == 0


FAULTS = [
    ("^PUT", 503),
    ("^PUT", 500),
    ("^PUT", CUT_UPLOAD),
    ("^PUT", LOSE_ANSWER),
    ("^GET", CUT_DOWNLOAD),
    ("^HEAD", 503),
    ("^DELETE", LOSE_ANSWER),
]


def test_a_build_over_a_failing_network_gives_the_same_bytes(
    s3: S3Proxy, small: Path, expected: dict[str, bytes]
) -> None:
    for place, (pattern, fault) in enumerate(FAULTS):
        s3.fail(pattern, fault, range(2 + place, 1000, 41))
    assert main(command(small)) == 0
    assert sum(rule.hits for rule in s3.rules) >= 6
    s3.rules.clear()
    assert dataset_in(s3) == expected


def test_a_build_that_is_killed_repeatedly_ends_with_the_same_bytes(
    s3: S3Proxy, small: Path, expected: dict[str, bytes]
) -> None:
    """Each run is killed at a write request, which the server still carries out."""

    def look() -> None:
        # Others may be deleted just now, by a request of the killed run.
        assert dataset_in(s3, ("test", "train")).items() <= expected.items()

    writes = "^(POST|PUT|DELETE) (?!.*/unfinished/probe)"
    runs = run_until_done(s3, writes, 40, command(small), look)
    assert runs > 1
    assert dataset_in(s3) == expected


def test_two_concurrent_builds_both_succeed(
    s3: S3Proxy, small: Path, expected: dict[str, bytes]
) -> None:
    builds = [start(*command(small)) for _ in range(2)]
    errors = [build.communicate()[1] for build in builds]
    assert [build.returncode for build in builds] == [0, 0], errors
    assert dataset_in(s3) == expected


def test_a_late_overwrite_deletes_nothing_of_the_job_that_took_the_folder(
    s3: S3Proxy, small: Path
) -> None:
    """Also where both jobs' records have the same bytes, and so the same ETag."""

    def launch(overwrite: bool = True) -> Storage:
        config = BuildConfig(input=str(small), output=OUTPUT, block_bytes=1, overwrite=overwrite)
        return prepare(config).checkpoints.storage

    storage = launch(overwrite=False)

    def take_over() -> None:
        launch().write("train/train_0000.npy", b"new")

    rule = s3.fail("^GET .*prefix=deep/out/train/&", take_over, (2,))
    launch()
    assert rule.hits == 1
    assert storage.read("train/train_0000.npy") == b"new"


def test_a_dataset_grows_and_loses_documents_as_a_local_one_does(
    s3: S3Proxy, small: Path, more: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And the commands that read it say the same."""
    local, ids = str(tmp_path / "out"), tmp_path / "ids"
    ids.write_text(pq.read_table(small)["id"][3].as_py() + "\n")
    said = []
    for output in (local, OUTPUT):
        assert main(["build", f"--input={small}", f"--output={output}", *FLAGS]) == 0
        assert main(["append", output, f"--input={more}"]) == 0
        assert main(["redact", output, f"--ids={ids}"]) == 0
        assert main(["verify", output]) == 0
        capfd.readouterr()
        for command in (
            ["status", "--json", output],
            ["inspect", output, "--shard=train/0", "--document=0"],
            ["inspect", "--find", output, f"--id={ids.read_text().strip()}"],
        ):
            assert main(command) == 0
        said.append(capfd.readouterr().out.replace(output, "OUT"))
    assert said[0] == said[1]
    assert dataset_in(s3) == files_in(Path(local))


def test_the_endpoint_can_be_a_flag(
    s3: S3Proxy, small: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert main(command(small, f"--s3_endpoint={s3.address}")) == 0
    assert dataset_in(s3) == expected
