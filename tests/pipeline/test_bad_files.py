"""--max_bad_files: input files that cannot be read are left out as if they were never named."""

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from support.build_here import build_here
from support.growing import content_of, write_rows
from support.kills import crashes_of
from support.oracle import files_in
from support.sentences import refused
from support.web_server import Web

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import InputError, UnavailableError, UsageError
from fineshards.shards.job.job import Job
from fineshards.sources.files import local_state
from fineshards.storage.open import open_storage

OPTIONS: dict[str, Any] = {"shard_tokens": 500, "test_fraction": 0.2}
LIST = "metadata/rejected/files-0001.jsonl"


def texts(seed: int, count: int = 200) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(["alpha", "beta", "Γάμμα", "7"], k=9)) for _ in range(count)]


def lines(seed: int) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts(seed)).encode()


def write_good(folder: Path, *names: str) -> list[Path]:
    """Files that can be read, each with documents of its own."""
    rows = [[{"text": text} for text in texts(seed)] for seed in range(len(names))]
    return [write_rows(folder / name, of) for name, of in zip(names, rows, strict=True)]


def flipped(content: bytes, at: float = 0.5) -> bytes:
    place = int(len(content) * at)
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


def parquet(**options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": texts(9)}), sink, row_group_size=50, **options)
    return sink.getvalue().to_pybytes()


def arrow() -> bytes:
    table, sink = pa.table({"text": texts(9)}), pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def warc() -> bytes:
    """Three records, of which the length of the second is too small."""
    record = (
        "WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Record-ID: <urn:uuid:{}>\r\n"
        "WARC-Target-URI: https://a.example/\r\nWARC-Date: 2026-11-22T00:00:00Z\r\n"
        "Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{}\r\n\r\n"
    )
    lengths = enumerate([9, 4, 9])
    return "".join(record.format(n, length, "some text") for n, length in lengths).encode()


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb\n"
    b"size 12345\n"
)
# By its name: the content of a file that cannot be read, and a part of the reason.
DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "footer.parquet": (lambda: parquet()[:-200], "not a readable parquet file"),
    "page.parquet": (lambda: flipped(parquet(compression="zstd")), "cannot be decoded"),
    "empty.parquet": (lambda: b"", "not a readable parquet file"),
    "column.parquet": (
        lambda: parquet().replace(b"text", b"tixt"),
        "has no column 'text'",
    ),
    "cut.jsonl.gz": (lambda: gzip.compress(lines(9))[:-300], "damaged or truncated"),
    "bit.jsonl.gz": (lambda: flipped(gzip.compress(lines(9))), "damaged or truncated"),
    "cut.jsonl.zst": (lambda: zstandard.compress(lines(9))[:-50], "damaged or truncated"),
    "lengths.wet": (warc, "lengths.wet"),
    "cut.arrow": (lambda: arrow()[:-300], "cut.arrow"),
    "name.arrow": (lambda: arrow().replace(b"text", b"t\xb3xt"), "not readable Arrow IPC: 'utf-8'"),
    "pointer.jsonl": (lambda: POINTER, "is a Git LFS pointer"),
    "latin.csv": (lambda: b'text\n"never closed\n' + b"a\n" * 9, "latin.csv"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two files, and the dataset that is built of them."""
    folder = tmp_path_factory.mktemp("good")
    write_good(folder / "in", "a.jsonl", "z.parquet")
    build_here(input=folder / "in", output=folder / "out", **OPTIONS)
    return folder


def without_records(folder: Path) -> dict[str, bytes]:
    """All files of a dataset, but for its records, which say what was left out."""
    records = ("metadata/job.json", "metadata/manifest.json", LIST)
    files = files_in(folder)
    return {
        name: content
        for name, content in files.items()
        if name not in records and not name.startswith("metadata/generations/")
    }


def check(dataset: Path, good: Path, *left_out: tuple[str, str]) -> None:
    """A dataset is that of the good files alone, and lists what was left out, with reasons."""
    assert without_records(dataset) == without_records(good)
    listed = [json.loads(line) for line in (dataset / LIST).read_text().splitlines()]
    assert [file["file"] for file in listed] == [name for name, _ in left_out]
    for (_, reason), file in zip(left_out, listed, strict=True):
        assert reason in file["reason"]
    assert fineshards.verify(dataset, sample="100%").problems == []


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_left_out_whole(tmp_path: Path, good: Path, name: str) -> None:
    shutil.copytree(good / "in", tmp_path / "in")
    content, reason = DAMAGED[name]
    (tmp_path / "in" / name).write_bytes(content())
    options = {"input": tmp_path / "in", "output": tmp_path / "out", **OPTIONS}
    failing = options | {"output": tmp_path / "failed"}
    assert reason in refused(lambda: build_here(**failing), InputError)
    manifest = build_here(**options, max_bad_files=1)
    check(tmp_path / "out", good / "out", (name, reason))
    assert str(tmp_path) not in (tmp_path / "out" / LIST).read_text()
    (of,) = manifest.generations[0].left_out
    assert (of.file.name, of.file.size) == (name, (tmp_path / "in" / name).stat().st_size)
    alone = fineshards.TokenDataset(good / "out", "train", sequence_length=8)
    assert manifest.content_fingerprint != alone.fingerprint
    assert build_here(**options, max_bad_files=1) == manifest


def test_files_that_are_not_there_are_left_out(tmp_path: Path, good: Path) -> None:
    shutil.copytree(good / "in", tmp_path / "in")
    (tmp_path / "in/link.jsonl").symlink_to("nowhere")
    options = {"output": tmp_path / "out", **OPTIONS}
    options["input"] = [tmp_path / "in", tmp_path / "other/gone.jsonl.gz"]
    assert "link.jsonl cannot be read" in refused(lambda: build_here(**options), InputError)
    build_here(**options, max_bad_files=2)
    reasons = ("link.jsonl", "it is a link to nowhere"), ("../other/gone.jsonl.gz", "is not there")
    check(tmp_path / "out", good / "out", *reasons)
    # A pattern that matches nothing, and what may be a folder, are mistakes in the command.
    for wrong in ("gone*.jsonl", "gone"):
        options["input"] = [tmp_path / "in", tmp_path / wrong]
        message = refused(lambda: build_here(**options, max_bad_files=2, overwrite=True))
        assert "no file matches" in message


def test_a_file_that_cannot_be_looked_at_for_a_moment_is_not_left_out(
    tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def fail_once(path: str) -> tuple[int, str]:
        asked.append(path)
        if len(asked) == 1:
            raise UnavailableError(f"{path} cannot be read: Stale file handle.")
        return local_state(path)

    monkeypatch.setattr("fineshards.sources.files.local_state", fail_once)
    options = {"input": good / "in", "output": tmp_path / "out", "max_bad_files": 1, **OPTIONS}
    assert "Stale file handle" in refused(lambda: build_here(**options), UnavailableError)
    assert build_here(**options).generations[0].left_out == ()


def test_a_bad_file_in_the_output_folder_is_not_deleted(tmp_path: Path, good: Path) -> None:
    bad = tmp_path / "out/metadata/rejected/bad.jsonl.gz"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(b"to be mended")
    options = {"input": [good / "in", bad], "output": tmp_path / "out", **OPTIONS}
    message = refused(lambda: build_here(**options, max_bad_files=1, overwrite=True), UsageError)
    assert message.startswith(f"{bad} is input and lies in --output {tmp_path}/out")
    assert bad.exists()


def test_lists_name_no_folder_of_the_machine(tmp_path: Path, good: Path) -> None:
    shutil.copytree(good / "in", tmp_path / "in")
    (tmp_path / "in/link.jsonl").symlink_to("/home/owner/gone.jsonl")
    build_here(input=tmp_path / "in", output=tmp_path / "out", max_bad_files=1, **OPTIONS)
    assert "link.jsonl cannot be read" in (tmp_path / "out" / LIST).read_text()
    np.arange(10, dtype="<u2").tofile(tmp_path / "bad.bin")
    np.arange(1, 11, dtype="<u2").tofile(tmp_path / "ok.ds")
    np.array([10], "<u8").tofile(tmp_path / "ok.ds.index")
    tokens = [tmp_path / "bad.bin", tmp_path / "ok.ds"]
    build_here(input=tokens, output=tmp_path / "tokens", max_bad_files=1)
    assert "bad.idx is missing" in (tmp_path / "tokens" / LIST).read_text()
    for folder in ("out", "tokens"):
        listed = (tmp_path / folder / LIST).read_text()
        assert str(tmp_path) not in listed
        assert "owner" not in listed


def test_a_failure_of_the_place_leaves_nothing_out(tmp_path: Path, good: Path) -> None:
    options = {"output": tmp_path / "out", "max_bad_files": 1, **OPTIONS}
    with Web() as web:
        url = web.put("b.jsonl", lines(9))
        options["input"] = [good / "in", url]
        # Refused from the listing on, and while it is read.
        for faults in ([403] * 9, [None] + [403] * 9):
            web.faults = [*faults]
            message = refused(lambda: build_here(**options), UnavailableError)
            assert message == f"{url} cannot be read: the server refuses access (403)."
            assert not (tmp_path / "out").exists()
        web.faults = []
        changed = [None, lambda: web.put("b.jsonl", lines(8), "02:00:00")]
        web.faults = [*changed]
        message = refused(lambda: build_here(**options), UnavailableError)
        assert message.startswith(f"{url} changed since the job was launched")
        del web.files["/b.jsonl"]
        build_here(**options)
    left_out = json.loads((tmp_path / "out" / LIST).read_text())
    reason = f"{url} cannot be read: there is no such file (404). Check it."
    assert (left_out["file"], left_out["reason"]) == (url, reason)


@pytest.mark.parametrize(
    ("bad", "allowed", "refusing"), [(3, 3, 2), (3, "30%", "29.9%"), (1, "10%", "9%"), (9, 9, 8)]
)
def test_the_limit_is_exact(
    tmp_path: Path, bad: int, allowed: int | str, refusing: int | str
) -> None:
    for number in range(10):
        content = b"[1" if number < bad else lines(number)
        (tmp_path / f"{number}.jsonl").write_bytes(content)
        if number < bad:
            (tmp_path / f"{number}.jsonl").write_bytes(gzip.compress(content)[:-5])
    options = {"input": tmp_path / "*.jsonl", "output": tmp_path / "out", **OPTIONS}
    message = refused(lambda: build_here(**options, max_bad_files=refusing), InputError)
    assert message.startswith(f"{bad} of 10 input files cannot be read, and --max_bad_files allows")
    assert f"allows {refusing}: {tmp_path}/0.jsonl" in message
    assert message.count(str(tmp_path)) == min(bad, 3)
    assert not (tmp_path / "out").exists()
    manifest = build_here(**options, max_bad_files=allowed)
    assert [file.name for file in manifest.files] == [f"{n}.jsonl" for n in range(bad, 10)]


def test_some_file_must_be_left(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(POINTER)
    options = {"input": tmp_path / "a.jsonl", "output": tmp_path / "out", "max_bad_files": "100%"}
    message = refused(lambda: build_here(**options), InputError)
    assert message.startswith("1 of 1 input file cannot be read, so none is left: ")
    assert not (tmp_path / "out").exists()


def test_without_bad_files_it_is_the_same_job(tmp_path: Path) -> None:
    write_good(tmp_path / "in", "a.jsonl", "b.parquet")
    options = {"input": tmp_path / "in", "output": tmp_path / "out", **OPTIONS}
    manifest = build_here(**options, max_bad_files=2)
    assert not (tmp_path / "out/metadata/rejected").exists()
    for limit in (0, 3):
        assert build_here(**options, max_bad_files=limit) == manifest
    assert fineshards.verify(tmp_path / "out").problems == []


def write_unseen(path: Path, content: bytes) -> None:
    """Changes a file, but neither its size nor its time."""
    state = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_size == state.st_size


def part_of_a_build(folder: Path) -> dict[str, Any]:
    """Tokenizes half of an input of which one file is cut; returns the options of that build."""
    paths = write_good(folder / "in", "a.jsonl", "b.jsonl.gz", "c.jsonl", "d.jsonl")
    paths[1].write_bytes(paths[1].read_bytes()[:-99])
    given = {"input": folder / "in", "output": folder / "out", "max_bad_files": 1, **OPTIONS}
    flags = [f"--{name}={value}" for name, value in given.items()]
    assert main(["build", *flags, "--share=1/2"]) == 0
    return given


def test_what_the_first_launch_left_out_stays_out(tmp_path: Path) -> None:
    options = part_of_a_build(tmp_path)
    bad = tmp_path / "in/b.jsonl.gz"
    message = refused(lambda: build_here(**options | {"max_bad_files": 0}))
    assert "number of files left out by --max_bad_files: was 1, now 0" in message
    # Files that go bad later are the usual error, although nothing else of them has changed.
    good = {tmp_path / "in" / name: lines(n) for n, name in ((2, "c.jsonl"), (3, "d.jsonl"))}
    for path, content in good.items():
        write_unseen(path, b"PAR1" + content[4:])
    assert ".jsonl: is a Parquet file" in refused(lambda: build_here(**options), InputError)
    for path, content in good.items():
        write_unseen(path, content)
    # So is one that is mended, or touched.
    content = bad.read_bytes()
    bad.write_bytes(gzip.compress(lines(1)))
    message = refused(lambda: build_here(**options, trust_input=True))
    assert "b.jsonl.gz changed: it had" in message
    bad.write_bytes(content)
    message = refused(lambda: build_here(**options))
    assert message.startswith("b.jsonl.gz is not the file that the job began with")
    manifest = build_here(**options, trust_input=True)
    assert [file.name for file in manifest.files] == ["a.jsonl", "c.jsonl", "d.jsonl"]
    assert fineshards.verify(tmp_path / "out", sample="100%").problems == []


def test_it_resumes_where_its_input_is_now(tmp_path: Path) -> None:
    options = part_of_a_build(tmp_path)
    (tmp_path / "in").rename(tmp_path / "now")
    manifest = build_here(**options, sources=f"{tmp_path}/in={tmp_path}/now")
    assert [file.name for file in manifest.files] == ["a.jsonl", "c.jsonl", "d.jsonl"]


def test_it_resumes_where_its_input_is_now_at_another_depth_than_what_it_left_out(
    tmp_path: Path,
) -> None:
    write_good(tmp_path / "in", "a.jsonl", "c.jsonl")
    cut = write_good(tmp_path / "other", "b.jsonl.gz")[0]
    cut.write_bytes(cut.read_bytes()[:-99])
    inputs = [tmp_path / "in", cut]
    options = {"input": inputs, "output": tmp_path / "out", "max_bad_files": 1, **OPTIONS}
    manifest = build_here(**options)
    (tmp_path / "now").mkdir()
    (tmp_path / "in").rename(tmp_path / "now/deep")
    assert build_here(**options, sources=f"{tmp_path}/in={tmp_path}/now/deep") == manifest


@pytest.mark.kills
def test_a_build_killed_before_any_file_operation(tmp_path: Path) -> None:
    paths = write_good(tmp_path / "in", "a.jsonl", "b.jsonl.gz", "c.jsonl")
    paths[1].write_bytes(paths[1].read_bytes()[:-99])
    flags = [f"--{name}={value}" for name, value in OPTIONS.items()]
    flags += [f"--input={tmp_path}/in", "--max_bad_files=1"]
    assert main(["build", f"--output={tmp_path}/after", *flags]) == 0
    crashes = crashes_of(tmp_path, ["build", "--output=OUT", *flags], 0, 5)
    assert len(crashes) > 3
    for crash in crashes:
        assert crash["status"] == 0, crash
        assert files_in(Path(crash["folder"])) == files_in(tmp_path / "after")


def test_an_append_leaves_files_out_and_may_add_them_later(tmp_path: Path) -> None:
    first, second, cut, third = write_good(
        tmp_path / "in", "a.jsonl", "b.jsonl", "c.jsonl.gz", "d.jsonl"
    )
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-99])
    both = tmp_path / "both"
    build_here(input=[first, tmp_path / "in/gone.jsonl"], output=both, max_bad_files=1, **OPTIONS)
    more = {"input": [second, cut, third], "output": both, "append": True}
    assert "c.jsonl.gz" in refused(lambda: build_here(**more), InputError)
    manifest = build_here(**more, max_bad_files=1, overwrite=True)
    assert build_here(**more, max_bad_files=1) == manifest
    left_out = [[of.file.name for of in made.left_out] for made in manifest.generations]
    assert left_out == [["gone.jsonl"], ["c.jsonl.gz"]]
    names = sorted(path.name for path in (both / "metadata/rejected").iterdir())
    assert names == ["files-0001.jsonl", "files-0002.jsonl"]
    cut.write_bytes(whole)
    build_here(input=cut, output=both, append=True)
    assert fineshards.verify(both, sample="100%").problems == []
    alone = tmp_path / "alone"
    build_here(input=first, output=alone, **OPTIONS)
    for paths in ([second, third], [cut]):
        build_here(input=paths, output=alone, append=True)
    grown, expected = content_of(both), content_of(alone)
    assert {k: v for k, v in grown.items() if "rejected" not in k} == expected
    job = Job.load(open_storage(str(both)), 3)
    assert job is not None
    assert [file.name for file in job.left_out] == ["gone.jsonl", "c.jsonl.gz"]


def test_files_of_the_same_names_elsewhere_are_read(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write_good(tmp_path / folder, "a.jsonl", "b.jsonl.gz")
    cut = tmp_path / "one/b.jsonl.gz"
    cut.write_bytes(cut.read_bytes()[:-99])
    options = {"output": tmp_path / "out", "max_bad_files": 1}
    build_here(input=tmp_path / "one", **options, **OPTIONS)
    manifest = build_here(input=tmp_path / "two", append=True, **options)
    assert [len(made.left_out) for made in manifest.generations] == [1, 0]
    assert [file.name for file in manifest.files] == ["a.jsonl", "two/a.jsonl", "two/b.jsonl.gz"]


def test_lists_are_repaired(tmp_path: Path) -> None:
    paths = write_good(tmp_path / "in", "a.jsonl", "b.jsonl.gz")
    paths[1].write_bytes(paths[1].read_bytes()[:-99])
    build_here(input=tmp_path / "in", output=tmp_path / "out", max_bad_files=1, **OPTIONS)
    content = (tmp_path / "out" / LIST).read_bytes()
    for damaged in (content + b"{}\n", None):
        (tmp_path / "out" / LIST).unlink()
        if damaged:
            (tmp_path / "out" / LIST).write_bytes(damaged)
        (problem,) = fineshards.verify(tmp_path / "out").problems
        assert LIST in problem
        fineshards.repair(tmp_path / "out")
        assert (tmp_path / "out" / LIST).read_bytes() == content


def test_test_files_recipes_and_limits_see_the_good_files_alone(tmp_path: Path) -> None:
    cut = write_good(tmp_path / "bad", "b.jsonl.gz")[0]
    cut.write_bytes(cut.read_bytes()[:-99])
    train, more, test = write_good(tmp_path / "in", "a.jsonl", "c.jsonl", "d.jsonl")
    options = {"shard_tokens": 500, "dedup": "exact", "limit": 150}
    build_here(input=[train, more], test_input=test, output=tmp_path / "alone", **options)
    manifest = build_here(
        input=[train, cut, more],
        test_input=[tmp_path / "in/gone.parquet", test],
        output=tmp_path / "out",
        max_bad_files=2,
        **options,
    )
    assert without_records(tmp_path / "out") == without_records(tmp_path / "alone")
    left_out = manifest.generations[0].left_out
    assert [(of.file.name, of.file.test) for of in left_out] == [
        ("gone.parquet", True),
        ("../bad/b.jsonl.gz", False),
    ]


@pytest.mark.parametrize("value", ["-1", "101%", "some", "0.5"])
def test_wrong_limits_are_refused(tmp_path: Path, value: str) -> None:
    options = {"input": tmp_path, "output": tmp_path / "out", "max_bad_files": value}
    with pytest.raises(UsageError, match="--max_bad_files must be"):
        build_here(**options)
