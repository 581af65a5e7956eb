"""Datasets made of token files of other trainers have the bytes that a build of the texts has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from support.checkout import ROOT
from support.oracle import ENCODING, EOT, cut, shards_in
from support.token_files import (
    Bodies,
    Documents,
    made_up,
    stream_of,
    with_eots,
    write_arrow,
    write_datatrove,
    write_megatron,
    write_parquet,
    write_plain,
    write_with_header,
)
from support.tokenizer_files import path_of

from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.recipe_record import RecipeRecord
from fineshards.shards.job.records import SourceFile
from fineshards.storage.open import open_storage
from fineshards.verification.verify import verify

SCHEMA = json.loads((ROOT / "docs/manifest.schema.json").read_text())


def halves(folder: Path, ending: str) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / f"part_{number}{ending}" for number in range(2))


def two_files(write: Callable[[Path, Documents], Path], folder: Path, ending: str, side: str):
    """Writes documents to two files, and says how to import them."""

    def write_all(bodies: Bodies) -> list[str]:
        documents = with_eots(bodies, EOT, side)
        middle = len(documents) // 3
        parts = documents[:middle], documents[middle:]
        for path, part in zip(halves(folder, ending), parts, strict=True):
            write(path, part)
        return [f"--input={folder}", f"--eot_side={side}"]

    return write_all


def llmc(folder: Path, magic: int) -> Callable[[Bodies], list[str]]:
    def write_all(bodies: Bodies) -> list[str]:
        folder.mkdir()
        stream = stream_of(bodies)
        for number, at in enumerate(range(0, len(stream), 1500)):
            write_with_header(folder / f"{number:03d}.bin", stream[at : at + 1500], magic)
        return [f"--input={folder}/*.bin"]

    return write_all


def layouts(folder: Path) -> dict[str, Callable[[Bodies], list[str]]]:
    def megatron(dtype: str) -> Callable[[Path, Documents], Path]:
        return lambda path, documents: write_megatron(path, documents, dtype)

    return {
        "megatron": two_files(megatron("<i4"), folder, "", "end"),
        "megatron int64 begin": two_files(megatron("<i8"), folder, "", "begin"),
        "datatrove": two_files(write_datatrove, folder, "", "end"),
        "olmo uint32": two_files(write_plain, folder, ".npy", "end"),
        "olmo uint32 begin": two_files(write_plain, folder, ".npy", "begin"),
        "raw uint32": two_files(write_plain, folder, ".bin", "end"),
        "llmc": llmc(folder, 20240801),
        "nemo": llmc(folder, 278895051),
        "parquet": two_files(write_parquet, folder, ".parquet", "end"),
        "hf-arrow begin": two_files(write_arrow, folder, ".arrow", "begin"),
    }


def take(kind: str, output: Path, *flags: str) -> int:
    """Runs `fineshards import` in this process."""
    named = ["--tokenizer=cl100k_base", "--shard_tokens=3000", f"--output={output}"]
    return main(["import", f"--from={kind}", *named, *flags])


@pytest.mark.long
@pytest.mark.parametrize("name", list(layouts(Path())))
def test_the_shards_are_the_stream_of_the_documents(name: str, tmp_path: Path) -> None:
    kind, *words = name.split()
    bodies = made_up(1, 60)
    named = layouts(tmp_path / "tokens")[name](bodies)
    types = [f"--source_dtype={word}" for word in words if word == "uint32"]
    output = tmp_path / "out"
    assert take(kind, output, *named, *types, "--test_shards=1", "--block_bytes=900") == 0
    assert shards_in(output) == cut(stream_of(bodies), 3000, 1)
    check_whole(output, bodies)


def check_whole(output: Path, bodies: Bodies) -> None:
    """The manifest is as its schema says, counts balance, and every document is in its source."""
    content = json.loads((output / "metadata/manifest.json").read_text())
    jsonschema.validate(content, SCHEMA)
    assert Manifest.load(open_storage(str(output))) is not None
    assert content["totals"]["documents"] == content["totals"]["rows"] == len(bodies)
    assert content["totals"]["tokens"] == len(stream_of(bodies))
    assert content["totals"]["text_bytes"] == content["totals"]["compared"] == 0
    verdict = verify(str(output), sample=100)
    assert (verdict.problems, verdict.sampled) == ([], len(bodies))


def test_the_tables_say_where_each_document_is(tmp_path: Path) -> None:
    bodies = made_up(2, 50)
    named = layouts(tmp_path / "tokens")["megatron"](bodies)
    assert take("megatron", tmp_path / "out", *named, "--test_shards=0", "--block_bytes=1") == 0
    tables = sorted((tmp_path / "out/metadata/documents").iterdir())
    found = pa.concat_tables(map(pq.read_table, tables)).to_pylist()
    begun = [row for row in found if row["start"] == 0]
    assert [row["document"] for row in begun] == list(range(50))
    assert [row["row"] for row in begun] == [*range(16), *range(34)]
    assert {row["file"] for row in begun[:16]} == {str(tmp_path / "tokens/part_0.bin")}
    assert {row["id"] for row in found} == {None}
    lengths = [0] * 50
    for row in found:
        lengths[row["document"]] += row["length"]
    assert lengths == [1 + len(body) for body in bodies]


def test_the_split_is_by_the_tokens_so_duplicates_are_on_one_side(tmp_path: Path) -> None:
    bodies = made_up(3, 80)
    named = layouts(tmp_path / "tokens")["datatrove"](bodies)
    flags = ["--test_fraction=0.3", "--workers=1", "--dtype=uint32"]
    assert take("datatrove", tmp_path / "out", *named, *flags) == 0
    hashes = [
        xxhash.xxh3_64_intdigest(np.array(body, "<u4").tobytes(), seed=0x66732D73706C6974) >> 32
        for body in bodies
    ]
    test = [body for body, number in zip(bodies, hashes, strict=True) if number < 0.3 * 2**32]
    train = [body for body in bodies if body not in test]
    assert len(test) + len(train) == 80
    expected = cut(stream_of(test), 3000, 99) | cut(stream_of(train), 3000, 0)
    assert shards_in(tmp_path / "out") == expected


def test_records_of_text_are_as_they_were(sample: Path, tmp_path: Path) -> None:
    assert main(["build", f"--input={sample}", f"--output={tmp_path}/out", "--limit=3"]) == 0
    for name in ("job", "manifest"):
        record = (tmp_path / f"out/metadata/{name}.json").read_text()
        assert "imported" not in record
        assert "companions" not in record
    index = SourceFile(0, "keys", 1, "mtime:1", "keys", "none")
    recipe = RecipeRecord((), "0", indexes=((0, index),))
    assert "companions" not in json.dumps(recipe.to_json())
    assert RecipeRecord.from_json(recipe.to_json()) == recipe


def exported(dataset: Path, folder: Path, side: str, eot: int) -> None:
    """A dataset's documents as files of Megatron, one per split: what an export does."""
    folder.mkdir()
    content = shards_in(dataset)
    for split in ("test", "train"):
        parts = [np.load(dataset / name) for name in sorted(content) if name.startswith(split)]
        stream = np.concatenate(parts).astype(np.uint32)
        starts = np.flatnonzero(stream == eot)
        bodies = [each[1:].tolist() for each in np.split(stream, starts)[1:]]
        dtype = "<u2" if parts[0].dtype.itemsize == 2 else "<i4"
        write_megatron(folder / split, with_eots(bodies, eot, side), dtype)


@pytest.mark.long
@pytest.mark.parametrize(
    ("tokenizer", "dtype", "side", "shuffle"),
    [
        ("cl100k_base", "uint32", "end", ()),
        ("gpt2", "uint16", "begin", ()),
        ("cl100k_base", "uint32", "begin", ("--shuffle_seed=7",)),
    ],
)
def test_an_import_of_what_a_build_gave_has_its_bytes(
    tokenizer: str,
    dtype: str,
    side: str,
    shuffle: tuple[str],
    sample: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tokenizer if tokenizer == "cl100k_base" else path_of(tokenizer)
    same = [f"--tokenizer={place}", f"--dtype={dtype}", "--shard_tokens=10000"]
    built = tmp_path / "built"
    pq.write_table(pq.read_table(sample).slice(0, 200), tmp_path / "texts.parquet")
    texts = [f"--input={tmp_path}/texts.parquet", "--test_fraction=0.1", *shuffle]
    assert main(["build", *texts, *same, f"--output={built}"]) == 0
    eot = Manifest.load_finished(open_storage(str(built))).settings.tokenizer.eot
    exported(built, tmp_path / "files", side, eot)
    files = [f"--input={tmp_path}/files/train", f"--test_input={tmp_path}/files/test"]
    how = ["--from=megatron", *files, f"--eot_side={side}", *same]
    for number, size in enumerate(["20000", "2M"]):
        output = tmp_path / f"taken-{number}"
        assert main(["import", *how, f"--block_bytes={size}", f"--output={output}"]) == 0
        assert shards_in(output) == shards_in(built)
    assert verify(str(output), sample="5%").problems == []
    capsys.readouterr()
    assert main(["inspect", str(output)]) == 0
    described = capsys.readouterr().out
    assert "--test_input, the first 1 of the files" in described
    assert "from 2 files of megatron" in described


def with_empty_documents(stem: Path, bodies: Bodies, empty: set[int], side: str) -> None:
    """A file of Megatron some of whose documents have no sequence, as its preprocessing makes them.

    empty: the numbers of these documents, of which there are as many more.
    """
    write_megatron(stem, with_eots(bodies, EOT, side))
    content = bytearray(stem.with_suffix(".idx").read_bytes())
    count = len(bodies) + len(empty)
    there = [0 if number in empty else 1 for number in range(count)]
    numbers = np.concatenate([[0], np.cumsum(there)]).astype("<i8")
    content[26:34] = (count + 1).to_bytes(8, "little")
    head = content[: 34 + 12 * len(bodies)]
    stem.with_suffix(".idx").write_bytes(bytes(head) + numbers.tobytes())


@pytest.mark.long
@pytest.mark.parametrize("side", ["begin", "end"])
@pytest.mark.parametrize("block_bytes", [1, 900, 1 << 20])
def test_documents_without_tokens_are_counted_and_their_rows_kept(
    side: str, block_bytes: int, tmp_path: Path
) -> None:
    bodies = made_up(4, 40)
    empty = {0, 1, 7, 20, 21, 22, 45, 46}
    (tmp_path / "in").mkdir()
    with_empty_documents(tmp_path / "in/a", bodies, empty, side)
    output = tmp_path / "out"
    flags = [f"--input={tmp_path}/in", f"--eot_side={side}", "--test_shards=1"]
    assert take("megatron", output, *flags, f"--block_bytes={block_bytes}") == 0
    assert shards_in(output) == cut(stream_of(bodies), 3000, 1)
    manifest = Manifest.load_finished(open_storage(str(output)))
    totals = manifest.totals()
    assert (totals["rows"], totals["documents"], totals["nulls"]) == (48, 40, 8)
    tables = sorted((output / "metadata/documents").iterdir(), key=lambda path: path.name)
    found = [row for table in tables for row in pq.read_table(table).to_pylist()]
    rows = [row["row"] for row in found if row["start"] == 0]
    assert rows == [row for row in range(48) if row not in empty]
    verdict = verify(str(output), sample=100)
    assert (verdict.problems, verdict.sampled) == ([], 40)


def test_megatrons_empty_documents_go_with_texts_that_have_none(tmp_path: Path) -> None:
    """Texts are compared with the documents that have tokens; a limit counts these alone."""
    texts = ["one", "two and three", "four"]
    encoded = [ENCODING.encode_ordinary(text) for text in texts]
    with_empty_documents(tmp_path / "a", encoded, {0, 2, 5}, "end")
    lines = [None, "one", None, "two and three", "four", None]
    pq.write_table(pa.table({"text": pa.array(lines, pa.string())}), tmp_path / "texts.parquet")
    flags = [f"--input={tmp_path}/a.bin", "--eot_side=end", "--test_shards=0"]
    texts_too = [f"--verify_text={tmp_path}/texts.parquet"]
    assert take("megatron", tmp_path / "out", *flags, *texts_too) == 0
    assert shards_in(tmp_path / "out") == cut(stream_of(encoded), 3000, 0)
    assert take("megatron", tmp_path / "two", *flags, "--limit=2") == 0
    assert shards_in(tmp_path / "two") == cut(stream_of(encoded[:2]), 3000, 0)


@pytest.mark.parametrize("files", ["1" * 5000, "x", "", "-1"])
def test_a_record_whose_number_of_test_files_cannot_be_read_is_refused(
    files: str, tmp_path: Path
) -> None:
    write_megatron(tmp_path / "a", with_eots([[1], [2]], EOT, "end"))
    write_megatron(tmp_path / "b", with_eots([[3]], EOT, "end"))
    flags = [f"--input={tmp_path}/a.bin", f"--test_input={tmp_path}/b.bin", "--eot_side=end"]
    assert take("megatron", tmp_path / "out", *flags) == 0
    record = (tmp_path / "out/metadata/job.json").read_bytes()
    changed = record.replace(b'"files:1"', f'"files:{files}"'.encode())
    assert changed != record
    with pytest.raises(OutputError, match="is not a readable job record"):
        Job.parse(changed, "job.json")
