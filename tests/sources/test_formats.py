"""What holds for every format: the rows of a file depend on its content alone."""

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc
from support.source_files import describe, read_file

from fineshards.shards.job.records import BadRow
from fineshards.shards.job.settings import Columns
from fineshards.shards.record import replace
from fineshards.sources.formats import format as of_all
from fineshards.sources.formats.format import FORMATS, gathered
from fineshards.sources.reading import discover_blocks, read_block

SCHEMA = pa.schema([("text", pa.string()), ("id", pa.string()), ("n", pa.string())])
COLUMNS = Columns("text", "id", id_required=True, split="n", others=("n",))
Rows = list[tuple[str | None, str, str]]
# Of letters that formats give a meaning.
TEXTS = st.text(st.sampled_from("aé中\"',\t\n\r{}\\ \x00"), max_size=9)
TABLES = st.lists(st.tuples(st.one_of(st.none(), TEXTS), TEXTS, TEXTS), max_size=30)


def as_parquet(rows: Rows, group: int) -> bytes:
    written = io.BytesIO()
    table = pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA
    )
    pq.write_table(table, written, row_group_size=group)
    return written.getvalue()


def as_arrow(rows: Rows, group: int) -> bytes:
    written = io.BytesIO()
    table = pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA
    )
    with ipc.new_file(written, SCHEMA) as writer:
        writer.write_table(table, max_chunksize=group)
    return written.getvalue()


def as_jsonl(rows: Rows, group: int) -> bytes:
    return b"".join(
        json.dumps(dict(zip(SCHEMA.names, row, strict=True))).encode() + b"\n" for row in rows
    )


def as_csv(rows: Rows, group: int, delimiter: str = ",") -> bytes:
    """An empty value is null unless it is quoted, which Python's writer cannot tell."""
    quoted = [
        delimiter.join(
            "" if value is None else '"' + value.replace('"', '""') + '"' for value in row
        )
        for row in [SCHEMA.names, *rows]
    ]
    return "\n".join(quoted).encode()


def as_tsv(rows: Rows, group: int) -> bytes:
    return as_csv(rows, group, "\t")


WRITERS: dict[str, Callable[[Rows, int], bytes]] = {
    "parquet": as_parquet,
    "arrow": as_arrow,
    "jsonl": as_jsonl,
    "csv": as_csv,
    "tsv": as_tsv,
}


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=40, deadline=None)
@given(rows=TABLES, group=st.integers(1, 9), block_bytes=st.integers(1, 2_000))
def test_rows_do_not_depend_on_blocks(
    tmp_path_factory: pytest.TempPathFactory, name: str, rows: Rows, group: int, block_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("in") / f"a{FORMATS[name].endings[0]}"
    path.write_bytes(WRITERS[name](rows, group))
    file = replace(describe(path), extraction="quotes" if name == "tsv" else None)
    read = read_file(file, block_bytes, COLUMNS)
    assert read.bad == []
    assert read.rows == [(number, text, id_) for number, (text, id_, _) in enumerate(rows)]
    others = read.others.get("n", [])
    if not FORMATS[name].typed:
        others = [json.loads(each) for each in others]
    assert others == [n for _, _, n in rows]
    blocks = discover_blocks(file, COLUMNS, block_bytes)
    if name not in ("parquet", "arrow"):
        assert len(blocks) == 1
    # From the last block to the first: none needs what an earlier one has read.
    for block in reversed(blocks):
        numbers = [
            number
            for batch in read_block(file, COLUMNS, block)
            for number in batch.numbers.tolist()
        ]
        stop = len(rows) if block.index == len(blocks) - 1 else blocks[block.index + 1].first_row
        assert numbers == [*range(block.first_row, stop)]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=60), st.integers(1, 9))
def test_gathered_rows_are_those_given(given_rows: list[tuple[bool, int]], most: int) -> None:
    rows: list[Any] = [
        (number, ["x" * size], size) if is_good else BadRow(number, "", "bad")
        for number, (is_good, size) in enumerate(given_rows)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_all, "BATCH_ROWS", most)
        patch.setattr(of_all, "BATCH_BYTES", 50)
        batches = list(gathered(rows, pa.schema([("text", pa.string())])))
    assert all(0 < len(batch.numbers) + len(batch.bad) <= most for batch in batches)
    assert [bad for batch in batches for bad in batch.bad] == [
        row for row in rows if isinstance(row, BadRow)
    ]
    assert [
        (int(number), [text.as_py()], len(text.as_py()))
        for batch in batches
        for number, text in zip(batch.numbers, batch.columns["text"], strict=True)
    ] == [row for row in rows if not isinstance(row, BadRow)]


def test_no_two_formats_have_the_same_ending() -> None:
    endings = [ending for kind in FORMATS.values() for ending in kind.endings]
    assert len({*endings}) == len(endings)
