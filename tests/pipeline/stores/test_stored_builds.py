"""Builds of every kind with output in a store: the bytes of local ones, and no leftovers."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.conversations import TEMPLATE, made_up, write
from support.curated import Steps, curate, made_up_files, write_files, write_recipe
from support.faulty_proxy import Proxy
from support.growing import append, build
from support.killed_runs import run_until_done
from support.oracle import files_in, oracle_by_text, oracle_shuffled, read_texts, shards_in
from support.process_tree import start
from support.s3_proxy import S3Proxy

import fineshards
from fineshards import TokenDataset
from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.pipeline.launch import prepare
from fineshards.storage.base import Storage

pytestmark = pytest.mark.cloud

FLAGS = ["--shard_tokens=3000", "--test_fraction=0.3", "--block_bytes=1"]
STEPS: Steps = [("exact", {}), ("symbol_lines", {}), ("lines", {"min_doc_words": 3})]
# Requests that write, without those that only try what a store can do.
WRITES = "^(POST|PUT|DELETE) (?!.*/unfinished/probe)"


def output_on(store: Proxy) -> str:
    return f"{store.scheme}://data/deep/out"


def files_on(store: Proxy) -> dict[str, bytes]:
    """All files of the dataset; there is nothing else in the bucket."""
    assert all(name.startswith("deep/out/") for name in store.names("data"))
    return store.files("data", "deep/out")


@pytest.fixture(scope="module")
def builds(small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The flags of each kind of build, with its input."""
    folder = tmp_path_factory.mktemp("input")
    curated = made_up_files(10, (20, 14))
    write_files(folder / "in", curated)
    recipe = write_recipe(folder / "recipe.toml", STEPS)
    (folder / "chat.jinja").write_text(TEMPLATE)
    write(folder / "chats.parquet", made_up(9, 1))
    shuffle = ["--shuffle_seed=7", "--memory_bytes=30k"]
    return {
        "plain": [f"--input={small}", *FLAGS],
        "shuffled": [f"--input={small}", *FLAGS, *shuffle],
        "recipe": [
            *(f"--input={folder}/in/*", f"--recipe={recipe}", "--keep_keys"),
            *("--shard_tokens=400", "--test_fraction=0.3", "--block_bytes=3000"),
        ],
        "chats": [
            *(f"--input={folder}/chats.parquet", f"--chat_template={folder}/chat.jinja"),
            *("--shard_tokens=901", "--test_fraction=0.3", "--block_bytes=3000"),
        ],
    }


@pytest.fixture(scope="module")
def local(
    builds: dict[str, list[str]], small: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, bytes]]:
    """All files of a local build of a kind. Its shards are those of the oracle."""
    made: dict[str, dict[str, bytes]] = {}
    texts = read_texts(small)

    def files(kind: str) -> dict[str, bytes]:
        if kind not in made:
            output = tmp_path_factory.mktemp("local") / "out"
            assert main(["build", f"--output={output}", *builds[kind]]) == 0
            if kind == "plain":
                assert shards_in(output) == oracle_by_text(texts, shard_tokens=3000, fraction="0.3")
            elif kind == "shuffled":
                assert shards_in(output) == oracle_shuffled([texts], 7, 3000, fraction="0.3")
            elif kind == "recipe":
                curated = curate(made_up_files(10, (20, 14)), STEPS)
                assert shards_in(output) == curated.shards(400, "0.3")
            made[kind] = files_in(output)
        return made[kind]

    return files


@pytest.mark.parametrize("kind", ["plain", "shuffled", "recipe", "chats"])
def test_a_build_over_a_failing_network_gives_the_bytes_of_a_local_one(
    either: Proxy, builds: dict[str, list[str]], local: Callable[[str], dict[str, bytes]], kind: str
) -> None:
    either.fail_often(31)
    assert main(["build", f"--output={output_on(either)}", *builds[kind]]) == 0
    assert sum(rule.hits for rule in either.rules) >= 6
    either.rules.clear()
    assert files_on(either) == local(kind)
    assert main(["verify", output_on(either), "--sample=100%"]) == 0


def test_a_build_that_is_killed_repeatedly_ends_with_the_same_bytes(
    either: Proxy, builds: dict[str, list[str]], local: Callable[[str], dict[str, bytes]]
) -> None:
    """Each run is killed at a write request, which the server still carries out."""

    def look() -> None:
        # Others may be deleted just now, by a request of the killed run.
        visible = {name: each for name, each in files_on(either).items() if name.startswith("t")}
        assert visible.items() <= local("plain").items()

    command = ["build", f"--output={output_on(either)}", *builds["plain"]]
    assert run_until_done(either, WRITES, 17 if either.scheme == "gs" else 40, command, look) > 1
    assert files_on(either) == local("plain")


def test_two_concurrent_builds_both_succeed(
    either: Proxy, builds: dict[str, list[str]], local: Callable[[str], dict[str, bytes]]
) -> None:
    running = [start("build", f"--output={output_on(either)}", *builds["plain"]) for _ in range(2)]
    errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], errors
    assert files_on(either) == local("plain")


@pytest.mark.parametrize("kind", ["plain", "chats"])
def test_a_dataset_grows_and_loses_documents_as_a_local_one_does(
    either: Proxy,
    builds: dict[str, list[str]],
    sample: Path,
    tmp_path: Path,
    kind: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """And the commands that read it say the same."""
    more = tmp_path / "more.parquet"
    if kind == "chats":
        write(more, made_up(9, 2))
    else:
        pq.write_table(pq.read_table(sample).slice(40, 20), more, row_group_size=5)
    local, said = str(tmp_path / "out"), []
    for output in (local, output_on(either)):
        assert main(["build", f"--output={output}", *builds[kind]]) == 0
        assert main(["append", output, f"--input={more}"]) == 0
        capfd.readouterr()
        assert main(["redact", output, "--documents", "4", "12"]) == 0
        assert ("soft delete" in capfd.readouterr().out) == output.startswith("gs:")
        assert main(["verify", output, "--sample=100%"]) == 0
        capfd.readouterr()
        for command in (
            ["status", "--json", output],
            ["inspect", output, "--shard=train/0", "--document=0"],
            ["inspect", "--find", output, "--token=30"],
        ):
            assert main(command) == 0
        said.append(capfd.readouterr().out.replace(output, "OUT"))
    assert said[0] == said[1]
    expected = files_in(Path(local))
    assert any(name.startswith("metadata/masks/") for name in expected) == (kind == "chats")
    assert files_on(either) == expected


def test_appends_and_redactions_that_are_killed_repeatedly_are_finished(
    either: Proxy, builds: dict[str, list[str]], tmp_path: Path
) -> None:
    """Each run is killed at a later write than the one before; the store still carries it out."""
    first, *flags = builds["chats"]
    first, second = first.removeprefix("--input="), write(tmp_path / "b.jsonl", made_up(9, 2))
    output, grown, redacted = output_on(either), tmp_path / "grown", tmp_path / "out"
    build(grown, first, *flags)
    append(grown, second)
    shutil.copytree(grown, redacted)
    fineshards.redact(redacted, documents=[4, 12])

    def look() -> None:
        """Every token, and whether it is learned, is as before the redaction or as after it."""
        latest = TokenDataset(output, sequence_length=1).latest()
        for generation in range(1, min(latest, 2) + 1):
            for split in ("test", "train"):
                found, before, after = (
                    TokenDataset(folder, split, sequence_length=1, generation=generation)
                    for folder in (output, grown, redacted)
                )
                every = np.arange(len(before))
                assert len(found) == len(every)
                for read in ("gather", "loss_mask"):
                    tokens, old, new = (
                        getattr(each, read)(every) for each in (found, before, after)
                    )
                    assert np.all((tokens == old) | (tokens == new))

    build(output, first, *flags)
    assert run_until_done(either, WRITES, 2, ["append", output, "--input", second], look, 5) > 3
    assert files_on(either) == files_in(grown)
    command = ["redact", output, "--documents", "4", "12"]
    assert run_until_done(either, WRITES, 1, command, look, 1) > 5
    assert files_on(either) == files_in(redacted)
    assert fineshards.verify(output, sample="100%").problems == []


def test_a_late_overwrite_deletes_nothing_of_the_job_that_took_the_folder(
    s3: S3Proxy, small: Path
) -> None:
    """Also where both jobs' records have the same bytes, and so the same ETag."""

    def launch(overwrite: bool = True) -> Storage:
        config = BuildConfig(input=str(small), output=output_on(s3), block_bytes=1)
        return prepare(replace(config, overwrite=overwrite)).checkpoints.storage

    storage = launch(overwrite=False)

    def take_over() -> None:
        launch().write("train/train_0000.npy", b"new")

    rule = s3.fail("^GET .*prefix=deep/out/train/&", take_over, (2,))
    launch()
    assert rule.hits == 1
    assert storage.read("train/train_0000.npy") == b"new"


def test_the_endpoint_can_be_a_flag(
    s3: S3Proxy,
    builds: dict[str, list[str]],
    local: Callable[[str], dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    flags = [f"--output={output_on(s3)}", f"--s3_endpoint={s3.address}"]
    assert main(["build", *flags, *builds["plain"]]) == 0
    assert files_on(s3) == local("plain")
