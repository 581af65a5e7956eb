"""An import over its life: interrupted, by several workers, grown, repaired, redacted, verified."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.faulty_proxy import Proxy
from support.oracle import EOT, cut, oracle_shuffled, read_texts, shards_in, tokens_of
from support.process_tree import start, wait_until
from support.token_files import (
    made_up,
    stream_of,
    with_eots,
    write_datatrove,
    write_megatron,
    write_with_header,
)

from fineshards.cli.cli import main
from fineshards.verification.verify import verify

FLAGS = ["--tokenizer=cl100k_base", "--shard_tokens=3000"]
END = ["--from=megatron", "--eot_side=end", *FLAGS]


def take(source: Path | str, output: Path | str, *flags: str) -> int:
    """Imports files of Megatron in this process."""
    return main(["import", f"--input={source}", f"--output={output}", *END, *flags])


@pytest.fixture
def bodies() -> list[list[int]]:
    return made_up(5, 60)


@pytest.fixture
def source(bodies: list[list[int]], tmp_path: Path) -> Path:
    return write_megatron(tmp_path / "a", with_eots(bodies, EOT, "end"))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of one stream, whose first two shards are test. Read-only."""
    folder = tmp_path_factory.mktemp("dataset")
    path = write_megatron(folder / "a", with_eots(made_up(5, 120), EOT, "end"))
    assert take(path, folder / "out", "--test_shards=2") == 0
    return folder / "out"


@pytest.mark.kills
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_killed_import_resumes_whatever_the_number_of_workers(
    workers: int, source: Path, bodies: list[list[int]], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    command = ["import", f"--input={source}", f"--output={output}", *END, "--test_shards=1"]
    command += ["--block_bytes=500", f"--workers={workers}"]
    job = start(*command)
    wait_until(lambda: any(output.glob("checkpoints/*/blocks/*.parquet")), job)
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate()
    assert not (output / "metadata/manifest.json").exists()
    again = start(*command)
    _, said = again.communicate()
    assert again.returncode == 0, said
    assert "resuming" in said
    assert shards_in(output) == cut(stream_of(bodies), 3000, 1)
    assert not (output / "checkpoints").exists()


def test_a_shuffled_import_has_the_order_that_a_build_of_these_rows_has(
    sample: Path, tmp_path: Path
) -> None:
    texts = read_texts(sample)[:40]
    assert None not in texts
    documents = with_eots([tokens_of(text) for text in texts], EOT, "end")
    path = write_megatron(tmp_path / "a", documents)
    assert take(path, tmp_path / "out", "--shuffle_seed=3", "--test_shards=2") == 0
    assert shards_in(tmp_path / "out") == oracle_shuffled([texts], 3, 3000, test_shards=2)


def test_a_companion_that_was_touched_is_the_same_and_one_that_changed_stops_an_import(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--test_shards=0", "--block_bytes=500", "--keep_checkpoints"]
    assert take(source, tmp_path / "out", *flags) == 0
    os.utime(source.with_suffix(".idx"), (1, 1))
    assert take(source, tmp_path / "out", *flags) == 0
    assert main(["verify", str(tmp_path / "out"), "--sample=5%"]) == 0
    index = source.with_suffix(".idx")
    index.write_bytes(index.read_bytes() + bytes(8))
    capsys.readouterr()
    assert take(source, tmp_path / "out", *flags) in (1, 2)
    assert "a.idx" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "out"), "--sample=5%"]) == 1
    assert "a.idx has changed since the dataset was built" in capsys.readouterr().out


@pytest.mark.growing
def test_an_import_grows_by_files_of_the_same_layout(
    source: Path, bodies: list[list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, more = tmp_path / "out", made_up(6, 30)
    assert take(source, output, "--test_shards=1") == 0
    added = write_megatron(tmp_path / "b", with_eots(more, EOT, "end"))
    assert main(["append", str(output), f"--input={added}"]) == 0
    assert shards_in(output) == cut(stream_of([*bodies, *more]), 3000, 1)
    assert verify(str(output), sample=100).problems == []
    assert main(["append", str(output), f"--input={added.with_suffix('.idx')}"]) == 0
    assert "nothing new" in capsys.readouterr().out
    write_datatrove(tmp_path / "c", with_eots(more, EOT, "end"))
    assert main(["append", str(output), f"--input={tmp_path}/c.ds"]) == 2
    assert "ends with .bin" in capsys.readouterr().err


@pytest.mark.growing
def test_what_grows_after_test_files_is_train(tmp_path: Path) -> None:
    parts = [made_up(seed, 20) for seed in (1, 2, 3)]
    test, train, more = (
        write_megatron(tmp_path / str(number), with_eots(part, EOT, "end"))
        for number, part in enumerate(parts)
    )
    output = tmp_path / "out"
    assert take(train, output, f"--test_input={test}") == 0
    assert main(["append", str(output), f"--input={more}"]) == 0
    train_stream = stream_of([*parts[1], *parts[2]])
    assert shards_in(output) == cut(stream_of(parts[0]), 3000, 99) | cut(train_stream, 3000, 0)
    assert verify(str(output), sample=100).problems == []


@pytest.mark.growing
def test_lost_shards_are_made_again_from_the_token_files(tmp_path: Path) -> None:
    bodies = made_up(7, 80)
    stream = stream_of(bodies)
    (tmp_path / "files").mkdir()
    for number, at in enumerate(range(0, len(stream), 2000)):
        write_with_header(tmp_path / f"files/{number:02d}.bin", stream[at : at + 2000])
    output = tmp_path / "out"
    named = ["--from=llmc", f"--input={tmp_path}/files", f"--output={output}", *FLAGS]
    assert main(["import", *named, "--test_fraction=0.2", "--block_bytes=3000"]) == 0
    whole = shards_in(output)
    for path in (tmp_path / "files").iterdir():
        os.utime(path, (1, 1))  # as copied back
    (output / "train/train_0000.npy").unlink()
    (output / "metadata/documents/test_0000.parquet").unlink()
    assert main(["repair", str(output)]) == 0
    assert shards_in(output) == whole
    assert verify(str(output)).problems == []


@pytest.mark.growing
def test_redacted_documents_are_refused_when_they_come_back(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert take(source, output, "--test_shards=0") == 0
    table = pq.read_table(output / "metadata/documents/train_0000.parquet").to_pylist()
    number = next(row["document"] for row in table if row["length"] > 3)
    assert main(["redact", str(output), "--documents", str(number)]) == 0
    assert verify(str(output), sample=100).problems == []
    exported = ["export", str(output), "--to=megatron", f"--output={tmp_path}/exported"]
    assert main(exported) == 0
    capsys.readouterr()
    assert take(tmp_path / "exported", tmp_path / "again", "--test_shards=0") == 1
    said = capsys.readouterr().err
    assert f"document {number}: its token 0 is the EOT 100257" in said
    assert "redacted" in said


@pytest.mark.parametrize("kind", ["parquet", "hf-arrow"])
def test_an_import_of_exported_lists_has_the_bytes_of_the_dataset(
    kind: str, dataset: Path, tmp_path: Path
) -> None:
    output, back = dataset, tmp_path / "back"
    exported = [f"--output={tmp_path}/exported", "--split=all"]
    assert main(["export", str(output), f"--to={kind}", *exported]) == 0
    named = [f"--from={kind}", f"--input={tmp_path}/exported", f"--output={back}"]
    assert main(["import", *named, "--eot_side=begin", *FLAGS, "--test_shards=2"]) == 0
    assert shards_in(back) == shards_in(output)
    assert len(shards_in(back)) == 3


def write_texts(path: Path, texts: list[str | None]) -> Path:
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path)
    return path


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda texts: texts, ""),
        (lambda texts: [None, *texts, None], ""),
        (
            lambda texts: [*texts[:7], texts[7] + "!", *texts[8:]],
            "row 7: its text has other tokens",
        ),
        (lambda texts: [texts[1], texts[0], *texts[2:]], "row 0: its text has other tokens than"),
        (lambda texts: texts[:-1], "row 39: the texts of --verify_text end before it"),
        (lambda texts: [*texts, "more"], "row 40: the documents of tokens end before it"),
    ],
)
def test_tokens_are_compared_with_their_texts(
    change: Callable[[list[str]], list[str | None]],
    sentence: str,
    sample: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = read_texts(sample)[:40]
    documents = with_eots([tokens_of(text) for text in texts], EOT, "end")
    path = write_megatron(tmp_path / "a", documents)
    given = write_texts(tmp_path / "texts.parquet", change(texts))
    output = tmp_path / "out"
    status = take(path, output, f"--verify_text={given}", "--test_shards=0")
    assert (status, (output / "train").exists()) == ((1, False) if sentence else (0, True))
    assert sentence in capsys.readouterr().err


def test_a_trial_reads_the_first_documents(
    source: Path, bodies: list[list[int]], tmp_path: Path
) -> None:
    assert take(source, tmp_path / "out", "--limit=25", "--test_shards=1") == 0
    assert shards_in(tmp_path / "out") == cut(stream_of(bodies[:25]), 3000, 1)


def test_leaks_are_counted_by_tokens(tmp_path: Path) -> None:
    test, train = [[1, 2], [3]], [[3], [1], [3], [1, 2, 3]]
    for name, part in (("test", test), ("train", train)):
        write_megatron(tmp_path / name, with_eots(part, EOT, "end"))
    output = tmp_path / "out"
    assert take(tmp_path / "train", output, f"--test_input={tmp_path}/test") == 0
    manifest = json.loads((output / "metadata/manifest.json").read_text())
    assert manifest["leaks"] == {"test_documents": 1, "train_documents": 2}
    flags = [f"--test_input={tmp_path}/test", "--fail_on_leak"]
    assert take(tmp_path / "train", tmp_path / "strict", *flags) == 1


@pytest.mark.cloud
def test_token_files_and_their_companions_may_be_on_gs(
    source: Path, bodies: list[list[int]], cloud: Proxy, tmp_path: Path
) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage as google_storage

    client = google_storage.Client(
        "test", AnonymousCredentials(), client_options={"api_endpoint": cloud.address}
    )
    bucket = client.bucket("data")
    for path in (source, source.with_suffix(".idx")):
        bucket.blob(f"files/{path.name}").upload_from_filename(str(path))
    expected = cut(stream_of(bodies), 3000, 1)
    for number, named in enumerate(
        ["gs://data/files", "gs://data/files/a", "gs://data/files/*.idx"]
    ):
        output = tmp_path / f"out-{number}"
        assert take(named, output, "--test_shards=1", "--block_bytes=2000") == 0
        assert shards_in(output) == expected
    bucket.blob("files/a.idx").delete()
    with pytest.raises(AssertionError):
        assert take("gs://data/files", tmp_path / "missing", "--test_shards=1") == 0


def test_every_id_fits_where_tokens_are_uint16(tmp_path: Path) -> None:
    from support.tokenizer_files import path_of

    bodies = [[1, 2, 3], [], [1999]]
    eot = json.loads(path_of("gpt2").read_text())["added_tokens"][0]["id"]
    write_megatron(tmp_path / "a", with_eots(bodies, eot, "end"), "<u2")
    flags = ["--from=megatron", "--eot_side=end", f"--tokenizer={path_of('gpt2')}", "--dtype=auto"]
    named = [f"--input={tmp_path}/a", f"--output={tmp_path}/out", "--test_shards=0"]
    assert main(["import", *flags, *named]) == 0
    expected = cut(stream_of(bodies, eot), 10**8, 0, "<u2")
    assert shards_in(tmp_path / "out") == expected
    assert np.load(tmp_path / "out/train/train_0000.npy").dtype == np.uint16
