"""Rejected rows: how many are allowed in a block and in total, and where they are listed."""

import json
from pathlib import Path

import pytest

from fineshards.errors import InputError
from fineshards.shards.counts import Rejected, check_total
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage

FILE = SourceFile(3, "/in/a.parquet", 10, "mtime:1", "parquet", "none")
BLOCK = Block(file=3, index=12, blocks=13, first_group=5, stop_group=7, first_row=100, bytes=999)
LIST = "metadata/rejected/00003-00012.jsonl"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "out"))


def bad_rows(*rows: int) -> list[BadRow]:
    return [BadRow(row, "row group 5", f"its text has flaw {row}") for row in rows]


def test_the_first_bad_row_is_an_error_when_none_is_allowed() -> None:
    with pytest.raises(InputError) as caught:
        Rejected(FILE, 0).add(bad_rows(101, 102))
    assert str(caught.value) == (
        "/in/a.parquet, row group 5, row 101: its text has flaw 101. Fix the row and start over "
        "with --overwrite, or raise --max_bad_rows to skip such rows and go on."
    )


def test_the_first_row_beyond_the_limit_is_named_with_the_limit() -> None:
    rejected = Rejected(FILE, 3)
    rejected.add(bad_rows(101, 102))
    rejected.add([])
    rejected.add(bad_rows(107))
    with pytest.raises(InputError, match=r"row 110: .* flaw 110 \(--max_bad_rows allows 3\)\. Fix"):
        rejected.add(bad_rows(110, 111))


def test_the_total_over_all_files_is_limited_too() -> None:
    check_total(0, 0, 100)
    check_total(3, 3, 100)
    with pytest.raises(InputError) as caught:
        check_total(4, 3, 100)
    assert str(caught.value) == (
        "4 rows cannot be encoded, and --max_bad_rows allows 3. They are listed in "
        "metadata/rejected/. Fix them, or raise --max_bad_rows to skip such rows."
    )


@pytest.mark.parametrize(
    ("share", "rows", "most"),
    [("0.1%", 4_000, 4), ("0.1%", 3_999, 3), ("0%", 9, 0), ("100%", 7, 7), ("0.0001%", 999_999, 0)],
)
def test_a_share_is_of_the_rows_of_all_files(share: str, rows: int, most: int) -> None:
    Rejected(FILE, share).add(bad_rows(*range(50)))
    check_total(most, share, rows)
    said = rf"^{most + 1} rows of {rows:,} cannot be encoded, and --max_bad_rows allows {share}\."
    with pytest.raises(InputError, match=said):
        check_total(most + 1, share, rows)


def test_pages_that_cannot_be_extracted_are_listed_and_not_limited(storage: Storage) -> None:
    rejected = Rejected(FILE, 1)
    rejected.add([BadRow(row, "", "its HTML is large", "too_large") for row in range(9)])
    rejected.add(bad_rows(101))
    with pytest.raises(InputError, match=r"row 107: .*allows 1"):
        rejected.add(bad_rows(107))
    rejected.save(storage, BLOCK)
    listed = list(map(json.loads, storage.read(LIST).splitlines()))
    assert len(listed) == 11
    assert listed[0]["unextracted"] == "too_large"
    assert "unextracted" not in listed[9]


def test_rows_are_listed_one_json_object_per_line_in_a_file_per_block(storage: Storage) -> None:
    rejected = Rejected(FILE, 5)
    rejected.add(bad_rows(101, 107))
    rejected.save(storage, BLOCK)
    assert [entry.name for entry in storage.entries("")] == [LIST]
    assert list(map(json.loads, storage.read(LIST).splitlines())) == [
        {
            "file": "/in/a.parquet",
            "row": row,
            "place": "row group 5",
            "reason": f"its text has flaw {row}",
        }
        for row in (101, 107)
    ]


def test_a_block_without_rejected_rows_has_no_list(storage: Storage) -> None:
    rejected = Rejected(FILE, 5)
    rejected.add([])
    rejected.save(storage, BLOCK)
    assert list(storage.entries("")) == []
