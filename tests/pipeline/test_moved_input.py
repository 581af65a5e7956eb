"""Source files that were touched or moved: refused by one sentence, trusted on request."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faulty_proxy import Proxy
from support.gcs_input import Stored
from support.growing import append, build, made_up_rows, write_rows
from support.kills import kill
from support.oracle import files_in

from fineshards import export, repair, verify
from fineshards.cli.cli import main
from fineshards.errors import UsageError
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.roots import below_root, moved
from fineshards.storage.open import open_storage

Run = Callable[..., subprocess.CompletedProcess[str]]
FLAGS = ["--shard_tokens=700", "--block_bytes=1", "--test_fraction=0.3"]
# What does not say where the input is, nor of which time.
CONTENT = ("test", "train", "metadata/documents", "metadata/decisions")


def set_times(folder: Path, time: int) -> None:
    """Gives all files below a folder a time, in seconds."""
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (time, time))


def refused(capsys: pytest.CaptureFixture[str], code: int, *command: object) -> str:
    """Runs a command that is refused; returns the one sentence that it says."""
    capsys.readouterr()
    assert main([*map(str, command)]) == code
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "fineshards: " in each]
    return line.partition("fineshards: ")[2]


def replace_text(path: Path, old: str, new: str) -> None:
    """Changes the first text of a file, and neither its size nor the number of rows."""
    content = path.read_bytes()
    assert old.encode() in content
    assert len(old) == len(new)
    path.write_bytes(content.replace(old.encode(), new.encode(), 1))


@pytest.mark.kills
@pytest.mark.parametrize("flags", [[], ["--shuffle_seed=3"], ["--dedup=exact"]])
def test_an_input_that_moves_all_the_time(
    tmp_path: Path, flags: list[str], fineshards: Run
) -> None:
    """Built until a kill, moved, touched, resumed, verified and repaired by commands of a user."""

    def answer(*command: object) -> str:
        done = fineshards(*command)
        return f"{done.returncode} {done.stdout}{done.stderr}"

    for number in range(2):
        write_rows(tmp_path / f"in/{number}.parquet", made_up_rows(number, 20))
    set_times(tmp_path / "in", 1)
    first, then, last = (tmp_path / name for name in ("in", "then", "last"))
    options, out = [*FLAGS, "--workers=2", *flags], tmp_path / "out"
    build(tmp_path / "whole", first / "*", *FLAGS, *flags)
    whole = files_in(tmp_path / "whole", CONTENT)
    kill("replace:9", "build", f"--input={first}/*", f"--output={out}", *FLAGS, *flags)
    assert [*tmp_path.glob("out/checkpoints/*/*")]

    first.rename(then)
    set_times(then, 2)
    command = ["build", f"--input={then}/*", f"--output={out}", *options]
    said = answer(*command)
    assert f"{then}/0.parquet is not the file that the job began with, which was {first}" in said
    assert "00:00:01.000000000Z, this one has" in said
    assert "00:00:02.000000000Z. Give --trust_input" in said
    assert answer(*command, "--trust_input").startswith("0 finished")
    assert files_in(out, CONTENT) == whole
    manifest = Manifest.load_finished(open_storage(out))
    assert [file.trusted for file in manifest.files] == ["mtime:2000000000"] * 2
    assert manifest.generations[0].root == f"{then}/"
    assert f"  input      {then}/\n" in answer("inspect", out)

    then.rename(last)
    said = answer("verify", out, "--sample=100%")
    assert f"{then}/0.parquet was deleted since the dataset was built" in said
    moves = f"--sources={then}={last}"
    assert answer("verify", out, "--sample=100%", moves).startswith("0 ")
    (out / "train/train_0000.npy").write_bytes(b"")
    said = answer("repair", out)
    assert re.search(r"is not there\. Put it back, or say where it is with --sources OLD=NEW", said)
    assert answer("repair", out, moves).startswith("0 ")
    assert files_in(out, CONTENT) == whole
    # The command of then, with the place of now.
    assert "nothing to do" in answer(*command, "--trust_input", moves)


@pytest.mark.parametrize("flags", [["--trust_input"], ["--sources={0}/in={0}/now"]])
def test_a_finished_dataset_keeps_its_record(tmp_path: Path, flags: list[str]) -> None:
    write_rows(tmp_path / "in/0.jsonl", made_up_rows(0, 20))
    command = ["build", f"--input={tmp_path}/in/*", f"--output={tmp_path}/out", *FLAGS]
    assert main(command) == 0
    before = files_in(tmp_path / "out")
    if "--trust_input" in flags:
        set_times(tmp_path / "in", 2)
    else:
        (tmp_path / "in").rename(tmp_path / "now")
    assert main([*command, *(flag.format(tmp_path) for flag in flags)]) == 0
    assert files_in(tmp_path / "out") == before


def test_other_content_of_the_same_size_is_trusted_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        write_rows(tmp_path / f"in/{number}.jsonl", made_up_rows(number, 60))
    set_times(tmp_path / "in", 1)
    command = ["build", f"--input={tmp_path}/in/*", f"--output={tmp_path}/out", *FLAGS]
    kill("replace:14", *command)
    changed = tmp_path / "in/1.jsonl"
    replace_text(changed, "alpha", "omega")
    set_times(tmp_path / "in", 2)
    before = files_in(tmp_path / "out")
    assert "Give --trust_input if the content is the same" in refused(capsys, 2, *command)
    assert files_in(tmp_path / "out") == before
    changed.write_bytes(changed.read_bytes() + b"\n")
    assert f"{changed} changed: it had" in refused(capsys, 2, *command, "--trust_input")
    changed.rename(tmp_path / "in/2.jsonl")
    said = refused(capsys, 2, *command)
    assert re.search(r"input file 1: was \S*1\.jsonl\S*, now \S*2\.jsonl", said)


def test_what_reads_sources_without_a_proof_asks_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shard proves what repair made, and tokens what verify read; columns and texts do not."""
    rows = [{"text": f"text {n // 2}", "url": f"u{n}"} for n in range(40)]
    source = write_rows(tmp_path / "a=b/in/x.jsonl", rows)
    out = tmp_path / "out"
    build(out, source, *FLAGS, "--dedup=exact")
    source.parent.rename(tmp_path / "now")
    set_times(tmp_path / "now", 5)
    moves = [f"{source.parent}={tmp_path}/now"]
    columns = ["export", out, "--to=text-jsonl", "--columns=url", f"--output={tmp_path}/e"]
    dropped = ["inspect", out, "--dropped", "--document=x.jsonl:1"]
    assert f"{source} was deleted since" in refused(capsys, 1, *columns)
    said = refused(capsys, 1, *columns, "--sources", *moves)
    assert f"{tmp_path}/now/x.jsonl changed since the dataset was built" in said
    assert "If its content is the same, give --trust_input" in said
    assert main([*map(str, dropped), "--sources", *moves]) == 0
    assert "give --trust_input" in capsys.readouterr().out
    assert main([*map(str, dropped), "--sources", *moves, "--trust_input"]) == 0
    assert "text 0" in capsys.readouterr().out
    counts = ["stats", out, "--column=url", "--top=1"]
    assert "give --trust_input" in refused(capsys, 1, *counts, "--sources", *moves)
    assert main([*map(str, counts), "--sources", *moves, "--trust_input"]) == 0
    assert re.search(r"\(none\) +20 ", capsys.readouterr().out)
    assert "go with --column" in refused(capsys, 2, "stats", out, "--sources", *moves)
    done = export(
        out, tmp_path / "e", "text-jsonl", columns=["url"], sources=moves, trust_input=True
    )
    assert done.splits["train"]["documents"] + done.splits["test"]["documents"] == 20
    assert verify(out, sample="100%", sources=moves).ok
    (out / "metadata/documents/train_0000.parquet").unlink()
    assert repair(out, sources=moves).sources == [f"{tmp_path}/now/x.jsonl"]
    with pytest.raises(UsageError, match=rf"above it, which is {tmp_path}/a=b/in/, and NEW is"):
        repair(out, sources=["/other=/else"])
    replace_text(tmp_path / "now/x.jsonl", "text 9", "Text 9")
    problems = verify(out, sample="100%", sources=moves).problems
    assert any("its tokens differ from those of" in problem for problem in problems)
    (out / "train/train_0000.npy").unlink()
    with pytest.raises(Exception, match="made again is not what the manifest says"):
        repair(out, sources=moves)


def test_files_of_one_name_in_several_generations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names are unique in a dataset: the root of a later generation lies higher."""
    for month in ("m1", "m2"):
        write_rows(tmp_path / f"in/{month}/a.jsonl", [{"text": month, "id": month}])
    out = tmp_path / "out"
    build(out, tmp_path / "in/m1/*", *FLAGS)
    append(out, tmp_path / "in/m2/*")
    manifest = Manifest.load_finished(open_storage(out))
    assert [file.name for file in manifest.files] == ["a.jsonl", "m2/a.jsonl"]
    assert [each.root for each in manifest.generations] == [
        f"{tmp_path}/in/m1/",
        f"{tmp_path}/in/",
    ]
    capsys.readouterr()
    for command in (["inspect", "--find", str(out), "--id=m2"], ["inspect", str(out), "--id=m2"]):
        assert main(command) == 0
        assert f"  source  {tmp_path}/in/m2/a.jsonl, row 0\n" in capsys.readouterr().out
    again = ["append", out, f"--input={tmp_path}/in/m2/*"]
    assert main([*map(str, again)]) == 0
    assert "nothing new" in capsys.readouterr().out
    set_times(tmp_path / "in", 3)
    assert "Give --trust_input if the content is the same" in refused(capsys, 2, *again)
    (tmp_path / "in").rename(tmp_path / "now")
    moves = f"--sources={tmp_path}/in={tmp_path}/now"
    assert main([*map(str, again), moves, "--trust_input"]) == 0
    assert "nothing new" in capsys.readouterr().out
    assert verify(out, sample="100%", sources=[moves.partition("=")[2]]).ok


def through_a_pipe(*paths: Path) -> str:
    """A list of input that can be read once, as @<(command) of a shell."""
    read, write = os.pipe()
    os.write(write, "".join(f"{path}\n" for path in paths).encode())
    os.close(write)
    return f"@/dev/fd/{read}"


def test_a_list_may_be_a_pipe(tmp_path: Path) -> None:
    test, train, new, late = (
        write_rows(tmp_path / f"{name}/{name}.jsonl", [{"text": name, "id": name}])
        for name in ("test", "train", "new", "late")
    )
    out, moves = tmp_path / "out", f"--sources={tmp_path}/late={tmp_path}/now"
    flags = ("--test_input", through_a_pipe(test))
    assert main(["build", f"--output={out}", "--input", through_a_pipe(train), *flags]) == 0
    append(out, through_a_pipe(new))
    (tmp_path / "late").rename(tmp_path / "now")
    append(out, through_a_pipe(late), moves)
    files = Manifest.load_finished(open_storage(out)).files
    names = [(os.path.basename(file.name), file.test) for file in files]
    expected = [("test.jsonl", True), ("train.jsonl", False), ("new.jsonl", False)]
    assert names == [*expected, ("late.jsonl", False)]


def test_an_append_goes_on_with_input_that_was_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (
        write_rows(tmp_path / f"{name}/a.parquet", made_up_rows(number, 20))
        for number, name in enumerate("ab")
    )
    build(tmp_path / "out", first, *FLAGS, "--shuffle_seed=3")
    shutil.copytree(tmp_path / "out", tmp_path / "whole")
    append(tmp_path / "whole", second)
    command = ["append", str(tmp_path / "out"), f"--input={second}"]
    kill("replace:9", *command)
    set_times(tmp_path / "b", 2)
    assert "Give --trust_input if the content is the same" in refused(capsys, 2, *command)
    assert main([*command, "--trust_input"]) == 0
    assert files_in(tmp_path / "out", CONTENT) == files_in(tmp_path / "whole", CONTENT)
    assert verify(tmp_path / "out").ok


@pytest.mark.parametrize("name", ["a.jsonl", "lang=en/a.jsonl"])
def test_a_folder_that_input_moves_into_is_no_column(tmp_path: Path, name: str) -> None:
    """Neither for a build that goes on, nor afterwards."""
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True)
    path.write_text(
        "".join(f'{{"text":"{n}","lang":"{"de" if n % 3 else "en"}"}}\n' for n in range(60))
    )
    flags = ["--where=lang = 'en'", "--split_key=column:lang", *FLAGS]
    command = ["build", f"--input={tmp_path}/in", f"--output={tmp_path}/out", *flags]
    shutil.copytree(tmp_path / "in", tmp_path / "copy")
    build(tmp_path / "whole", tmp_path / "copy", *flags)
    kill("replace:9", *command)
    (tmp_path / "in").rename(tmp_path / "lang=de")
    moves = f"--sources={tmp_path}/in={tmp_path}/lang=de"
    assert main([*command, moves]) == 0
    assert files_in(tmp_path / "out", CONTENT) == files_in(tmp_path / "whole", CONTENT)
    (tmp_path / "lang=de").rename(tmp_path / "lang=fr")
    moves = f"--sources={tmp_path}/lang=de={tmp_path}/lang=fr"
    assert main(["verify", str(tmp_path / "out"), "--sample=100%", moves]) == 0


@pytest.mark.long
def test_an_object_that_was_written_again_has_another_version(
    stored: Stored, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = write_rows(tmp_path / "a.jsonl", made_up_rows(3, 30))
    stored.put("in/a.jsonl", lines)
    stored.put("in/b.jsonl", lines)
    command = ["build", f"--input={stored.url}/in/*", f"--output={tmp_path}/out", *FLAGS]
    kill("replace:11", *command)
    stored.put("in/a.jsonl", lines)
    assert re.search(
        r"gs://\S+/in/a\.jsonl: that had \d+ bytes and generation:\d+, this one has \d+ bytes and "
        r"generation:\d+\. Give --trust_input",
        refused(capsys, 2, *command),
    )
    assert main([*command, "--trust_input"]) == 0
    assert verify(tmp_path / "out", sample="100%").ok


@pytest.mark.cloud
def test_a_build_in_a_store_goes_on_however_often_its_input_is_touched(
    either: Proxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a store no object is replaced unless its version is named."""
    write_rows(tmp_path / "in/a.jsonl", made_up_rows(3, 30))
    bad = tmp_path / "in/b.jsonl"
    output = f"{either.scheme}://data/out"
    command = ["build", f"--input={tmp_path}/in/*", f"--output={output}", *FLAGS, "--trust_input"]
    for time in (1, 2, 3, 1):
        bad.write_text('{"text": "the last"x\n')
        set_times(tmp_path / "in", time)
        assert main(command) == 1
        assert (
            "Fix the row and start over with --overwrite, or raise --max_bad_rows"
            in capsys.readouterr().err
        )
    bad.write_text('{"text": "the last"}\n')
    set_times(tmp_path / "in", 5)
    assert main(command) == 0
    assert verify(output, sample="100%").ok


def files(*paths: str) -> list[SourceFile]:
    """Files at some places."""
    return [SourceFile(n, path, 1, "mtime:1", "jsonl", "none") for n, path in enumerate(paths)]


@pytest.mark.parametrize(
    ("paths", "taken", "root", "names"),
    [
        (["/a/b/x.jsonl"], [], "/a/b/", ["x.jsonl"]),
        (["/a/b/x.jsonl", "/a/bc/x.jsonl"], [], "/a/", ["b/x.jsonl", "bc/x.jsonl"]),
        (["/x.jsonl", "/y/x.jsonl"], [], "/", ["x.jsonl", "y/x.jsonl"]),
        (["gs://b/x", "gs://c/x"], [], "gs://", ["b/x", "c/x"]),
        (["/x.jsonl", "gs://c/x"], [], "", ["/x.jsonl", "gs://c/x"]),
        (["https://h/x.jsonl?of=/a/b"], [], "https://h/", ["x.jsonl?of=/a/b"]),
        (["/a/n=1/lang=de/n=2/x.jsonl"], [], "/a/n=1/", ["lang=de/n=2/x.jsonl"]),
        (["gs://b/t/lang=1/x", "gs://b/t/lang=12/x"], [], "gs://b/t/", ["lang=1/x", "lang=12/x"]),
        (["/a/b/x.jsonl"], ["x.jsonl"], "/a/", ["b/x.jsonl"]),
        (["/a/b/x.jsonl"], ["x.jsonl", "b/x.jsonl"], "/", ["a/b/x.jsonl"]),
    ],
)
def test_the_root_is_the_longest_folder_that_keeps_names_apart(
    paths: list[str], taken: list[str], root: str, names: list[str]
) -> None:
    asking = Columns("text", "id", False, others=("lang",))
    found, named = below_root(files(*paths), asking, None, files(*taken))
    assert (found, [file.name for file in named]) == (root, names)
    assert [root + name for name in names] == paths


def test_where_sources_are_now() -> None:
    roots = ["/a/b/", "/a/bc/", "hf://datasets/o/n@1/data/"]
    assert moved(roots, ["/a/b=/new"]) == ["/new/", *roots[1:]]
    assert moved(roots, ["/a/=gs://c/d/", "hf://datasets/o/n@1=/e"]) == [
        "gs://c/d/b/",
        "gs://c/d/bc/",
        "/e/data/",
    ]
    assert moved(["/x=y/*.jsonl", "/z"], ["/x=y=/n=m", "/z=/w"]) == ["/n=m/*.jsonl", "/w/"]
    for wrong in ("/a/b/c=/new", "/a/b", "/a/b=", "=/new", "/q=/a"):
        with pytest.raises(UsageError, match=r"which is /a/b/, /a/bc/, hf://datasets/o/n@1/data/"):
            moved(roots, [wrong])
