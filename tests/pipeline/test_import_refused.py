"""What an import refuses, in one sentence each: files that contradict themselves, and flags."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.token_files import (
    with_eots,
    write_arrow,
    write_datatrove,
    write_megatron,
    write_parquet,
    write_plain,
    write_with_header,
)

from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.errors import InputError, UsageError
from fineshards.shards.job.import_record import Imported
from fineshards.shards.job.settings import Columns
from fineshards.sources.formats.token_finding import find_token_files
from fineshards.sources.formats.token_streams import with_continuations
from fineshards.sources.reading import discover_blocks, read_block

EOT = 9
BODIES = [[1, 2, 3], [], [4], [5, 6, 7, 8]]


def read(kind: str, folder: Path, side: str = "end", dtype: str | None = None) -> int:
    """Reads all files in a folder; returns the number of documents."""
    imported = Imported(kind, side, EOT, 10, dtype)
    columns = Columns("input_ids", "id", id_required=False, imported=imported)
    files = with_continuations(find_token_files(kind, [str(folder)]), imported)
    blocks = [(file, block) for file in files for block in discover_blocks(file, columns, 20)]
    return sum(len(r.numbers) for f, block in blocks for r in read_block(f, columns, block))


def refused(kind: str, folder: Path, sentence: str, **how: str) -> None:
    with pytest.raises(InputError) as raised:
        read(kind, folder, **how)
    message = str(raised.value)
    assert sentence in message
    assert message.endswith(".")
    assert "\n" not in message


def patched(path: Path, at: int, content: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(content)] = content
    path.write_bytes(data)


def number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "little", signed=True)


# Of an index with four documents: lengths at 34, places at 50, documents at 82.
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: patched(folder / "a.idx", 0, b"X"), "expected b'MMIDIDX"),
        (lambda folder: patched(folder / "a.idx", 9, number(2)), "has version 2, type 4"),
        (lambda folder: patched(folder / "a.idx", 17, b"\x06"), "has version 1, type 6"),
        (lambda folder: os.truncate(folder / "a.idx", 100), "has 100 bytes, expected 122"),
        (lambda folder: os.truncate(folder / "a.idx", 20), "a header of 34 bytes"),
        (lambda folder: patched(folder / "a.idx", 18, number(5)), "5 sequences, 4 documents"),
        (lambda folder: os.truncate(folder / "a.bin", 44), "has 44 bytes, expected 48 by its"),
        (lambda folder: os.truncate(folder / "a.bin", 52), "has 52 bytes, expected 48 by its"),
        (lambda folder: patched(folder / "a.idx", 34, number(5, 4)), "expected at least 0 from"),
        (lambda folder: patched(folder / "a.idx", 34, number(-4, 4)), "has -4 tokens from byte 0"),
        (lambda folder: patched(folder / "a.idx", 50, number(132)), "from byte 132 on, expected"),
        (lambda folder: patched(folder / "a.idx", 74, number(1 << 40)), "expected at least 0 from"),
        (lambda folder: patched(folder / "a.idx", 90, number(9)), "document 1 begins with seq"),
        (
            lambda folder: patched(folder / "a.idx", 90, number(0)),
            "document 1: its token 3 is the EOT 9",
        ),
        (lambda folder: patched(folder / "a.idx", 82, number(1)), "document 0: begins at token 4"),
        (lambda folder: patched(folder / "a.idx", 114, number(3)), "4 documents in 7 tokens"),
        (lambda folder: patched(folder / "a.bin", 4, number(10, 4)), "document 0: its token 1 is"),
        (lambda folder: patched(folder / "a.bin", 4, number(-1, 4)), "document 0: its token 1 is"),
        (lambda folder: patched(folder / "a.bin", 16, number(3, 4)), "document 1: its last token"),
        (lambda folder: patched(folder / "a.bin", 32, number(9, 4)), "document 3: its token 1 is"),
        (lambda folder: (folder / "a.idx").unlink(), "a.idx is not there, without which"),
        (lambda folder: (folder / "a.bin").unlink(), "a.bin is not there"),
    ],
)
def test_a_megatron_dataset_that_contradicts_itself(
    damage: Callable[[Path], object], sentence: str, tmp_path: Path
) -> None:
    write_megatron(tmp_path / "a", with_eots(BODIES, EOT, "end"))
    assert read("megatron", tmp_path) == 4
    damage(tmp_path)
    refused("megatron", tmp_path, sentence)


def test_a_document_of_several_sequences_is_one_document(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a", [np.array([1, 2], np.uint32), np.array([3, EOT], np.uint32)])
    content = (tmp_path / "a.idx").read_bytes()
    content = content[:26] + number(2) + content[34:58] + number(0) + number(2)
    (tmp_path / "a.idx").write_bytes(content)
    assert read("megatron", tmp_path) == 1


@pytest.mark.parametrize("dtype", ["<i2", "<i8", "<u2"])
def test_ids_of_every_type_are_checked(dtype: str, tmp_path: Path) -> None:
    write_megatron(tmp_path / "a", with_eots(BODIES, EOT, "end"), dtype)
    assert read("megatron", tmp_path) == 4
    item = np.dtype(dtype).itemsize
    patched(tmp_path / "a.bin", 2 * item, b"\xff" * item)
    wrong = 65535 if dtype == "<u2" else -1
    refused("megatron", tmp_path, f"its token 2 is {wrong}, expected an id from 0 to 9")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: os.truncate(folder / "a.ds", 40), "has 40 bytes, expected 48 by its"),
        (lambda folder: os.truncate(folder / "a.ds.index", 30), "has 30 bytes, expected 8 per"),
        (lambda folder: os.truncate(folder / "a.ds.index", 24), "in 7 tokens, expected 12"),
        (
            lambda folder: patched(folder / "a.ds.index", 8, number(4)),
            "document 2: its token 0 is the EOT",
        ),
        (lambda folder: patched(folder / "a.ds.index", 8, number(3)), "document 1: has -1 tokens"),
        (lambda folder: patched(folder / "a.ds.index", 24, number(99)), "in 99 tokens, expected"),
        (lambda folder: (folder / "a.ds.metadata").write_text("x|3\n12\n"), "expected a name"),
        (lambda folder: (folder / "a.ds.metadata").write_text(""), "expected a name"),
        (
            lambda folder: (folder / "a.ds.metadata").write_text(f"x|4\n{'1' * 5000}\n"),
            f"begins with ['x|4', '{'1' * 77}...'], expected a name",
        ),
        (lambda folder: (folder / "a.ds.metadata").write_text("x|4\n\u0661\n"), "expected a name"),
        (lambda folder: (folder / "a.ds.metadata").write_text("x|2\n24\n"), "document 0: its"),
        (lambda folder: (folder / "a.ds.metadata").unlink(), "a.ds.metadata is not there"),
        (lambda folder: (folder / "a.ds.index").unlink(), "a.ds.index is not there"),
    ],
)
def test_a_datatrove_dataset_that_contradicts_itself(
    damage: Callable[[Path], object], sentence: str, tmp_path: Path
) -> None:
    write_datatrove(tmp_path / "a", with_eots(BODIES, EOT, "end"))
    assert read("datatrove", tmp_path) == 4
    damage(tmp_path)
    if sentence.startswith("document 0"):
        # Tokens of two bytes are read from the same file: every other one is 0.
        patched(tmp_path / "a.ds.index", 24, number(24))
    refused("datatrove", tmp_path, sentence)


def test_streams_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "a.npy", with_eots(BODIES, EOT, "end"), "<u2")
    assert read("olmo", tmp_path, dtype="uint16") == 4
    refused("olmo", tmp_path, "its last token is", dtype="uint32")
    patched(path, 22, number(8, 2))
    refused("olmo", tmp_path, "its last token is 8, expected the EOT 9", dtype="uint16")
    os.truncate(path, 23)
    refused("olmo", tmp_path, "no whole number of uint16 tokens", dtype="uint16")
    np.save(path, np.array([1, EOT], np.uint16))
    refused("olmo", tmp_path, "the header of a NumPy file", dtype="uint16")


def test_headers_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    path = write_with_header(tmp_path / "a.bin", [EOT, 1, 2])
    assert read("llmc", tmp_path, side="begin") == 1
    patched(path, 8, number(4, 4))
    refused("llmc", tmp_path, "says 4 tokens, but it has 3 of 4 bytes", side="begin")
    patched(path, 4, number(3, 4))
    refused("llmc", tmp_path, "its header begins with 20240801, 3, 4, 4", side="begin")
    os.truncate(path, 1000)
    refused("llmc", tmp_path, "expected a header of 1,024", side="begin")


@pytest.mark.parametrize(("kind", "write"), [("parquet", write_parquet), ("hf-arrow", write_arrow)])
def test_columns_that_are_not_token_ids(
    kind: str, write: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / f"a.{kind.removeprefix('hf-')}"
    for type_of_ids in (pa.int64(), pa.uint32(), pa.int32()):
        write(path, with_eots(BODIES, EOT, "end"), type_of_ids)
        assert read(kind, tmp_path) == 4
    refused(kind, tmp_path, "document 0: its first token is 1, expected the EOT 9", side="begin")
    write(path, with_eots([*BODIES, [11]], EOT, "end"))
    refused(kind, tmp_path, "document 4: its token 0 is 11, expected an id from 0 to 9")
    write(path, with_eots(BODIES, EOT, "end"), pa.float32())
    refused(kind, tmp_path, "expected lists of integers")


def test_nulls_are_refused(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for lists in ([[1, EOT], None], [[1, EOT], [None, EOT]]):
        column = pa.array(lists, pa.list_(pa.int32()))
        pq.write_table(pa.table({"input_ids": column}), tmp_path / "a.parquet")
        refused("parquet", tmp_path, "document 1: is null, or one of its tokens is")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({}, "give --eot_side begin or end"),
        ({"eot_side": "end", "recipe": "fineweb"}, "--recipe is for documents of text"),
        ({"eot_side": "end", "text_column": "body"}, "--text_column is for documents of text"),
        ({"eot_side": "end", "statistics": True}, "--statistics is for documents of text"),
        ({"eot_side": "end", "split_key": "host"}, "--split_key host: an import has tokens only"),
        (
            {"eot_side": "end", "source_dtype": "uint16"},
            "--source_dtype goes with --from olmo, raw, litdata",
        ),
        (
            {"eot_side": "end", "test_input": "t", "test_shards": 1},
            "--test_shards and --test_input exclude each other",
        ),
        ({"import_from": "llmc", "eot_side": "end"}, "documents of --from llmc begin with"),
        ({"import_from": "olmo", "eot_side": "end"}, "give --source_dtype uint16 or uint32"),
        ({"import_from": "zarr", "eot_side": "end"}, "--import_from must be megatron or"),
        ({"import_from": None, "eot_side": "end"}, "--eot_side is for tokens that exist already"),
        ({"import_from": None, "test_input": "t"}, "--test_input is for tokens that exist"),
    ],
)
def test_flags_that_mean_nothing_are_refused(flags: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        BuildConfig(**{"input": "x", "output": "out", "import_from": "megatron", **flags})
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--tokenizer gpt2", "give --from."),
        ("--from megatron", "give --tokenizer."),
        ("--from megatron --tokenizer gpt2 --dedup exact", "--dedup is for documents of text"),
        ("--from megatron --tokenizer gpt2 --eot_side end", "no file matches that ends with .bin"),
        ("--from mega --tokenizer gpt2", "Did you mean megatron?"),
        ("--from raw --tokenizer gpt2 --eot_side end --test_input y", "--test_input y: no file"),
    ],
)
def test_mistakes_in_the_command(
    words: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["import", "--input", str(tmp_path / "x"), "--output", str(tmp_path / "out")]
    assert main([*command, *words.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_a_file_cannot_be_in_both_splits(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a", with_eots(BODIES, EOT, "end"))
    both = [f"--input={tmp_path}/a.bin", f"--test_input={tmp_path}/a.idx"]
    flags = ["--from=megatron", "--tokenizer=cl100k_base", "--eot_side=end"]
    assert main(["import", *both, *flags, f"--output={tmp_path}/out"]) == 2
    assert not (tmp_path / "out/metadata").exists()


@pytest.mark.parametrize("kind", ["megatron", "datatrove", "olmo", "parquet", "hf-arrow"])
def test_the_first_file_is_checked_before_a_runner_starts(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left in the output folder, so that the right files can be given."""
    (tmp_path / "in").mkdir()
    documents = with_eots(BODIES, EOT, "end")
    if kind == "megatron":
        write_megatron(tmp_path / "in/a", documents)
        patched(tmp_path / "in/a.idx", 0, b"X")
    elif kind == "datatrove":
        write_datatrove(tmp_path / "in/a", documents)
        (tmp_path / "in/a.ds.metadata").write_text("x")
    elif kind == "olmo":
        np.save(tmp_path / "in/a.npy", np.array([1, EOT], np.uint16))
    elif kind == "parquet":
        write_parquet(tmp_path / "in/a.parquet", documents, pa.float32())
    else:
        write_arrow(tmp_path / "in/a.arrow", documents, pa.float32())
    given = ["import", f"--from={kind}", f"--input={tmp_path}/in", "--eot_side=end"]
    given += ["--source_dtype=uint16"] if kind == "olmo" else []
    status = main([*given, "--tokenizer=cl100k_base", f"--output={tmp_path}/out"])
    assert status == InputError.exit_code
    assert "expected" in capsys.readouterr().err or kind == "olmo"
    assert not (tmp_path / "out").exists()


def test_an_import_without_documents_asks_for_no_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_megatron(tmp_path / "a", [np.array([], np.uint32)] * 3)
    given = ["import", "--from=megatron", f"--input={tmp_path}/a.bin", "--eot_side=end"]
    status = main([*given, "--tokenizer=cl100k_base", f"--output={tmp_path}/out"])
    assert status == InputError.exit_code
    said = capsys.readouterr().err
    assert f"the input has no documents: {tmp_path}/a.bin has no bytes. Check --input." in said
    assert "--text_column" not in said
