"""Shuffled builds with output on gs://: the bytes of a local build, and no leftovers."""

from pathlib import Path

import pytest
from support.faulty_proxy import CUT_DOWNLOAD, LOSE_ANSWER, Proxy
from support.oracle import files_in, oracle_shuffled, read_texts, shards_in

from fineshards.cli.cli import main

pytestmark = pytest.mark.cloud

OUTPUT = "gs://data/deep/out"
FLAGS = [
    *("--shard_tokens=3000", "--test_fraction=0.3", "--block_bytes=1", "--shuffle_seed=7"),
    "--memory_bytes=30k",
]


@pytest.fixture(scope="module")
def expected(small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files of a local build, by name. Its shards are those of the oracle."""
    output = tmp_path_factory.mktemp("local") / "out"
    assert main(["build", f"--input={small}", f"--output={output}", *FLAGS]) == 0
    assert shards_in(output) == oracle_shuffled([read_texts(small)], 7, 3000, fraction="0.3")
    return files_in(output)


def check(cloud: Proxy, expected: dict[str, bytes]) -> None:
    """The bucket holds the dataset and the two folder objects, and nothing else."""
    found = {
        name.removeprefix("deep/out/"): cloud.content("data", name) for name in cloud.names("data")
    }
    assert found == expected | {"test/": b"", "train/": b""}


def test_a_shuffled_build_on_gs_gives_the_bytes_of_a_local_one_and_no_leftovers(
    cloud: Proxy, small: Path, expected: dict[str, bytes]
) -> None:
    command = ["build", f"--input={small}", f"--output={OUTPUT}", *FLAGS]
    assert main([*command, "--keep_checkpoints"]) == 0
    kinds = {name.split("/")[-2] for name in cloud.names("data") if "/checkpoints/" in name}
    assert {"blocks", "buckets"} <= kinds
    assert main([*command, "--overwrite"]) == 0
    check(cloud, expected)
    assert main(["verify", OUTPUT, "--sample=100%"]) == 0


def test_a_shuffled_build_over_a_failing_network_gives_the_same_bytes(
    cloud: Proxy, small: Path, expected: dict[str, bytes]
) -> None:
    faults = [("^POST /upload", LOSE_ANSWER), ("^POST /upload", 503)]
    faults += [("alt=media", CUT_DOWNLOAD), ("^GET", 408)]
    for place, (pattern, fault) in enumerate(faults):
        cloud.fail(pattern, fault, range(2 + place, 1000, 31))
    assert main(["build", f"--input={small}", f"--output={OUTPUT}", *FLAGS]) == 0
    assert sum(rule.hits for rule in cloud.rules) >= 6
    cloud.rules.clear()
    check(cloud, expected)
