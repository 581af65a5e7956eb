"""Documents that are tokens already: lists in files of rows, datatrove's and Megatron's files."""

import json
import shutil
import struct
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.damage import load, save_consistently
from support.growing import append, build, content_of, made_up_rows, write_rows
from support.kills import kill
from support.oracle import files_in
from support.web_server import Web

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import InputError, UsageError
from fineshards.maintenance.redact import redact
from fineshards.maintenance.repair import repair
from fineshards.shards.job.settings import Columns, TokenIds
from fineshards.sources.files import find_files
from fineshards.sources.reading import discover_blocks, read_block

Run = Callable[..., CompletedProcess[str]]
# Of cl100k_base.
EOT, IDS = 100_257, 100_277
ONE_SPLIT = ("--test_shards=0", "--shard_tokens=300")


@pytest.fixture(scope="module")
def of_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of texts, some empty, some longer than a shard. Read-only."""
    folder = tmp_path_factory.mktemp("tokens")
    rows = [row for row in made_up_rows(1, 60) if row["text"] is not None]
    build(folder / "out", write_rows(folder / "rows.parquet", rows), *ONE_SPLIT)
    return folder / "out"


def stream(dataset: Path) -> list[int]:
    """All tokens of the split train."""
    names = sorted((dataset / "train").glob("*.npy"))
    return np.concatenate([np.load(name) for name in names]).tolist()


def documents(dataset: Path) -> list[list[int]]:
    """The documents of one without EOTs inside of them, each without its own EOT."""
    tokens = np.array(stream(dataset))
    parts = np.split(tokens, np.flatnonzero(tokens == EOT))[1:]
    return [part[1:].tolist() for part in parts]


def write_megatron(stem: Path, sequences: Sequence[Sequence[int]], borders: Sequence[int]) -> Path:
    """Files as IndexedDatasetBuilder writes them, of int64. borders: of documents, in sequences."""
    lengths = [len(sequence) for sequence in sequences]
    pointers = (np.cumsum([0, *lengths])[:-1] * 8).tolist()
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 5, len(lengths), len(borders))
    arrays = (np.array(lengths, "<i4"), np.array(pointers, "<i8"), np.array(borders, "<i8"))
    stem.with_suffix(".idx").write_bytes(head + b"".join(array.tobytes() for array in arrays))
    np.array([*chain(*sequences)], "<i8").tofile(stem.with_suffix(".bin"))
    return stem.with_suffix(".bin")


def write_datatrove(path: Path, rows: Sequence[Sequence[int]], dtype: str = "<u4") -> Path:
    """Files as TokenizedFile of datatrove writes them."""
    np.array([*chain(*rows)], dtype).tofile(path)
    np.cumsum([len(row) for row in rows], dtype="<u8").tofile(f"{path}.index")
    return path


@pytest.mark.parametrize("side", ["begin", "end"])
@pytest.mark.parametrize("to", ["datatrove", "megatron"])
def test_a_build_of_an_export_has_the_documents_and_its_export_the_bytes(
    of_text: Path, to: str, side: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"eot": side, "tokens_per_file": 900}
    fineshards.export(of_text, tmp_path / "first", to, **options)
    # The folder has several files of tokens, their indexes, and the record of the export.
    build(tmp_path / "again", tmp_path / "first", *ONE_SPLIT, "--block_bytes=500")
    assert stream(tmp_path / "again") == stream(of_text)
    assert fineshards.verify(tmp_path / "again", sample="100%").ok
    fineshards.export(tmp_path / "again", tmp_path / "second", to, **options)
    first, second = (files_in(tmp_path / name) for name in ("first", "second"))
    assert len(first) > 3
    for files in (first, second):
        del files["export.json"]
    assert first == second


LISTS = {
    "parquet": pa.list_(pa.int32()),
    "arrow": pa.large_list(pa.int64()),
    "feather": pa.list_view(pa.uint64()),
    "jsonl": None,
}


def write_lists(path: Path, lists: Sequence[list[int | None] | None]) -> Path:
    """Rows with the column `ids`, by the ending of the file."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"ids": row, "id": "x"}) + "\n" for row in lists))
        return path
    table = pa.table({"ids": pa.array(lists, LISTS[path.suffix[1:]])})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=3)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    return path


@pytest.mark.parametrize("ending", LISTS)
def test_lists_are_documents_and_bad_ones_bad_rows(
    ending: str, tmp_path: Path, in_process: Run
) -> None:
    good = [[5, 6], [EOT, 7, EOT], [], [EOT], None, [8, EOT, 9], [EOT, EOT, 1, EOT, EOT, 2]]
    bad = [[3, IDS], [1, -1], [None, 2], [1, 2, 1 << 62]]
    lists = [*good[:3], *bad[:2], *good[3:], *bad[2:]]
    if ending == "parquet":  # of int32
        lists.pop()
    if ending == "feather":  # unsigned
        lists.remove([1, -1])
    expected = [EOT, 5, 6, EOT, 7, EOT, EOT, EOT, 8, EOT, 9, EOT, 1, EOT, EOT, 2]
    path = write_lists(tmp_path / f"a.{ending}", lists)
    flags = ["--tokens_column=ids", *ONE_SPLIT, "--max_bad_rows=4", "--block_bytes=8"]
    build(tmp_path / "out", path, *flags)
    assert stream(tmp_path / "out") == expected
    totals = fineshards.verify(tmp_path / "out", sample="100%")
    assert (totals.ok, totals.problems, totals.documents) == (True, [], 6)
    rejected = [
        json.loads(line)["reason"]
        for file in (tmp_path / "out/metadata/rejected").iterdir()
        for line in file.read_text().splitlines()
    ]
    assert len(rejected) == len(lists) - len(good)
    beyond = f"its token 1 is null, or not an id of the tokenizer, which has {IDS:,}"
    assert beyond in rejected
    described = in_process("inspect", tmp_path / "out").stdout
    assert "  EOTs       3 inside of documents, which were tokens already\n" in described
    assert json.loads(in_process("inspect", tmp_path / "out", "--json").stdout)["inner_eots"] == 3


def test_json_that_is_no_list_of_integers_is_a_bad_row(tmp_path: Path) -> None:
    lines = ['{"ids": [1]}', '{"ids": [1.5]}', '{"ids": [true]}', '{"ids": "1 2"}', '{"id": 3}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    flags = ["--tokens_column=ids", *ONE_SPLIT, "--max_bad_rows=4"]
    build(tmp_path / "out", tmp_path / "a.jsonl", *flags)
    assert stream(tmp_path / "out") == [EOT, 1]
    (file,) = (tmp_path / "out/metadata/rejected").iterdir()
    reasons = [json.loads(line)["reason"] for line in file.read_text().splitlines()]
    assert reasons == [
        *["its 'ids' holds something that is not an integer"] * 2,
        "its 'ids' is a string, expected a list of integers",
        "has no field 'ids' (an object of 1 field)",
    ]


def test_another_number_of_eots_inside_of_documents_is_found(tmp_path: Path) -> None:
    path = write_datatrove(tmp_path / "a.ds", [[1, EOT, 2], [3]])
    build(tmp_path / "out", path, *ONE_SPLIT)
    redacted = Path(shutil.copytree(tmp_path / "out", tmp_path / "redacted"))
    redact(str(redacted), documents=[0])
    assert fineshards.verify(redacted).ok
    assert fineshards.verify(redacted, generation=1).ok
    shard = "train/train_0000.npy"
    tokens = load(tmp_path / "out", shard)
    tokens[tokens == 1] = EOT
    save_consistently(tmp_path / "out", shard, tokens)
    assert fineshards.verify(tmp_path / "out").problems == [
        "the number of EOTs inside of documents is 2; the manifest says 1"
    ]


@pytest.mark.parametrize("block_bytes", [1, 20, 10_000])
def test_megatron_s_documents_may_be_several_sequences(block_bytes: int, tmp_path: Path) -> None:
    sequences = [[1, 2], [3], [], [4, EOT], [5, 6, 7, EOT]]
    path = write_megatron(tmp_path / "a.bin", sequences, [0, 2, 2, 4, 5])
    build(tmp_path / "out", path, *ONE_SPLIT, f"--block_bytes={block_bytes}")
    assert stream(tmp_path / "out") == [EOT, 1, 2, 3, EOT, EOT, 4, EOT, 5, 6, 7]


def test_datatrove_s_tokens_may_have_two_bytes(tmp_path: Path) -> None:
    path = write_datatrove(tmp_path / "a.ds", [[1, 2], [65_535]], "<u2")
    build(tmp_path / "out", path, *ONE_SPLIT)
    assert stream(tmp_path / "out") == [EOT, 1, 2, EOT, 65_535]


@pytest.mark.parametrize("absent", [403, 404])
@pytest.mark.parametrize("query", ["", "?v=1", "?v=1.ds#x"])
def test_files_on_a_server_are_read_with_their_indexes(
    query: str, absent: int, tmp_path: Path
) -> None:
    path = write_datatrove(tmp_path / "a.ds", [[1, 2], [3]])
    bin_ = write_megatron(tmp_path / "b.bin", [[4], [5, 6]], [0, 1, 2])
    with Web(absent=absent) as web:
        urls = [f"{web.put(name.name, name.read_bytes())}{query}" for name in (path, bin_)]
        web.put("a.ds.index", Path(f"{path}.index").read_bytes())
        web.put("b.idx", bin_.with_suffix(".idx").read_bytes())
        build(tmp_path / "out", *urls, *ONE_SPLIT)
    assert stream(tmp_path / "out") == [EOT, 1, 2, EOT, 3, EOT, 4, EOT, 5, 6]


@pytest.mark.parametrize("ending", [".idx", ".IDX"])
def test_an_ending_may_be_in_capitals(ending: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    bin_ = write_megatron(folder / "a.bin", [[4], [5, 6]], [0, 1, 2])
    bin_.with_suffix(".idx").rename(bin_.with_suffix(ending))
    bin_.rename(folder / "a.BIN")
    ds = write_datatrove(folder / "b.ds", [[1, 2], [3]])
    if ending == ".IDX":
        Path(f"{ds}.index").rename(folder / "b.DS.INDEX")
        ds.rename(folder / "b.DS")
    build(tmp_path / "out", folder, *ONE_SPLIT)
    assert stream(tmp_path / "out") == [EOT, 4, EOT, 5, 6, EOT, 1, 2, EOT, 3]
    assert all("; index " in file.identity for file in find_files([str(folder)]))


def test_an_index_that_changes_while_a_job_runs_ends_it(tmp_path: Path, capsys: Any) -> None:
    """Also where the blocks that are to be read have as many tokens as before."""
    path = write_datatrove(tmp_path / "a.ds", [[1, 2], [3, 4], [5, 6], [7, 8]])
    index, out = Path(f"{path}.index"), tmp_path / "out"
    command = ["build", f"--input={path}", f"--output={out}", "--block_bytes=16", *ONE_SPLIT]
    kill("replace:9", *command)
    assert [*out.glob("checkpoints/*/*")]
    np.array([1, 4, 5, 8, 8], "<u8").tofile(index)
    assert main(command) == 2
    said = capsys.readouterr().err
    assert f"{path} changed: it had 32 bytes and the time 20" in said
    assert "Z, and an index of 40 bytes and the time 20" in said
    assert main([*command, "--trust_input"]) == 2  # it has other documents
    np.array([1, 4, 5, 8], "<u8").tofile(index)
    capsys.readouterr()
    assert main(command) == 2
    assert "Give --trust_input if the content is the same" in capsys.readouterr().err
    np.array([2, 4, 6, 8], "<u8").tofile(index)
    assert main([*command, "--trust_input"]) == 0
    assert documents(out) == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert fineshards.verify(out, sample="100%").ok


@pytest.mark.parametrize("far", [False, True])
def test_an_index_of_another_version_is_not_read(far: bool, tmp_path: Path) -> None:
    path = write_datatrove(tmp_path / "a.ds", [[1, 2], [3, 4]])
    index, columns = (
        Path(f"{path}.index"),
        Columns("input_ids", "id", id_required=False, tokens=TokenIds(EOT, IDS)),
    )
    with Web() as web:
        url = web.put("a.ds", path.read_bytes())
        web.put("a.ds.index", index.read_bytes())
        (file,) = find_files([url if far else str(path)])
        (block,) = discover_blocks(file, columns, 1 << 20)
        other = np.array([1, 4], "<u8").tobytes()
        web.put("a.ds.index", other, "02:00:00")
        index.write_bytes(other)
        with pytest.raises(InputError, match=r"a\.ds changed since .* and an index of 16 bytes"):
            [*read_block(file, columns, block)]
        if not far:
            index.unlink()
            with pytest.raises(InputError, match=r"a\.ds changed since .*, now 16 bytes"):
                [*read_block(file, columns, block)]


def test_splits_shuffles_appends_redactions_and_repairs_are_those_of_texts(
    of_text: Path, tmp_path: Path
) -> None:
    fineshards.export(of_text, tmp_path / "x", "datatrove", tokens_per_file=900)
    files = sorted((tmp_path / "x/train").glob("*.ds"))
    flags = ("--shard_tokens=300", "--test_fraction=0.2", "--shuffle_seed=1", "--block_bytes=400")
    build(tmp_path / "whole", *files, *flags)
    out = tmp_path / "out"
    build(out, files[0], *flags)
    append(out, *files[1:])
    grown, whole = (content_of(tmp_path / name) for name in ("out", "whole"))
    assert sorted(grown["train tokens"]) == sorted(whole["train tokens"])
    redact(str(out), documents=[1])
    (out / "train/train_0000.npy").unlink()
    assert repair(str(out)).repaired == ["train/train_0000.npy"]
    assert fineshards.verify(out, sample="100%").ok


@pytest.mark.parametrize(
    "flag", ["--text_column=x", "--dedup=exact", "--statistics", "--chat_template=chatml"]
)
def test_what_is_about_texts_is_refused(flag: str, tmp_path: Path, capsys: Any) -> None:
    path = write_datatrove(tmp_path / "a.ds", [[1]])
    assert main(["build", f"--input={path}", f"--output={tmp_path}/out", flag]) == 2
    name = flag.split("=")[0]
    said = f"{path} needs --tokens_column: {name} and --tokens_column exclude each other; give one."
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def refused(path: Path, tmp_path: Path, **options: Any) -> str:
    with pytest.raises((InputError, UsageError)) as error:
        fineshards.build(input=path, output=tmp_path / "out", **options)
    return str(error.value)


def test_an_index_that_is_missing_damaged_or_of_another_file_is_named(tmp_path: Path) -> None:
    ds = write_datatrove(tmp_path / "a.ds", [[1, 2], [3]])
    index = Path(f"{ds}.index")
    whole = index.read_bytes()
    index.unlink()
    assert f"{index} is missing, which says where documents end in {ds}" in refused(ds, tmp_path)
    for content in (whole[:8], whole[8:] + whole[:8], np.array([2, 4], "<u8").tobytes()):
        index.write_bytes(content)
        assert "One of both is damaged, or of another file" in refused(ds, tmp_path)
    index.write_bytes(whole)
    Path(f"{ds}.loss").touch()
    assert f"{ds}.loss says which tokens are learned, which is not read" in refused(ds, tmp_path)
    megatron = write_megatron(tmp_path / "b.bin", [[1, 2], [3]], [0, 1, 2])
    index = megatron.with_suffix(".idx")
    whole = index.read_bytes()
    assert "holds numbers of type 7" in refused_with(index, whole, 17, b"\7", tmp_path)
    assert "is not an index of Megatron's" in refused_with(index, whole, 0, b"N", tmp_path)
    assert "do not follow each other" in refused_with(index, whole, 42, b"\1", tmp_path)
    assert "documents are not in order" in refused_with(index, whole, 66, b"\7", tmp_path)
    index.write_bytes(whole[:40])
    assert "is damaged" in refused(megatron, tmp_path)
    index.unlink()
    assert f"{index} is missing" in refused(megatron, tmp_path)


def refused_with(index: Path, whole: bytes, at: int, byte: bytes, tmp_path: Path) -> str:
    """What is said of an index with another byte."""
    index.write_bytes(whole[:at] + byte + whole[at + 1 :])
    return refused(index.with_suffix(".bin"), tmp_path)


def test_tokens_and_texts_do_not_mix(of_text: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_lists(source / "a.parquet", [[1]])
    said = refused(source / "a.parquet", tmp_path, text_column="ids")
    assert "has type list<element: int32>, expected a string type" in said
    shutil.copy(of_text.parent / "rows.parquet", source / "b.parquet")
    said = refused(source / "b.parquet", tmp_path, tokens_column="text")
    assert "expected lists of integers. Choose one with --tokens_column" in said
    write_datatrove(source / "c.ds", [[1]])
    said = refused(source, tmp_path)
    assert "has no column 'input_ids'" in said
    build(tmp_path / "grown", of_text.parent / "rows.parquet", "--test_shards=0")
    with pytest.raises(InputError, match="has no column 'text'; its columns are input_ids"):
        fineshards.append(tmp_path / "grown", input=source / "c.ds")
