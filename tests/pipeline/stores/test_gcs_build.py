"""Builds with output on gs://: the oracle's bytes despite failures, and no leftovers."""

import io
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage as google_storage
from rich.console import Console
from support.faulty_proxy import Proxy
from support.oracle import files_in, oracle_by_text, read_texts, shards_in

from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.errors import OutputError, UsageError
from fineshards.job_status.progress_words import watch
from fineshards.job_status.status import StatusReader
from fineshards.pipeline.launch import Launch, prepare
from fineshards.shards import ledger
from fineshards.shards.job.job import Job
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.cloud

OUTPUT = "gs://data/deep/out"
FLAGS = ["--shard_tokens=3000", "--test_fraction=0.3", "--block_bytes=1"]


@pytest.fixture(scope="module")
def expected(small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files of a local build, by name. Its shards are those of the oracle."""
    output = tmp_path_factory.mktemp("local") / "out"
    assert main(["build", f"--input={small}", f"--output={output}", *FLAGS]) == 0
    shards = oracle_by_text(read_texts(small), shard_tokens=3000, fraction="0.3")
    assert shards_in(output) == shards
    assert len(shards) > 5
    return files_in(output)


def dataset_in(cloud: Proxy, output: str = OUTPUT) -> dict[str, bytes]:
    """The content of all objects in the bucket, by name below the output folder."""
    prefix = output.removeprefix("gs://data/") + "/"
    return {name.removeprefix(prefix): cloud.content("data", name) for name in cloud.names("data")}


def check(cloud: Proxy, expected: dict[str, bytes]) -> None:
    """The bucket holds the dataset and the two folder objects, and nothing else."""
    assert dataset_in(cloud) == expected | {"test/": b"", "train/": b""}


def command(small: Path, *flags: str) -> list[str]:
    return ["build", f"--input={small}", f"--output={OUTPUT}", *FLAGS, *flags]


def test_a_build_that_fails_before_it_finishes_anything_leaves_no_object(
    cloud: Proxy, small: Path
) -> None:
    assert main([*command(small), "--text_column=nope"]) == 1
    assert dataset_in(cloud) == {}


def test_shares_of_a_build_on_gs_give_the_same_bytes(
    cloud: Proxy, small: Path, expected: dict[str, bytes]
) -> None:
    for share in ("1/3", "3/3", "2/3", "2/2", "2/2"):
        assert main(command(small, f"--share={share}")) == 0
    written = cloud.names("data")
    assert any("/train/train_" in name for name in written)
    assert not any(name.endswith("manifest.json") for name in written)
    assert main(command(small)) == 0
    check(cloud, expected)


def test_damaged_records_are_replaced_and_whole_ones_are_not(
    cloud: Proxy, small: Path, expected: dict[str, bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(command(small, "--keep_checkpoints")) == 0
    storage = open_storage(OUTPUT)
    storage.delete("metadata/manifest.json")
    names = sorted(entry.name for entry in storage.entries("checkpoints"))
    kinds = ("plan.json", "/blocks/00000-00000.json", "/files/00000.json", "/train_0001.json")
    victims = [name for name in names if name.endswith(kinds)]
    assert len(victims) == len(kinds)
    for name in victims:
        damaged = storage.read(name)[:-1] + b"-"
        storage.replace(name, damaged, storage.version(name))
    capfd.readouterr()
    assert main(command(small, "--keep_checkpoints")) == 0
    said = capfd.readouterr().err
    assert all(f"{storage.path(name)} is damaged" in said for name in victims), said
    for name in victims:
        _, job, *kind, key = name.removesuffix(".json").split("/")
        with pytest.raises(OutputError, match="already exists with other content"):
            ledger.Ledger(storage, f"checkpoints/{job}").put(
                ledger.Kind("/".join(kind), Any), key, (), "of another launch"
            )
    assert main(command(small)) == 0
    check(cloud, expected)


def launched(small: Path, shard_tokens: int = 3000, overwrite: bool = False) -> Launch:
    """A launch by itself, without the job's work."""
    return prepare(
        BuildConfig(
            input=str(small),
            output=OUTPUT,
            shard_tokens=shard_tokens,
            block_bytes=1,
            overwrite=overwrite,
        )
    )


def test_the_slower_of_two_different_launches_is_told_what_differs(
    cloud: Proxy, small: Path
) -> None:
    # The fifth upload is the job record, after three folders and the vocabulary.
    rule = cloud.fail("^POST /upload", lambda: launched(small, 4000), (5,))
    with pytest.raises(UsageError) as caught:
        launched(small)
    assert rule.hits == 1
    assert str(caught.value) == (
        f"{OUTPUT} was taken by another job while this one was launched: --shard_tokens: was "
        "4000, now 3000. Let one job finish before you start another with the same --output."
    )
    kept = Job.load(open_storage(OUTPUT))
    assert kept is not None
    assert kept.settings.shard_tokens == 4000


@pytest.mark.parametrize(
    "late",
    ["^GET .*prefix=deep/out/train/&", "^GET .*prefix=deep/out/checkp", "^DELETE .*job.json"],
)
@pytest.mark.parametrize("same", [True, False])
def test_a_late_overwrite_deletes_nothing_of_the_job_that_took_the_folder(
    cloud: Proxy, small: Path, late: str, same: bool
) -> None:
    launched(small)
    storage = open_storage(OUTPUT)
    work = ["train/train_0000.npy", "checkpoints/unfinished/x", "metadata/rejected/00000.jsonl"]

    def take_over() -> None:
        launched(small, 4000, overwrite=True)
        for name in work:
            storage.write(name, b"new")

    # The first listing only looks for files of others.
    rule = cloud.fail(late, take_over, (2,) if "prefix" in late else (1,))
    if same:
        assert launched(small, 4000, overwrite=True).job.settings.shard_tokens == 4000
    else:
        with pytest.raises(UsageError, match="was taken by another job while this one was launch"):
            launched(small, 5000, overwrite=True)
    assert rule.hits == 1
    assert [storage.read(name) for name in work] == [b"new"] * 3
    kept = Job.load(storage)
    assert kept is not None
    assert kept.settings.shard_tokens == 4000
    assert storage.size(kept.settings.tokenizer.file)


def test_an_overwrite_that_may_not_delete_fails(cloud: Proxy, small: Path) -> None:
    launched(small)
    cloud.fail("^DELETE", 403, range(1, 100))
    with pytest.raises(OutputError, match=r"cannot be deleted: no permission \(403\)"):
        launched(small, overwrite=True)


def test_the_end_of_a_build_does_not_wait_for_a_stalled_server(cloud: Proxy, small: Path) -> None:
    storage = launched(small).checkpoints.storage
    released, answered = threading.Event(), []

    def stall() -> None:
        released.wait(60)
        answered.append(True)

    # The first one is asked before the work begins.
    rule = cloud.fail("manifest.json", stall, range(2, 1000))
    with watch(StatusReader(storage), Console(file=io.StringIO())):
        while not rule.hits:
            time.sleep(0.01)
    assert answered == []
    released.set()


def test_the_reader_of_the_seed_script_finds_every_shard(
    cloud: Proxy, small: Path, expected: dict[str, bytes]
) -> None:
    """It lists a split by prefix, skips the first object, the folder, and loads the others."""
    output = "gs://data"
    assert main(["build", f"--input={small}", f"--output={output}", *FLAGS]) == 0
    client = google_storage.Client(project="test", credentials=AnonymousCredentials())
    bucket = client.bucket("data")
    for split in ("test", "train"):
        blobs = list(bucket.list_blobs(prefix=split))[1:]
        found = {blob.name: blob.download_as_bytes() for blob in blobs}
        shards = {n: c for n, c in expected.items() if n.startswith(f"{split}/")}
        assert found == shards
    # Also when the prefix ends with a slash.
    assert len(list(bucket.list_blobs(prefix="train/"))[1:]) == len(shards)
    # What it drops is the folder's own object, which any listing of a flat bucket shows.
    first = next(iter(bucket.list_blobs(prefix="train")))
    assert (first.name, first.size) == ("train/", 0)


def test_status_verify_and_inspect_take_few_requests(
    cloud: Proxy, small: Path, expected: dict[str, bytes]
) -> None:
    assert main(command(small, "--keep_checkpoints")) == 0
    shards = sum(name.endswith(".npy") for name in expected)
    for arguments, most in (
        # The manifest, its copy in generations/, and whether there is to be another generation.
        (["status", OUTPUT], 3),
        (["inspect", OUTPUT], 3),
        (["inspect", OUTPUT, "--shard=train/0", "--document=0"], 10),
        # Listings, records, the table of blocks, and what publish may have written; then two
        # requests per document table and two per shard.
        (["verify", OUTPUT], 24 + 4 * shards),
    ):
        cloud.requests.clear()
        assert main(arguments) == 0
        assert len(cloud.requests) <= most, [request.line for request in cloud.requests]


def test_a_finished_job_is_recognized_without_reading_its_blocks(
    cloud: Proxy, small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(command(small, "--keep_checkpoints")) == 0
    cloud.requests.clear()
    assert main(command(small, "--keep_checkpoints")) == 0
    assert "already finished" in capfd.readouterr().out
    assert len(cloud.requests) <= 11
    assert not cloud.count("/blocks")


def fails(capfd: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """Runs a command that must fail with one line of error; returns the line."""
    capfd.readouterr()
    assert main([str(argument) for argument in arguments]) == code
    found = [line for line in capfd.readouterr().err.splitlines() if "fineshards: " in line]
    assert len(found) == 1, found
    assert "Traceback" not in found[0]
    return found[0]


def test_a_missing_bucket_is_named(
    cloud: Proxy, small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["build", f"--input={small}", "--output=gs://nowhere/out"],
        ["status", "gs://nowhere/out"],
        ["verify", "gs://nowhere/out"],
        ["inspect", "gs://nowhere/out"],
    ):
        assert "there is no bucket nowhere. Check the name" in fails(capfd, 1, *arguments)


@pytest.mark.parametrize("pattern", ["", "^POST /upload", "^DELETE"])
def test_a_missing_permission_is_reported_with_the_object_and_the_role(
    cloud: Proxy, small: Path, capfd: pytest.CaptureFixture[str], pattern: str
) -> None:
    cloud.fail(pattern, 403, range(1, 10_000))
    sentence = fails(capfd, 1, *command(small))
    assert sentence.startswith(f"fineshards: {OUTPUT}")
    assert "no permission (403). Ask for the role Storage Object User on gs://data" in sentence


def test_an_unreachable_server_is_reported_after_some_retries(
    cloud: Proxy, small: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr("fineshards.storage.retries.RETRY_SECONDS", 2.0)
    for arguments in (command(small), ["status", OUTPUT]):
        sentence = fails(capfd, 1, *arguments)
        assert OUTPUT in sentence
        assert "Connection refused" in sentence
        assert sentence.endswith("Run again when Cloud Storage is reachable.")


def test_missing_credentials_are_reported_at_once(
    small: Path, tmp_path: Path, fineshards: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    # Hide the machine's own credentials: key file, gcloud, metadata server.
    hidden = {"GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": str(tmp_path), "HOME": str(tmp_path)}
    for arguments in (command(small), ["status", OUTPUT]):
        done = fineshards(*arguments, env=environment)
        assert done.returncode == 1
        assert "no valid Google credentials were found. Run gcloud auth" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_shard_of_another_job_is_an_error_with_both_checksums(
    cloud: Proxy, small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client = google_storage.Client(project="test", credentials=AnonymousCredentials())
    name = "deep/out/train/train_0001.npy"

    def write_first() -> None:
        client.bucket("data").blob(name).upload_from_string(b"not the job's")

    cloud.fail("shards/test_0000.json", write_first)
    sentence = fails(capfd, 1, *command(small))
    assert f"fineshards: gs://data/{name} already exists with other content: it has 13" in sentence
    assert cloud.content("data", name) == b"not the job's"


@pytest.mark.parametrize("name", ["train/notes.txt", "train_old/x", "testing", "checkpoints/m.pt"])
def test_a_foreign_object_among_the_output_is_refused_and_kept(
    cloud: Proxy, small: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    client = google_storage.Client(project="test", credentials=AnonymousCredentials())
    client.bucket("data").blob(f"deep/out/{name}").upload_from_string(b"precious")
    sentence = fails(capfd, 2, *command(small, "--overwrite"))
    assert f"{OUTPUT}/{name.split('/')[0]}" in sentence
    assert dataset_in(cloud) == {name: b"precious"}
