"""Source files that were copied or touched: content decides, and a job goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.faulty_proxy import Proxy
from support.gcs_input import Stored
from support.growing import Row, append, build, made_up_rows, write_rows
from support.kills import kill
from support.oracle import files_in

from fineshards import BatchLoader, TokenDataset
from fineshards.cli.cli import main
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.tables.rejected_rows import Rejected
from fineshards.storage.open import open_storage

FLAGS = ["--shard_tokens=700", "--block_bytes=1", "--test_fraction=0.3"]


def set_times(folder: Path, time: int) -> None:
    """Gives all files below a folder a time, in seconds."""
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (time, time))


@pytest.fixture(name="half")
def _half(tmp_path: Path) -> list[str]:
    """The command of a build that was killed after its first block; its input is below `in`."""
    for number in range(2):
        write_rows(tmp_path / f"in/{number}.parquet", made_up_rows(number, 20))
    set_times(tmp_path / "in", 1)
    flags = [*FLAGS, "--shuffle_seed=3"]
    build(tmp_path / "whole", tmp_path / "in/*", *flags)
    command = ["build", f"--input={tmp_path}/in/*", f"--output={tmp_path}/out", *flags]
    kill("replace:8", *command)
    assert len([*tmp_path.glob("out/checkpoints/*/blocks/*.json")]) == 1
    return command


def replace_text(path: Path, old: str, new: str) -> None:
    """Changes the first text of a file, and neither its size nor the number of rows."""
    content = path.read_bytes()
    assert old.encode() in content
    assert len(old) == len(new)
    path.write_bytes(content.replace(old.encode(), new.encode(), 1))


def test_a_build_goes_on_by_content_and_the_dataset_is_finished(
    half: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_times(tmp_path / "in", 2)
    assert main(half) == 0
    note = f"{tmp_path}/in/0.parquet and 1 other file have another place, time or version"
    assert f"{note}: finished blocks are read again and compared" in capsys.readouterr().err
    whole = files_in(tmp_path / "whole")
    assert files_in(tmp_path / "out") == whole
    assert main(half) == 0
    said = capsys.readouterr().out
    assert said.startswith("already finished, nothing to do: ")
    assert f"{note} and the same size: fineshards verify --sample compares it" in said
    assert main(["verify", str(tmp_path / "out"), "--sample=100%"]) == 0
    assert main(["append", str(tmp_path / "out"), f"--input={tmp_path}/in/*"]) == 0
    assert "nothing new, nothing to do" in capsys.readouterr().out
    more = write_rows(tmp_path / "more.parquet", made_up_rows(5, 9))
    append(tmp_path / "out", more)
    append(tmp_path / "whole", more)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")


@pytest.mark.long
def test_what_was_compared_once_is_not_read_again(half: list[str], tmp_path: Path) -> None:
    """Also if the build is killed again, and if the file gets the time back that it had."""
    set_times(tmp_path / "in", 2)
    kill(5, *half)
    (same,) = tmp_path.glob("out/checkpoints/*/same/*.json")
    kept = same.stat().st_mtime_ns
    kill(3, *half)
    assert same.stat().st_mtime_ns == kept
    set_times(tmp_path / "in", 1)
    assert main(half) == 0
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")


@pytest.mark.long
def test_other_content_of_the_same_size_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": f"document {number:04}"} for number in range(3000)]
    source = write_rows(tmp_path / "in/a.jsonl", rows)
    write_rows(tmp_path / "in/b.jsonl", rows)
    set_times(tmp_path / "in", 1)
    command = ["build", f"--input={tmp_path}/in/*", f"--output={tmp_path}/out"]
    kill("replace:8", *command, *FLAGS)
    replace_text(source, "document 1500", "document I5OO")
    set_times(tmp_path / "in", 2)
    (checkpoints,) = tmp_path.glob("out/checkpoints/*/blocks")
    before = files_in(checkpoints)
    assert before
    capsys.readouterr()
    assert main([*command, *FLAGS]) == 1
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "fineshards: " in each]
    size = source.stat().st_size
    assert line.partition("fineshards: ")[2].startswith(
        f"{source}, block 1 of 1, rows 1,024 to 2,047: another content than when the block was "
        f"finished. The file had {size} bytes and the time 1970-01-01T00:00:01.000000000Z, now "
        f"{size} bytes and the time 1970-01-01T00:00:02.000000000Z. Put the old file back"
    )
    assert files_in(checkpoints) == before
    replace_text(source, "document I5OO", "document 1500")
    assert main([*command, *FLAGS]) == 0
    assert main(["verify", str(tmp_path / "out"), "--sample=100%"]) == 0


@pytest.mark.long
def test_a_file_of_other_blocks_is_refused(
    half: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file that no block was read of, only the size and the blocks are known."""
    path = tmp_path / "in/1.parquet"
    size = path.stat().st_size
    content = write_rows(path, made_up_rows(1, 5)).read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path.write_bytes(content[:footer] + bytes(size - len(content)) + content[footer:])
    assert path.stat().st_size == size
    set_times(tmp_path / "in", 2)
    assert main(half) == 1
    said = capsys.readouterr().err
    assert f"{path} changed since the job was launched: its blocks of rows are other ones" in said


@pytest.mark.long
def test_a_job_of_a_version_without_hashes_resumes_but_not_with_other_times(
    half: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = tmp_path.glob("out/checkpoints/*/blocks/*.json")
    record = json.loads(block.read_text())
    assert len(record.pop("read")["hash"]) == 32
    block.write_text(json.dumps(record))
    for found in tmp_path.glob("out/checkpoints/*/files/*.json"):
        found.write_text(json.dumps(json.loads(found.read_text())["blocks"]))
    set_times(tmp_path / "in", 2)
    assert main(half) == 1
    assert "which recorded no hash of the rows, began the job. Put the" in capsys.readouterr().err
    set_times(tmp_path / "in", 1)
    assert main(half) == 0
    names = ("test", "train", "metadata/documents", "metadata/job.json")
    assert files_in(tmp_path / "out", names) == files_in(tmp_path / "whole", names)
    manifest = json.loads((tmp_path / "out/metadata/manifest.json").read_text())
    assert ["rows_hash" in file for file in manifest["files"]] == [False, True]
    assert main(["verify", str(tmp_path / "out"), "--sample=100%"]) == 0


@pytest.mark.long
@pytest.mark.parametrize("flags", [[], ["--shuffle_seed=3"], ["--dedup=exact"]])
def test_verify_and_repair_name_a_source_that_has_changed(
    tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Even where no document differs: an id, of a row that has no text, is another one."""
    sources = []
    for name in "ab":
        rows: list[Row] = [{"text": f"{name}{n}", "id": f"id{n}"} for n in range(50)]
        rows[20]["text"] = None
        sources.append(write_rows(tmp_path / f"in/{name}.jsonl", rows))
    build(tmp_path / "out", *sources, *FLAGS, *flags)
    set_times(tmp_path / "in", 2)
    assert main(["verify", str(tmp_path / "out"), "--sample=100%"]) == 0
    replace_text(sources[1], "id20", "iD20")
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "out"), "--sample=1%"]) == 1
    changed = f"{sources[1]} has changed since the dataset was built: the hash of its rows is "
    said = capsys.readouterr().out
    assert changed in said
    assert str(sources[0]) not in said
    for shard in (tmp_path / "out/train").iterdir():
        shard.unlink()
    before = files_in(tmp_path / "out")
    assert main(["repair", str(tmp_path / "out")]) == 1
    assert changed in capsys.readouterr().err
    assert files_in(tmp_path / "out") == before
    replace_text(sources[1], "iD20", "id20")
    assert main(["repair", str(tmp_path / "out")]) == 0


@pytest.mark.long
def test_an_object_that_was_written_again_has_the_same_content(
    stored: Stored, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = write_rows(tmp_path / "a.jsonl", made_up_rows(3, 30))
    parquet = write_rows(tmp_path / "b.parquet", made_up_rows(4, 30))

    def put() -> None:
        stored.put("in/a.jsonl", lines)
        stored.put("in/b.parquet", parquet)

    put()
    build(tmp_path / "whole", f"{stored.url}/in/*", *FLAGS)
    command = ["build", f"--input={stored.url}/in/*", f"--output={tmp_path}/out", *FLAGS]
    kill(11, *command)
    put()
    assert main(command) == 0
    assert "a.jsonl and 1 other file have another place, time or version" in capsys.readouterr().err
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")
    put()
    assert main(command) == 0
    assert main(["verify", str(tmp_path / "out"), "--sample=100%"]) == 0
    shutil.rmtree(tmp_path / "out")
    kill(11, *command)
    replace_text(lines, "alpha", "Alpha")
    put()
    capsys.readouterr()
    assert main(command) == 1
    assert re.search(
        r"gs://\S+/in/a\.jsonl, block 1 of 1, rows 0 to 29: another content .* and "
        r"generation:\d+, now \d+ bytes and generation:\d+\.",
        capsys.readouterr().err,
    )


@pytest.mark.cloud
def test_a_build_in_a_store_goes_on_however_often_its_input_is_touched(
    either: Proxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a store no object is replaced unless its version is named."""
    write_rows(tmp_path / "in/a.jsonl", made_up_rows(3, 30))
    bad = tmp_path / "in/b.jsonl"
    output = f"{either.scheme}://data/out"
    command = ["build", f"--input={tmp_path}/in/*", f"--output={output}", *FLAGS]
    for time in (1, 2, 3, 1, 4):
        bad.write_text('{"text": "the last"x\n')
        set_times(tmp_path / "in", time)
        assert main(command) == 1
        said = capsys.readouterr().err
        assert "Fix the row, or raise --max_bad_rows" in said
    bad.write_text('{"text": "the last"}\n')
    set_times(tmp_path / "in", 5)
    assert main(command) == 0
    assert main(["verify", output, "--sample=100%"]) == 0


def elsewhere(half: list[str], tmp_path: Path) -> tuple[Path, list[str]]:
    """Copies the killed build and its input to another folder; returns that, and its command."""
    there = tmp_path / "elsewhere"
    for name in ("in", "out"):
        shutil.copytree(tmp_path / name, there / name)
    return there, [part.replace(str(tmp_path), str(there)) for part in half]


@pytest.mark.long
def test_a_copy_elsewhere_goes_on_and_grows_and_takes_the_state_of_the_original(
    half: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, command = elsewhere(half, tmp_path)
    set_times(there / "in", 7)
    assert main(half) == 0
    assert main(command) == 0
    assert "another place, time or version" in capsys.readouterr().err
    # The record keeps the paths that the job began with, so nothing differs, not even the manifest.
    assert files_in(there / "out", ("",)) == files_in(tmp_path / "out", ("",))

    more = write_rows(tmp_path / "more.parquet", made_up_rows(9, 20))
    shutil.copy(more, there)
    append(tmp_path / "out", more)
    append(there / "out", there / "more.parquet")
    manifests = [Manifest.load_finished(open_storage(str(x / "out"))) for x in (tmp_path, there)]
    assert manifests[0].content_fingerprint == manifests[1].content_fingerprint
    assert manifests[0].fingerprint != manifests[1].fingerprint
    names = ("test", "train")
    assert files_in(there / "out", names) == files_in(tmp_path / "out", names)

    original, copy = (
        BatchLoader(TokenDataset(x / "out", "train", sequence_length=16), batch_size=4, seed=1)
        for x in (tmp_path, there)
    )
    batches = iter(original)
    for _ in range(3):
        next(batches)
    copy.load_state_dict(original.state_dict())
    for _, mine, its in zip(range(100), copy, batches, strict=False):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.long
def test_a_file_elsewhere_is_compared_also_if_it_has_the_same_time(
    half: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files out of an archive may all have one time."""
    there, command = elsewhere(half, tmp_path)
    replace_text(there / "in/0.parquet", "alpha", "omega")
    set_times(there / "in", 1)
    assert main(command) == 1
    said = capsys.readouterr().err
    assert re.search(rf"{there}/in/0\.parquet, block 1 of 2, rows 0 to \d+: another content", said)


@pytest.mark.long
def test_a_finished_dataset_is_not_taken_for_one_of_files_elsewhere(
    half: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing would compare them."""
    assert main(half) == 0
    _, command = elsewhere(half, tmp_path)
    assert main(command) == 2
    assert "holds another job: input file 0: was" in capsys.readouterr().err


def test_rejected_rows_of_a_file_elsewhere_have_the_path_of_the_record(tmp_path: Path) -> None:
    file = SourceFile(0, "/b/a.jsonl", 9, "mtime:1", "jsonl", "none", recorded="/a/a.jsonl")
    rejected = Rejected(file, 1)
    rejected.add([BadRow(7, "", "not JSON")])
    rejected.save(open_storage(str(tmp_path)), Block(0, 0, 1, 0, 0, 0, 9))
    (written,) = tmp_path.glob("metadata/rejected/*")
    assert json.loads(written.read_text())["file"] == "/a/a.jsonl"


def test_files_of_one_name_in_another_order_are_another_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy elsewhere continues a job; the files of the job itself in other places do not."""
    first, second, third = (
        tmp_path / name for name in ("in/z.jsonl", "in/p/a.jsonl", "in/q/a.jsonl")
    )
    write_rows(first, [{"text": "first"}])
    for path in (second, third):
        path.parent.mkdir()
        path.write_text('{"text": "same"x\n')
    set_times(tmp_path / "in", 1)
    output = f"--output={tmp_path}/out"
    assert main(["build", *[f"--input={path}" for path in (first, second, third)], output]) == 1
    capsys.readouterr()
    assert main(["build", *[f"--input={path}" for path in (first, third, second)], output]) == 2
    assert "holds another job" in capsys.readouterr().err
