"""Parquet files: blocks from footers, and every row once and in order."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.source_files import COLUMNS, STRINGS, blocks_of, describe, read_all, write_groups

from fineshards.errors import InputError
from fineshards.shards.job.settings import Columns
from fineshards.sources.reading import read_block


def table(texts: list[str | None], first: int = 0) -> pa.Table:
    ids = [f"id{first + n}" for n in range(len(texts))]
    return pa.table({"text": pa.array(texts, pa.string()), "id": pa.array(ids, pa.string())})


def tables(*sizes: int) -> list[pa.Table]:
    """Row groups with these numbers of rows, each with about 20 bytes of text."""
    firsts = np.cumsum([0, *sizes]).tolist()
    return [
        table([f"the text of row {first + n:04d}" for n in range(size)], first)
        for first, size in zip(firsts, sizes, strict=False)
    ]


def test_blocks_are_row_groups_until_their_text_reaches_the_limit(tmp_path: Path) -> None:
    path = write_groups(tmp_path / "a.parquet", tables(10, 20, 30, 40))
    metadata = pq.read_metadata(path)
    sizes = [metadata.row_group(n).column(0).total_uncompressed_size for n in range(4)]
    each = blocks_of(path, block_bytes=1)
    assert [(block.first_group, block.stop_group) for block in each] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
    ]
    assert [block.first_row for block in each] == [0, 10, 30, 60]
    assert [block.bytes for block in each] == sizes
    assert [(block.index, block.blocks) for block in each] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    (whole,) = blocks_of(path, block_bytes=10**12)
    assert (whole.first_group, whole.stop_group, whole.first_row) == (0, 4, 0)
    assert whole.bytes == sum(sizes)
    two = blocks_of(path, block_bytes=sizes[0] + 1)
    assert [(block.first_group, block.stop_group) for block in two] == [(0, 2), (2, 3), (3, 4)]
    exact = blocks_of(path, block_bytes=sizes[0] + sizes[1])
    assert [(block.first_group, block.stop_group) for block in exact] == [(0, 2), (2, 4)]


def test_a_file_without_row_groups_has_an_empty_block(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, table([]).schema):
        pass
    assert pq.read_metadata(path).num_row_groups == 0
    (block,) = blocks_of(path)
    assert (block.blocks, block.first_group, block.stop_group, block.bytes) == (1, 0, 0, 0)
    assert read_all(path).rows == []


def test_a_file_of_empty_row_groups_has_no_rows(tmp_path: Path) -> None:
    path = write_groups(tmp_path / "a.parquet", tables(0, 0))
    assert pq.read_metadata(path).num_row_groups == 2
    assert len(blocks_of(path)) >= 1
    assert read_all(path).rows == []


@pytest.mark.parametrize("kind", STRINGS, ids=str)
@pytest.mark.parametrize("block_bytes", [1, 10**9])
def test_all_string_types_are_read(tmp_path: Path, kind: pa.DataType, block_bytes: int) -> None:
    texts = ["b", None, "", "a", "b", "naïve 中文 👩‍👩‍👧‍👦", None, "a\x00b", "\ufeff"]
    column = pa.array(texts, pa.string()).cast(kind)
    whole = pa.table({"text": column, "id": column, "language": column})
    path = write_groups(tmp_path / "a.parquet", [whole.slice(0, 4), whole.slice(4)])
    read = read_all(path, block_bytes)
    assert read.rows == list(zip(range(9), texts, texts, strict=True))
    assert read.labels == {"language": texts}


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pa.array([7, None, 2**40]), ["7", None, str(2**40)]),
        (pa.array([2**64 - 1, 0, 1], pa.uint64()), [str(2**64 - 1), "0", "1"]),
        (pa.array(["x", "", None]), ["x", "", None]),
        (pa.array([True, False, None]), ["true", "false", None]),
        (pa.nulls(3), [None, None, None]),
        (pa.array([b"a", b"b", None], pa.binary()), ["a", "b", None]),
    ],
)
def test_ids_of_any_primitive_type_become_text(
    tmp_path: Path, ids: pa.Array, expected: list[str | None]
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": ids, "text": ["a", "b", "c"]}), path)
    assert [id_ for _, _, id_ in read_all(path).rows] == expected


def test_ids_are_null_where_a_file_has_none(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), path)
    assert read_all(path).rows == [(0, "a", None), (1, "b", None)]
    with pytest.raises(InputError, match=r"a\.parquet has no column 'id'; its columns are text\. "):
        blocks_of(path, columns=Columns("text", "id", id_required=True))


def test_nested_columns_are_not_mistaken_for_the_text(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    nested = pa.array([{"text": "wrong", "id": "wrong"}])
    columns = {"before": nested, "text": ["right"], "list": [["wrong"]], "id": ["i"]}
    pq.write_table(pa.table(columns), path)
    (block,) = blocks_of(path)
    expected = pq.read_metadata(path).row_group(0).column(2)
    assert expected.path_in_schema == "text"
    assert block.bytes == expected.total_uncompressed_size
    assert read_all(path).rows == [(0, "right", "i")]


def test_labels_that_are_not_strings_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"], "dump": [1], "language": ["en"]}), path)
    assert read_all(path).labels == {"language": ["en"]}


def test_text_that_is_not_utf8_is_a_bad_row_and_other_rows_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    raw = [b"good", b"\xff\xfe", None, b"also \xc3\xa4", b"\xed\xa0\x80", b"end"]
    pq.write_table(pa.table({"text": not_utf8(raw), "id": list("abcdef")}), path)
    read = read_all(path)
    assert read.rows == [(0, "good", "a"), (2, None, "c"), (3, "also ä", "d"), (5, "end", "f")]
    assert [(bad.row, bad.place, bad.reason) for bad in read.bad] == [
        (1, "", "its 'text' is not valid UTF-8"),
        (4, "", "its 'text' is not valid UTF-8"),
    ]


def not_utf8(values: list[bytes | None]) -> pa.Array:
    """A string column with invalid UTF-8, which writers need not check."""
    binary = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), binary.buffers())


def test_one_bad_value_of_a_dictionary_makes_only_its_rows_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    column = not_utf8([b"good", b"\xff", b"good", b"fine", b"\xff"]).dictionary_encode()
    pq.write_table(pa.table({"text": column}), path)
    read = read_all(path)
    assert read.rows == [(0, "good", None), (2, "good", None), (3, "fine", None)]
    assert [bad.row for bad in read.bad] == [1, 4]


def test_a_named_id_that_is_not_utf8_makes_a_row_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b", "c"], "id": not_utf8([b"x", b"\xff", None])}), path)
    read = read_all(path, columns=Columns("text", "id", id_required=True))
    assert read.rows == [(0, "a", "x"), (2, "c", None)]
    (bad,) = read.bad
    assert (bad.row, bad.reason) == (1, "its 'id' is not valid UTF-8")


def test_a_column_that_was_not_asked_for_makes_no_row_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = [b"x", b"\xff", None]
    columns = {"id": pa.array(values), "dump": not_utf8(values)}
    pq.write_table(pa.table({"text": ["a", "b", "c"]} | columns), path)
    read = read_all(path)
    assert read.rows == [(0, "a", "x"), (1, "b", None), (2, "c", None)]
    assert (read.bad, read.labels) == ([], {"dump": ["x", None, None]})


@pytest.mark.parametrize("ids", [pa.array([["x"]]), pa.array([{"a": 1}])], ids=str)
def test_an_id_column_that_cannot_become_text_is_ignored_unless_required(
    tmp_path: Path, ids: pa.Array
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"], "id": ids}), path)
    assert read_all(path).rows == [(0, "a", None)]
    with pytest.raises(InputError, match=r"column 'id' has type (list|struct).*--id_column"):
        blocks_of(path, columns=Columns("text", "id", id_required=True))


def test_a_file_changed_since_launch_is_refused(tmp_path: Path) -> None:
    path = write_groups(tmp_path / "a.parquet", tables(5))
    file = describe(path)
    (block,) = blocks_of(path)
    write_groups(path, tables(6))
    with pytest.raises(InputError, match=r"a\.parquet changed since the job was launched"):
        list(read_block(file, COLUMNS, block))


def test_a_file_touched_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write_groups(tmp_path / "a.parquet", tables(5, 5))
    file = describe(path)
    (block,) = blocks_of(path, block_bytes=10**9)
    reading = read_block(file, COLUMNS, block)
    next(reading)
    state = path.stat()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    with pytest.raises(InputError, match=r"since the job was launched: .* the time 2\d+-.*Z, now"):
        list(reading)
