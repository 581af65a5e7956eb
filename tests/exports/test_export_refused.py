"""Exports that are refused, and folders that hold something else: a sentence, and nothing lost."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from support.foreign_readers import read_megatron
from support.growing import build, made_up_rows, write_rows

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import OutputError, UsageError
from fineshards.exports.export_job import prepare
from fineshards.exports.export_options import ExportOptions
from fineshards.exports.format_table import NAMES, format_of
from fineshards.storage.s3 import S3Storage

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("refused")


@pytest.fixture(scope="module")
def by_document(folder: Path) -> Path:
    source = write_rows(folder / "rows.parquet", made_up_rows(1, 120))
    build(folder / "out", source, "--shard_tokens=300", "--test_fraction=0.2")
    return folder / "out"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"to": "megatrn"}, "there is no such format. Did you mean megatron"),
        ({"to": "llmc", "eot": "end"}, "--eot end: --to llmc has the EOT at the begin only"),
        ({"to": "raw", "link": True}, "--to raw cannot point into other files"),
        ({"to": "megatron", "link": True, "tokens_per_file": 5}, "one file per shard"),
        ({"to": "megatron", "sequence_length": 5}, "has no rows"),
        ({"to": "raw", "no_masks": True}, "only datasets of conversations have masks"),
        ({"to": "modded-nanogpt"}, "ids up to 65,535 .* of cl100k_base go up to 100,276"),
        ({"to": "raw", "dtype": "uint16"}, "ids up to 65,535 .* Use --dtype uint32"),
        ({"to": "modded-nanogpt", "dtype": "uint32"}, "holds uint16 only"),
        ({"to": "raw", "tokens_per_file": 0}, "must be a whole number from 1"),
        ({"to": "raw", "split": "both"}, "--split must be test or train or all"),
        ({"to": "raw", "eot": "both"}, "--eot must be begin or end"),
    ],
)
def test_what_a_format_cannot_have_is_refused(
    by_document: Path, flags: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        fineshards.export(by_document, tmp_path / "x", **flags)
    assert not (tmp_path / "x").exists()


def test_a_folder_with_other_files_is_refused(by_document: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/notes.txt").touch()
    with pytest.raises(UsageError, match=r"notes\.txt is in the way"):
        fineshards.export(by_document, tmp_path / "x", "raw")
    with pytest.raises(UsageError, match="is in the dataset's folder"):
        fineshards.export(by_document, by_document / "sub", "raw")
    with pytest.raises(UsageError, match="holds a dataset"):
        fineshards.export(by_document, shutil.copytree(by_document, tmp_path / "d"), "raw")
    with pytest.raises(OutputError, match="nothing"):
        fineshards.export(tmp_path / "nothing", tmp_path / "y", "raw")


def test_an_unfinished_export_is_not_taken_for_another(by_document: Path, tmp_path: Path) -> None:
    prepare(str(by_document), str(tmp_path / "x"), ExportOptions("raw"))
    with pytest.raises(UsageError, match="another export that is not finished"):
        fineshards.export(by_document, tmp_path / "x", "megatron")
    fineshards.export(by_document, tmp_path / "x", "raw")


def test_messages_are_one_line(by_document: Path, tmp_path: Path, in_process: Run) -> None:
    done = in_process("export", by_document, "--to", "raw", "--output", by_document)
    assert done.returncode == 2
    assert re.fullmatch(r"fineshards: [^\n]+\n", done.stderr)


@pytest.mark.long
@pytest.mark.parametrize("to", ["megatron", "raw", "mds"])
def test_a_split_without_tokens_is_refused(to: str, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(out, write_rows(folder / "rows.parquet", made_up_rows(1, 120)), "--test_shards=0")
    rows = {"sequence_length": 8} if to == "mds" else {}
    with pytest.raises(UsageError, match="--split test: the dataset has no tokens there"):
        fineshards.export(out, tmp_path / "x", to, split="test", eot="end", **rows)
    assert not (tmp_path / "x").exists()
    export = fineshards.export(out, tmp_path / "x", to, eot="end", **rows)
    assert set(export.splits) == {"train"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tokens_per_fle=5"], "unknown flag --tokens_per_fle.* See fineshards export --help"),
        (["--runner=NoRunner"], "NoRunner"),
        (["more"], "unexpected argument 'more'"),
    ],
)
def test_a_wrong_flag_claims_no_folder(
    by_document: Path, flags: list[str], message: str, tmp_path: Path, in_process: Run
) -> None:
    given = ["--to=raw", f"--output={tmp_path}/x"]
    done = in_process("export", by_document, *given, *flags)
    assert done.returncode == 2, done.stderr
    assert re.search(message, done.stderr)
    assert not (tmp_path / "x").exists()
    assert in_process("export", by_document, *given, "--tokens_per_file=50").returncode == 0
    # Also where there is nothing to do.
    assert in_process("export", by_document, *given, *flags).returncode == 2


def test_a_finished_export_that_lost_files_is_finished_again(
    by_document: Path, tmp_path: Path
) -> None:
    fineshards.export(by_document, tmp_path / "x", "megatron")
    before = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    (tmp_path / "x/train_0000.bin").unlink()
    (tmp_path / "x/test_0000.idx").write_bytes(b"short")
    assert not fineshards.verify(tmp_path / "x").ok
    fineshards.export(by_document, tmp_path / "x", "megatron")
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == before


def test_a_file_that_appears_meanwhile_is_named(by_document: Path, tmp_path: Path) -> None:
    prepare(str(by_document), str(tmp_path / "x"), ExportOptions("raw"))
    (tmp_path / "x/other.bin").touch()
    with pytest.raises(OutputError, match=r"other\.bin is not of this export"):
        fineshards.export(by_document, tmp_path / "x", "raw")
    (tmp_path / "x/other.bin").unlink()
    fineshards.export(by_document, tmp_path / "x", "raw")


def test_a_dataset_is_not_built_over_an_export(
    by_document: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fineshards.export(by_document, tmp_path / "x", "raw")
    given = [f"--input={folder}/rows.parquet", f"--output={tmp_path}/x"]
    assert main(["build", *given]) == 2
    assert "holds an export. Choose another --output" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["report"],
        ["inspect"],
        ["stats"],
        ["find", "--token=0"],
        ["publish"],
        ["append", "--input=x.parquet"],
        ["redact", "--documents=1"],
        ["repair"],
        ["export", "--to=raw", "--output=y"],
        ["explain", "--document=1", "--sequence_length=8"],
    ],
    ids=lambda command: command[0],
)
def test_commands_for_datasets_say_that_a_folder_is_an_export(
    by_document: Path, command: list[str], tmp_path: Path, in_process: Run
) -> None:
    fineshards.export(by_document, tmp_path / "x", "raw")
    before = sorted(path.name for path in (tmp_path / "x").iterdir())
    name, *flags = command
    done = in_process(name, tmp_path / "x", *flags)
    assert done.returncode != 0
    assert re.fullmatch(
        rf"fineshards: {tmp_path}/x is an export, not a dataset: [^\n]+\n", done.stderr
    )
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == before


@pytest.mark.long
def test_links_know_that_the_dataset_has_grown(tmp_path: Path) -> None:
    parts = [write_rows(tmp_path / f"{n}.parquet", made_up_rows(n, 40)) for n in (5, 6)]
    out = tmp_path / "out"
    build(out, parts[0], "--shard_tokens=300", "--test_fraction=0.2")
    fineshards.export(out, tmp_path / "x", "megatron", link=True)
    last = sorted((tmp_path / "x").glob("train_*.idx"))[-1]
    documents = read_megatron(last)
    fineshards.append(out, input=parts[1])
    # The tokens of the shorter shard are where they were.
    assert read_megatron(last) == documents
    verdict = fineshards.verify(tmp_path / "x")
    assert any("If the dataset has grown" in problem for problem in verdict.problems)
    with pytest.raises(UsageError, match=r"had .* in this generation\. Leave --link out"):
        fineshards.export(out, tmp_path / "y", "megatron", link=True, generation=1)


def test_an_output_that_leads_into_the_dataset_is_refused(
    by_document: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(by_document)
    with pytest.raises(UsageError, match="is in the dataset's folder"):
        fineshards.export(by_document, tmp_path / "link/x", "raw")


def test_the_endpoint_goes_where_the_job_goes(by_document: Path, tmp_path: Path) -> None:
    job, _ = prepare(str(by_document), str(tmp_path / "x"), ExportOptions("raw"))
    job = replace(job, storage=S3Storage("s3://data/x", "http://127.0.0.1:1"))
    assert pickle.loads(pickle.dumps(job)).storage.endpoint == "http://127.0.0.1:1"


def test_nanogpt_asks_which_is_meant(by_document: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="use raw for nanoGPT, nemo for"):
        fineshards.export(by_document, tmp_path / "x", "nanogpt")
    assert not (tmp_path / "x").exists()
    # An export of 0.1.0 is still verified.
    assert format_of("nanogpt").name == "nemo"


# cl100k_base has more ids than the others hold.
@pytest.mark.parametrize("to", [name for name in NAMES if name != "modded-nanogpt"])
def test_an_export_ends_with_the_line_that_reads_it(
    by_document: Path, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["--sequence_length=64"] if to == "mds" else []
    assert main(["export", str(by_document), f"--to={to}", f"--output={tmp_path}/x", *rows]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "read with: " in each]
    assert f"{tmp_path}/x" in line
