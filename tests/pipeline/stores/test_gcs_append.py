"""Datasets that grow on gs://: the bytes of local appends, whole generations, no leftovers."""

import shutil
from pathlib import Path

import pytest
from support.faulty_proxy import Proxy
from support.growing import (
    append,
    build,
    made_up_rows,
    published_files,
    tokens_in,
    unfinished_append,
    write_parts,
)

import fineshards
from fineshards import TokenDataset
from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.errors import UsageError
from fineshards.pipeline.append import prepare_append
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.cloud

OUTPUT = "gs://data/deep/out"
FLAGS = ["--shard_tokens=700", "--test_fraction=0.4", "--block_bytes=1"]
ROWS = made_up_rows(4, 66)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three files."""
    return write_parts(tmp_path_factory.mktemp("parts"), ROWS, 22)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, parts: list[Path]) -> list[Path]:
    """Local datasets of the first file, and with the second and the third appended."""
    folder = tmp_path_factory.mktemp("local")
    build(folder / "1", parts[0], *FLAGS)
    for number in (2, 3):
        shutil.copytree(folder / str(number - 1), folder / str(number))
        append(folder / str(number), parts[number - 1])
    return [folder / str(number) for number in (1, 2, 3)]


def content_in(cloud: Proxy) -> dict[str, bytes]:
    """As `published_files`."""
    names = {name.removeprefix("deep/out/"): name for name in cloud.names("data")}
    parts = ("test/test_", "train/train_", "metadata/documents/", "metadata/rejected/")
    return {
        short: cloud.content("data", name)
        for short, name in names.items()
        if short.startswith(parts)
    }


def records_in(cloud: Proxy) -> set[str]:
    names = {name.removeprefix("deep/out/") for name in cloud.names("data")}
    return names - set(content_in(cloud)) - {"test/", "train/"}


_NAMES = ("blocks.parquet", "job.json", "manifest.json", "vocabulary.tiktoken")
FIRST = {f"metadata/{name}" for name in _NAMES}


def records(generations: int) -> set[str]:
    """The other files of a dataset of some generations."""
    folder = "metadata/generations"
    made = {f"{folder}/{number:04d}.json" for number in range(1, generations + 1)}
    for ending in ("job.json", "blocks.parquet"):
        made |= {f"{folder}/{number:04d}.{ending}" for number in range(2, generations + 1)}
    return FIRST | made


def check_readers(local: list[Path]) -> int:
    """Every generation is whole; returns the number of the latest."""
    latest = Manifest.load_finished(open_storage(OUTPUT)).generation
    for number in range(1, latest + 1):
        for split in ("test", "train"):
            here, there = (
                TokenDataset(folder, split, sequence_length=1, generation=generation)
                for folder, generation in ((OUTPUT, number), (str(local[number - 1]), None))
            )
            assert tokens_in(here) == tokens_in(there)
        assert fineshards.verify(OUTPUT, generation=number).problems == []
    return latest


def test_appends_on_gs_give_the_bytes_of_local_ones(
    cloud: Proxy, parts: list[Path], local: list[Path]
) -> None:
    build(OUTPUT, parts[0], *FLAGS)
    for number in (2, 3):
        append(OUTPUT, parts[number - 1])
        assert content_in(cloud) == published_files(local[number - 1])
        assert records_in(cloud) == records(number)
    assert check_readers(local) == 3
    append(OUTPUT, *parts[:2])
    assert records_in(cloud) == records(3)


def test_an_append_over_a_failing_network(
    cloud: Proxy, parts: list[Path], local: list[Path]
) -> None:
    build(OUTPUT, parts[0], *FLAGS)
    cloud.fail_often(13)
    append(OUTPUT, parts[1])
    assert sum(rule.hits for rule in cloud.rules) >= 6
    cloud.rules.clear()
    assert content_in(cloud) == published_files(local[1])
    assert records_in(cloud) == records(2)
    assert check_readers(local) == 2


def test_two_appends_of_different_files_at_once(cloud: Proxy, parts: list[Path]) -> None:
    build(OUTPUT, parts[0], *FLAGS)
    config = BuildConfig(output=OUTPUT, input=str(parts[1]), append=True)
    # Between the look at the record and the claim of it the other one is launched, and finishes.
    cloud.fail("^POST /upload.*", lambda: append(OUTPUT, parts[2]), (1,))
    with pytest.raises(UsageError) as caught:
        prepare_append(config)
    assert str(caught.value) == (
        f"another append to {OUTPUT} was launched at the same time, and was faster: input file 1: "
        f"was {parts[2].name}, now {parts[1].name}. Run this one again when that one is done."
    )
    assert fineshards.verify(OUTPUT, sample=100).problems == []
    assert records_in(cloud) == records(2)


def test_an_unfinished_append_is_discarded_by_overwrite_only(
    cloud: Proxy, parts: list[Path], local: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    build(OUTPUT, parts[0], *FLAGS)
    unfinished_append(OUTPUT, parts[2])
    assert fineshards.verify(OUTPUT).problems == []
    before = content_in(cloud)
    assert main(["append", OUTPUT, f"--input={parts[1]}"]) == 2
    assert f"another append to {OUTPUT} is not finished: " in capsys.readouterr().err
    assert content_in(cloud) == before
    append(OUTPUT, parts[1], "--overwrite")
    assert content_in(cloud) == published_files(local[1])
    assert records_in(cloud) == records(2)
    assert check_readers(local) == 2
