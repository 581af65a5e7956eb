"""Exports: the files hold the documents of the shards, read by readers of the tests' own."""

import filecmp
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damage import flip_bit, flip_middle
from support.foreign_readers import (
    Documents,
    read_datatrove,
    read_megatron,
    read_olmo,
    read_token_bin,
)
from support.growing import build, made_up_rows, write_rows
from support.kills import kill
from support.oracle import files_in
from support.tokenizer_files import save, train

import fineshards
from fineshards.errors import OutputError, UsageError
from fineshards.exports.stream import Stream
from fineshards.maintenance.redact import redact
from fineshards.shards.dataset_files import Dataset
from fineshards.storage.open import open_storage

Run = Callable[..., CompletedProcess[str]]
SHARD = 300


@pytest.fixture(scope="session")
def one_stream(folder: Path) -> Path:
    """Documents that straddle the border of the splits."""
    source = write_rows(folder / "rows.parquet", made_up_rows(1, 120))
    build(folder / "one", source, f"--shard_tokens={SHARD}", "--test_shards=2")
    return folder / "one"


@pytest.fixture(scope="session")
def narrow(folder: Path) -> Path:
    """Tokens of uint16."""
    source = write_rows(folder / "rows.parquet", made_up_rows(1, 120))
    tokenizer = small_tokenizer(folder)
    flags = (f"--shard_tokens={SHARD}", f"--tokenizer={tokenizer}", "--dtype=uint16")
    build(folder / "narrow", source, *flags, "--test_fraction=0.2")
    return folder / "narrow"


def small_tokenizer(folder: Path) -> Path:
    texts = [row["text"] for row in made_up_rows(1, 120) if row["text"]]
    return save(train("gpt2", texts, 300), folder / "tokenizer.json")


def tokens_of(dataset: Path, *splits: str) -> list[int]:
    """The tokens of splits, as numpy reads them."""
    names = [path for split in splits for path in sorted((dataset / split).glob("*.npy"))]
    return [token for name in names for token in np.load(name).tolist()]


def documents_of(dataset: Path, eot_side: str, *splits: str) -> Documents:
    """The documents of splits by their EOT tokens, with the EOT at the side."""
    eot = Dataset.open(open_storage(str(dataset))).manifest.settings.tokenizer.eot
    stream = tokens_of(dataset, *splits)
    starts = sorted({0, *(place for place, token in enumerate(stream) if token == eot)})
    documents = [stream[a:b] for a, b in zip(starts, [*starts[1:], len(stream)], strict=True)]
    if eot_side == "begin":
        return documents
    after = tokens_of(dataset, "train") if splits == ("test",) else []
    cut = eot not in after[:1] and bool(after) and is_one_stream(dataset)
    turned = [[token for token in each if token != eot] + [eot] for each in documents]
    if cut:
        turned[-1].pop()
    return [each for each in turned if each]


def is_one_stream(dataset: Path) -> bool:
    return Dataset.open(open_storage(str(dataset))).manifest.settings.split.test_shards is not None


SIDES = pytest.mark.parametrize("side", ["begin", "end"])
DATASETS = pytest.mark.parametrize("dataset", ["by_document", "one_stream", "narrow"])


@pytest.mark.long
@SIDES
@DATASETS
@pytest.mark.parametrize("size", [None, 50, 700])
def test_megatron_and_datatrove_hold_every_document(
    dataset: str, side: str, size: int | None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(dataset)
    flags = {"eot": side, "tokens_per_file": size}
    fineshards.export(source, tmp_path / "m", "megatron", **flags)
    fineshards.export(source, tmp_path / "d", "datatrove", **flags)
    for split in ("test", "train"):
        expected = documents_of(source, side, split)
        stems = sorted((tmp_path / "m").glob(f"{split}_*.idx"))
        assert [each for stem in stems for each in read_megatron(stem)] == expected
        files = sorted((tmp_path / "d" / split).glob("*.ds"))
        assert [each for file in files for each in read_datatrove(file)] == expected
        if size is not None:
            lengths = [len(b"".join([file.read_bytes()])) for file in files]
            assert len(files) == 1 or min(lengths) >= size


def test_a_part_of_one_eot_that_ends_a_cut_split_is_left_out(tmp_path: Path) -> None:
    """Its document goes on in train, and each document of the export ends with its EOT."""
    rows = write_rows(tmp_path / "rows.parquet", [{"text": "alpha"}, {"text": "alpha beta"}])
    build(tmp_path / "out", rows, "--test_shards=1", "--shard_tokens=3")
    fineshards.export(tmp_path / "out", tmp_path / "m", "megatron", tokens_per_file=1)
    exported = [read_megatron(path) for path in sorted((tmp_path / "m").glob("test_*.idx"))]
    assert [document for part in exported for document in part] == documents_of(
        tmp_path / "out", "end", "test"
    )


@DATASETS
def test_both_splits_as_one(dataset: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source = request.getfixturevalue(dataset)
    fineshards.export(source, tmp_path / "m", "megatron", split="all")
    assert read_megatron(tmp_path / "m/all_0000.idx") == documents_of(
        source, "end", "test", "train"
    )


@SIDES
def test_olmo_names_the_source_of_each_document(
    by_document: Path, side: str, tmp_path: Path
) -> None:
    fineshards.export(by_document, tmp_path / "o", "olmo", eot=side, tokens_per_file=400)
    data = Dataset.open(open_storage(str(by_document)))
    first = 0
    for split in ("test", "train"):
        files = sorted((tmp_path / "o" / split).glob("*.npy"))
        found = [line for file in files for line in read_olmo(file, "<u4")]
        assert [line[0] for line in found] == documents_of(by_document, side, split)
        for number, (_, name, source, row) in enumerate(found, first):
            document = data.document(number)
            assert (name, source, row) == (document.id or "", document.file, document.row + 1)
        first += len(found)


@pytest.mark.parametrize("dataset", ["by_document", "narrow"])
def test_token_bins_hold_the_stream_after_a_header(
    dataset: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source, narrow = request.getfixturevalue(dataset), dataset == "narrow"
    headers = {
        "llmc": (20240520, 1, 0) if narrow else (20240801, 7, 0),
        "nemo": (278895051, 1, 2 if narrow else 4),
    }
    if narrow:
        headers["modded-nanogpt"] = (20240520, 1, 0)
    for to, (magic, version, size) in headers.items():
        fineshards.export(source, tmp_path / to, to)
        for split, word in (("test", "val"), ("train", "train")):
            files = sorted((tmp_path / to).glob(f"*_{word}_*.bin"))
            found = [read_token_bin(file) for file in files]
            assert [token for _, tokens in found for token in tokens] == tokens_of(source, split)
            for header, tokens in found:
                assert header == (magic, version, len(tokens), size)
            # No file is short, because some readers refuse a short last one.
            assert len(found) == 1 or min(len(tokens) for _, tokens in found) == SHARD


@SIDES
@DATASETS
def test_raw_files_hold_the_stream(
    dataset: str, side: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(dataset)
    fineshards.export(source, tmp_path / "one", "raw", eot=side)
    fineshards.export(source, tmp_path / "many", "raw", eot=side, tokens_per_file=77)
    dtype = "<u2" if dataset == "narrow" else "<u4"
    for split, word in (("test", "val"), ("train", "train")):
        expected = [token for each in documents_of(source, side, split) for token in each]
        assert np.fromfile(tmp_path / f"one/{word}.bin", dtype).tolist() == expected
        parts = sorted((tmp_path / "many").glob(f"{word}_*.bin"))
        assert [np.fromfile(part, dtype).size for part in parts[:-1]] == [77] * (len(parts) - 1)
        assert (
            b"".join(part.read_bytes() for part in parts)
            == (tmp_path / f"one/{word}.bin").read_bytes()
        )


def test_wide_tokens_are_narrowed_where_all_ids_fit(folder: Path, tmp_path: Path) -> None:
    source = write_rows(folder / "rows.parquet", made_up_rows(1, 120))
    tokenizer = small_tokenizer(folder)
    build(tmp_path / "wide", source, f"--tokenizer={tokenizer}", "--test_shards=0")
    fineshards.export(tmp_path / "wide", tmp_path / "m", "modded-nanogpt")
    _, tokens = read_token_bin(tmp_path / "m/tokens_train_000000.bin")
    assert tokens == tokens_of(tmp_path / "wide", "train")


def test_modded_nanogpt_needs_two_files_to_train_on(
    narrow: Path, tmp_path: Path, in_process: Run
) -> None:
    given = ["export", narrow, "--to=modded-nanogpt"]
    for number, (flag, said) in enumerate(
        [("--tokens_per_file=9M", True), ("--tokens_per_file=200", False)]
    ):
        done = in_process(*given, flag, "--output", tmp_path / f"{number}")
        assert done.returncode == 0
        assert ("needs two files to train on, and this is one" in done.stdout) == said
        files = len([*(tmp_path / f"{number}").glob("*_train_*")])
        assert (files == 1) == said


def test_olmo_says_that_the_last_document_of_test_has_no_eot(
    one_stream: Path, by_document: Path, tmp_path: Path, in_process: Run
) -> None:
    said = "what test has of it ends without an EOT, and OLMo-core leaves that out"
    for number, (dataset, flags, cut) in enumerate(
        [
            (one_stream, [], True),
            (one_stream, ["--split=all"], False),
            (one_stream, ["--split=train"], False),
            (one_stream, ["--tokens_per_file=100"], True),
            (by_document, [], False),
        ]
    ):
        output = tmp_path / f"{number}"
        done = in_process("export", dataset, "--to=olmo", *flags, "--output", output)
        assert (said in done.stdout) == cut
        eot = Dataset.open(open_storage(str(dataset))).manifest.settings.tokenizer.eot
        ends = [np.fromfile(path, "<u4")[-1] == eot for path in output.glob("*/*.npy")]
        assert ends.count(False) == cut


@pytest.mark.long
@pytest.mark.parametrize(
    "to",
    [
        *("megatron", "datatrove", "olmo", "llmc", "raw"),
        *("mds", "litdata", "parquet", "hf-arrow", "array_record"),
    ],
)
def test_bytes_do_not_depend_on_workers_or_the_runner(
    by_document: Path, to: str, tmp_path: Path, in_process: Run
) -> None:
    flags = ["--to", to, "--tokens_per_file", "200"]
    for workers in (1, 2, 5):
        output = tmp_path / f"{workers}"
        done = in_process("export", by_document, *flags, "--output", output, "--workers", workers)
        assert done.returncode == 0, done.stderr
    expected = files_in(tmp_path / "1")
    assert files_in(tmp_path / "2") == files_in(tmp_path / "5") == expected
    if to == "megatron":
        beam = ["--output", tmp_path / "beam", "--runner=DirectRunner"]
        done = in_process("export", by_document, *flags, *beam)
        assert done.returncode == 0, done.stderr
        assert files_in(tmp_path / "beam") == expected


@pytest.mark.long
@pytest.mark.parametrize("to", ["megatron", "array_record"])
def test_a_killed_export_resumes_with_the_same_bytes(
    by_document: Path, to: str, tmp_path: Path
) -> None:
    """Killed after each of its files in turn."""
    expected = tmp_path / "expected"
    fineshards.export(by_document, expected, to, tokens_per_file=2500)
    names = [name for name in files_in(expected) if name != "export.json"]
    output = tmp_path / "killed"
    for name in names:
        arguments = ["export", by_document, f"--to={to}", "--tokens_per_file=2500", "--workers=1"]
        kill(f"replace:{name}", *arguments, "--output", output)
    kept = {name: (output / name).stat().st_ino for name in files_in(output) if name in names}
    fineshards.export(by_document, output, to, tokens_per_file=2500)
    assert files_in(output) == files_in(expected)
    again = [name for name, inode in kept.items() if (output / name).stat().st_ino != inode]
    assert len(again) <= 2  # the part that the last kill interrupted


@pytest.mark.parametrize(
    ("to", "last"),
    # last: killed after `export.json`.
    [("megatron", False), ("mds", False), ("mds", True), ("litdata", True), ("hf-arrow", True)],
)
def test_a_file_that_was_changed_after_a_kill_is_exported_again(
    by_document: Path, to: str, last: bool, tmp_path: Path
) -> None:
    expected, output = tmp_path / "expected", tmp_path / "killed"
    fineshards.export(by_document, expected, to, tokens_per_file=2500)
    names = sorted(name for name in files_in(expected) if name != "export.json")
    arguments = ["export", by_document, f"--to={to}", "--tokens_per_file=2500", "--workers=1"]
    kill("rmdir:0" if last else f"replace:{names[-1]}", *arguments, "--output", output)
    assert (output / "export.json").exists() == last
    for changed in (output / name for name in names if (output / name).exists()):
        flip_bit(changed, changed.stat().st_size // 2)
    fineshards.export(by_document, output, to, tokens_per_file=2500)
    assert files_in(output) == files_in(expected)


def test_a_finished_export_is_found_finished(by_document: Path, tmp_path: Path) -> None:
    first = fineshards.export(by_document, tmp_path / "m", "megatron")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "m").iterdir()}
    assert fineshards.export(by_document, tmp_path / "m", "megatron") == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "m").iterdir()} == before


@pytest.mark.long
@pytest.mark.parametrize("side", ["begin", "end"])
@pytest.mark.parametrize("size", [None, 90])
@pytest.mark.parametrize("to", ["megatron", "raw"])
def test_a_damaged_shard_is_found_and_nothing_of_it_stays(
    by_document: Path, side: str, size: int | None, to: str, tmp_path: Path
) -> None:
    shutil.copytree(by_document, tmp_path / "out")
    shard = tmp_path / "out/train/train_0001.npy"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    flags = {"eot": side, "tokens_per_file": size}
    with pytest.raises(OutputError, match=r"train_0001\.npy is damaged: its crc32c is"):
        fineshards.export(tmp_path / "out", tmp_path / "m", to, **flags)
    assert not (tmp_path / "m/export.json").exists()
    shutil.copy(by_document / "train/train_0001.npy", shard)
    fineshards.export(tmp_path / "out", tmp_path / "m", to, **flags)
    fineshards.export(by_document, tmp_path / "good", to, **flags)
    assert files_in(tmp_path / "m") == files_in(tmp_path / "good")


def test_a_damaged_or_short_file_of_the_dataset_is_a_sentence(
    by_document: Path, tmp_path: Path
) -> None:
    shutil.copytree(by_document, tmp_path / "out")
    table = tmp_path / "out/metadata/documents/train_0001.parquet"
    flip_middle(table)
    with pytest.raises(OutputError, match=r"train_0001\.parquet is damaged"):
        fineshards.export(tmp_path / "out", tmp_path / "m", "megatron")
    os.truncate(tmp_path / "out/train/train_0002.npy", 500)
    with pytest.raises(OutputError, match=r"0002\.npy is damaged: it ends [\d,]+ bytes early"):
        fineshards.export(tmp_path / "out", tmp_path / "r", "raw")


@pytest.mark.long
def test_generations_and_redactions_are_exported(folder: Path, tmp_path: Path) -> None:
    parts = [write_rows(tmp_path / f"{n}.parquet", made_up_rows(n, 40)) for n in (5, 6)]
    out = tmp_path / "out"
    build(out, parts[0], f"--shard_tokens={SHARD}", "--test_fraction=0.2")
    fineshards.export(out, tmp_path / "before", "megatron")
    fineshards.append(out, input=parts[1])
    fineshards.export(out, tmp_path / "first", "megatron", generation=1)
    for name in ("train_0000.bin", "train_0000.idx", "test_0000.bin"):
        assert filecmp.cmp(tmp_path / "before" / name, tmp_path / "first" / name, shallow=False)
    fineshards.export(out, tmp_path / "all", "megatron")
    assert read_megatron(tmp_path / "all/train_0000.idx") == documents_of(out, "end", "train")
    with pytest.raises(UsageError, match="holds another export"):
        fineshards.export(out, tmp_path / "first", "megatron")
    redact(str(out), documents=[1])
    fineshards.export(out, tmp_path / "redacted", "megatron")
    assert read_megatron(tmp_path / "redacted/train_0000.idx") == documents_of(out, "end", "train")
    message = "a generation before a redaction cannot be exported any more. Export the latest one"
    for to, eot in (("megatron", "end"), ("raw", "begin")):  # by a table, and by the tokens
        with pytest.raises(OutputError, match=message):
            fineshards.export(out, tmp_path / f"old-{to}", to, eot=eot, generation=2)
        assert not (tmp_path / f"old-{to}/export.json").exists()


def test_verify_finds_what_is_wrong_with_an_export(
    by_document: Path, tmp_path: Path, in_process: Run
) -> None:
    made = in_process("export", by_document, "--to", "megatron", "--output", tmp_path / "m")
    assert made.returncode == 0
    assert in_process("verify", tmp_path / "m").returncode == 0
    content = bytearray((tmp_path / "m/train_0000.bin").read_bytes())
    content[5] ^= 1
    (tmp_path / "m/train_0000.bin").write_bytes(content)
    (tmp_path / "m/test_0000.idx").unlink()
    (tmp_path / "m/more.bin").touch()
    done = in_process("verify", tmp_path / "m")
    assert done.returncode == 1
    for problem in ("train_0000.bin has crc32c", "test_0000.idx is missing", "more.bin is not a"):
        assert problem in done.stdout
    record = json.loads((tmp_path / "m/export.json").read_text())
    record["files"][0]["bytes"] = -1
    (tmp_path / "m/export.json").write_text(json.dumps(record))
    damaged = in_process("verify", tmp_path / "m")
    assert damaged.returncode == 1
    assert "export.json is damaged" in damaged.stderr
    assert "Traceback" not in damaged.stderr


@pytest.mark.long
@settings(max_examples=25)
@given(st.integers(1, 4000), st.sampled_from(["begin", "end"]))
def test_parts_of_any_size_make_up_the_stream(
    plans: Callable[[int, str], None], size: int, side: str
) -> None:
    plans(size, side)


@pytest.fixture(scope="module")
def plans(by_document: Path, one_stream: Path) -> Callable[[int, str], None]:
    """Checks the plans of a size: all tokens in order, whole documents, no short file."""
    from fineshards.exports.parts import plan_by_documents, plan_by_tokens

    streams = [
        Stream(Dataset.open(open_storage(str(folder))), split)
        for folder in (by_document, one_stream)
        for split in ("test", "train", "all")
    ]
    begins = [
        {int(each) for found, _, _ in stream.documents(0, stream.tokens) for each in found}
        for stream in streams
    ]

    def check(size: int, side: str) -> None:
        for stream, starts in zip(streams, begins, strict=True):
            whole = stream.tokens
            if side == "end":
                whole += int(stream.ends_whole) - int(stream.begins_whole)
            for plan in (plan_by_documents, plan_by_tokens):
                parts = plan(stream, size, side)  # type: ignore[arg-type]
                assert sum(part.tokens for part in parts) == whole
                assert [part.index for part in parts] == [*range(parts[0].count)]
                ends = [part.stop for part in parts]
                assert ends == sorted(ends)
                assert ends[-1] == stream.tokens
                # The EOT that moves to the other side may be the first one.
                assert len(parts) == 1 or min(part.tokens for part in parts) >= size - 1
                if plan is plan_by_documents:
                    assert all(part.start in starts for part in parts)
                else:
                    assert all(part.tokens == size for part in parts[:-1])

    return check
