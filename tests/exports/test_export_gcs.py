"""Exports from and to stores: the bytes of a local export, whatever the network does."""

from pathlib import Path

import pytest
from support.faulty_proxy import CUT_DOWNLOAD, CUT_UPLOAD, LOSE_ANSWER, Proxy
from support.growing import build, made_up_rows, write_rows
from support.killed_runs import run_until_done
from support.oracle import files_in, shards_in

import fineshards
from fineshards.cli.cli import main
from fineshards.exports.export_job import prepare, write_part
from fineshards.exports.export_options import ExportOptions
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.cloud

DATASET = "gs://data/out"
FLAGS = ["--shard_tokens=300", "--test_fraction=0.2"]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    rows = write_rows(folder / "rows.parquet", made_up_rows(2, 60))
    build(folder / "out", rows, *FLAGS)
    return folder / "out"


def put(local: Path, url: str) -> None:
    """Copies a dataset into a store."""
    storage = open_storage(url)
    for name, content in files_in(local).items():
        storage.write(name, content)


@pytest.fixture
def stored(cloud: Proxy, local: Path) -> Proxy:
    """The dataset on gs://."""
    put(local, DATASET)
    return cloud


def objects(cloud: Proxy, folder: str) -> dict[str, bytes]:
    return {
        name.removeprefix(f"{folder}/"): cloud.content("data", name)
        for name in cloud.names("data")
        if name.startswith(f"{folder}/")
    }


@pytest.mark.parametrize("to", ["megatron", "olmo", "raw"])
def test_an_export_on_gs_has_the_bytes_of_a_local_one(
    stored: Proxy, local: Path, to: str, tmp_path: Path
) -> None:
    fineshards.export(local, tmp_path / "x", to, tokens_per_file=400)
    expected = files_in(tmp_path / "x")
    fineshards.export(DATASET, "gs://data/x", to, tokens_per_file=400)
    assert objects(stored, "x") == expected
    flags = ["--to", to, "--tokens_per_file=400", "--runner=DirectRunner"]
    assert main(["export", DATASET, *flags, "--output=gs://data/beam"]) == 0
    assert objects(stored, "beam") == expected
    for fault in (503, LOSE_ANSWER, CUT_UPLOAD):
        stored.fail("^POST /upload", fault, numbers=(2, 3))
    stored.fail("alt=media", CUT_DOWNLOAD, numbers=(3, 5))
    fineshards.export(DATASET, "gs://data/faults", to, tokens_per_file=400)
    assert objects(stored, "faults") == expected
    assert all(rule.hits for rule in stored.rules)
    assert main(["verify", "gs://data/faults"]) == 0


@pytest.mark.parametrize("to", ["text", "text-jsonl"])
def test_text_in_a_store_survives_kills_and_is_built_again_from_there(
    either: Proxy, local: Path, to: str, tmp_path: Path
) -> None:
    fineshards.export(local, tmp_path / "x", to, columns="url")
    expected = files_in(tmp_path / "x")
    dataset, output = (f"{either.scheme}://data/{name}" for name in ("out", "x"))
    put(local, dataset)

    def look() -> None:
        there = {
            name: content
            for name, content in objects(either, "x").items()
            if not name.startswith("checkpoints/")
        }
        assert there == {name: expected[name] for name in there}

    command = ["export", dataset, f"--to={to}", "--columns=url", f"--output={output}"]
    runs = run_until_done(either, either.upload, 20, command, look)
    assert runs > 2
    assert objects(either, "x") == expected
    assert main(["verify", output]) == 0
    # A damaged object of a part that is not finished is replaced.
    job, _ = prepare(ExportOptions(dataset, f"{output}-damaged", to, columns="url"))
    (damaged,) = write_part(job, job.parts[0]).files
    job.storage.replace(damaged.name, bytes(damaged.bytes), job.storage.version(damaged.name))
    assert main([*command[:-1], f"{command[-1]}-damaged"]) == 0
    assert objects(either, "x-damaged") == expected
    again = f"{either.scheme}://data/again"
    build(again, f"{output}/data", *FLAGS)
    splits = {n: each for n, each in objects(either, "again").items() if n.startswith("t") and each}
    assert splits == shards_in(local)
