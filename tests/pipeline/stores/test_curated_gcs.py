"""Builds and appends with a recipe and output on gs://: the bytes of a local one, no leftovers."""

from pathlib import Path

import pytest
from support.curated import Steps, curate, made_up_files, write_files, write_recipe
from support.faulty_proxy import CUT_DOWNLOAD, CUT_UPLOAD, LOSE_ANSWER, Proxy
from support.growing import unfinished_append
from support.oracle import files_in, shards_in

from fineshards.cli.cli import main

pytestmark = pytest.mark.cloud

OUTPUT = "gs://data/deep/out"
STEPS: Steps = [("exact", {}), ("symbol_lines", {}), ("lines", {"min_doc_words": 3})]
FILES = made_up_files(10, (20, 14))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The flags of a build."""
    folder = tmp_path_factory.mktemp("input")
    write_files(folder / "in", FILES)
    recipe = write_recipe(folder / "recipe.toml", STEPS)
    flags = ["--shard_tokens=400", "--test_fraction=0.3", "--block_bytes=3000"]
    inputs = [f"--input={folder}/in/0.parquet", f"--input={folder}/in/1.jsonl"]
    return [*inputs, f"--recipe={recipe}", *flags, "--keep_keys"]


@pytest.fixture(scope="module")
def expected(given: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files of a local build, by name. Its shards are those of the oracle."""
    output = tmp_path_factory.mktemp("local") / "out"
    assert main(["build", f"--output={output}", *given]) == 0
    assert shards_in(output) == curate(FILES, STEPS).shards(400, "0.3")
    return files_in(output)


def check(cloud: Proxy, expected: dict[str, bytes]) -> None:
    """The bucket holds the dataset and the two folder objects, and nothing else."""
    found = {
        name.removeprefix("deep/out/"): cloud.content("data", name) for name in cloud.names("data")
    }
    assert found == expected | {"test/": b"", "train/": b""}


def test_a_recipe_on_gs_gives_the_bytes_of_a_local_one(
    cloud: Proxy, given: list[str], expected: dict[str, bytes]
) -> None:
    command = ["build", f"--output={OUTPUT}", *given]
    assert main([*command, "--keep_checkpoints"]) == 0
    kinds = {name.split("/")[-3] for name in cloud.names("data") if "/checkpoints/" in name}
    assert {"judged", "marks", "marked"} <= kinds
    assert main([*command, "--overwrite"]) == 0
    check(cloud, expected)
    assert main(["verify", OUTPUT, "--sample=100%"]) == 0


def test_a_recipe_over_a_failing_network_gives_the_same_bytes(
    cloud: Proxy, given: list[str], expected: dict[str, bytes]
) -> None:
    faults = [
        ("^POST /upload", 503),
        ("^POST /upload", CUT_UPLOAD),
        ("^POST /upload", LOSE_ANSWER),
        ("alt=media", CUT_DOWNLOAD),
        ("^GET", 408),
        ("^DELETE", LOSE_ANSWER),
    ]
    for place, (pattern, fault) in enumerate(faults):
        cloud.fail(pattern, fault, range(2 + place, 1000, 31))
    assert main(["build", f"--output={OUTPUT}", *given]) == 0
    assert sum(rule.hits for rule in cloud.rules) >= 6
    cloud.rules.clear()
    check(cloud, expected)


def test_an_append_that_overwrites_another_leaves_nothing_of_it(
    cloud: Proxy, given: list[str], tmp_path: Path
) -> None:
    """On gs:// no object is overwritten: what is left would be in the way."""
    first, second, *flags = given
    assert main(["build", f"--output={OUTPUT}", first, *flags]) == 0
    (other,) = write_files(tmp_path, [FILES[0][:12]])
    other = other.rename(tmp_path / "other.parquet")
    unfinished_append(OUTPUT, other)
    assert main(["append", OUTPUT, second, "--overwrite"]) == 0
    local = str(tmp_path / "out")
    assert main(["build", f"--output={local}", first, *flags]) == 0
    assert main(["append", local, second]) == 0
    names = ("test/test", "train/train", "metadata/d", "metadata/keys")
    found = {
        name.removeprefix("deep/out/"): cloud.content("data", name) for name in cloud.names("data")
    }
    expected = files_in(Path(local))
    assert {name: found[name] for name in found if name.startswith(names)} == {
        name: expected[name] for name in expected if name.startswith(names)
    }
