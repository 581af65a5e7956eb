"""The copy of a part of an input: real rows of it, from all over it, in files like its own."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.source_files import COLUMNS, read_all

from fineshards.errors import InputError
from fineshards.sources.files import describe_files
from fineshards.sources.probe import Sample, Wish, copy_sample, spread, survey
from fineshards.sources.reading import discover_blocks


def wish(size: int, **more: int) -> Wish:
    fields = {"piece": 1 << 30, "line_files": 8, "seconds": 60, "max_bad_rows": 0} | more
    return Wish(size=size, **fields)


def take(paths: list[Path], folder: Path, wished: Wish) -> Sample:
    folder.mkdir()
    files = describe_files(map(str, paths))
    return copy_sample(survey(files, COLUMNS, 60.0), COLUMNS, str(folder), wished)


def rows(paths: list[Path]) -> list[tuple[str | None, str | None]]:
    return [(text, name) for path in paths for _, text, name in read_all(path).rows]


@pytest.fixture
def parquets(tmp_path: Path) -> list[Path]:
    paths = []
    for number in range(4):
        texts = [f"{number} {row} " + "words " * row for row in range(200)]
        table = pa.table({"text": texts, "id": [str(hash(t)) for t in texts], "url": texts})
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(table, paths[-1], row_group_size=20, compression="zstd")
    return paths


@pytest.fixture(params=["", ".gz", ".zst"])
def lines(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    paths = []
    for number in range(3):
        content = "".join(
            json.dumps({"text": f"{number} {row} " + "é" * row, "id": str(row)}) + "\n"
            for row in range(300)
        ).encode()
        path = tmp_path / f"{number}.jsonl{request.param}"
        with {
            "": lambda p: open(p, "wb"),
            ".gz": lambda p: gzip.open(p, "wb"),
            ".zst": lambda p: pa.CompressedOutputStream(str(p), "zstd"),
        }[request.param](path) as out:
            out.write(content.removesuffix(b"\n"))
        paths.append(path)
    return paths


@given(st.integers(0, 2000))
def test_a_spread_is_an_order_of_all(count: int) -> None:
    assert sorted(spread(count)) == list(range(count))


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_every_beginning_of_a_spread_leaves_no_large_gap(count: int, taken: int) -> None:
    taken = min(taken, count)
    chosen = [-1, *sorted(spread(count)[:taken]), count]
    gaps = [after - before for before, after in itertools.pairwise(chosen)]
    # The golden ratio leaves gaps of three lengths, the longest not three times the mean.
    assert max(gaps) <= 3 * count / taken + 1


def test_row_groups_are_copied_whole_from_all_over_the_input(
    parquets: list[Path], tmp_path: Path
) -> None:
    groups = [b for f in describe_files(map(str, parquets)) for b in discover_blocks(f, COLUMNS, 1)]
    total = sum(block.bytes for block in groups)
    sample = take(parquets, tmp_path / "sample", wish(total // 4))
    paths = [Path(part.path) for part in sample.parts]
    copied = rows(paths)
    assert set(copied) < set(rows(parquets))
    assert len(set(copied)) == len(copied) == sample.documents
    assert sample.files == 4
    assert total // 4 <= sample.bytes <= total // 4 + max(block.bytes for block in groups)
    for path in paths:
        metadata = pq.read_metadata(path)
        assert all(metadata.row_group(g).num_rows <= 20 for g in range(metadata.num_row_groups))
        assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_wish_for_more_than_there_is_gives_all(parquets: list[Path], tmp_path: Path) -> None:
    sample = take(parquets, tmp_path / "sample", wish(1 << 40))
    copied = rows([Path(part.path) for part in sample.parts])
    assert sorted(copied) == sorted(rows(parquets))
    found = survey(describe_files(map(str, parquets)), COLUMNS, 60.0)
    assert found.exact
    assert sample.bytes == found.total("parquet")


def test_huge_row_groups_are_cut(parquets: list[Path], tmp_path: Path) -> None:
    sample = take(parquets, tmp_path / "sample", wish(3000, piece=1000))
    groups = [pq.read_metadata(part.path) for part in sample.parts]
    assert sum(metadata.num_row_groups for metadata in groups) >= 3
    assert set(rows([Path(part.path) for part in sample.parts])) < set(rows(parquets))


def test_first_lines_of_files_are_copied(lines: list[Path], tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in lines) // 2
    sample = take(lines, tmp_path / "sample", wish(size))
    assert sample.files == 3
    for part, number in zip(sample.parts, spread(3), strict=True):
        head = read_all(Path(part.path)).rows
        assert head == read_all(lines[number]).rows[: len(head)]
        assert 0 < part.bytes <= lines[number].stat().st_size


def test_all_lines_if_all_are_wished_for(lines: list[Path], tmp_path: Path) -> None:
    sample = take(lines, tmp_path / "sample", wish(1 << 30))
    assert sorted(rows([Path(part.path) for part in sample.parts])) == sorted(rows(lines))
    assert sample.bytes == sum(path.stat().st_size for path in lines)


def test_bad_rows_are_left_out_as_many_as_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a"}\n{\n{"text": null}\n{"text": 1}\n{"text": "b"}\n')
    with pytest.raises(InputError, match=r"line 4, row 3: its 'text' is a int"):
        take([path], tmp_path / "one", wish(1 << 20, max_bad_rows=1))
    sample = take([path], tmp_path / "two", wish(1 << 20, max_bad_rows=2))
    assert [text for text, _ in rows([Path(sample.parts[0].path)])] == ["a", None, "b"]


def test_files_may_differ_in_what_else_they_have(tmp_path: Path) -> None:
    tables = [{"text": ["a"]}, {"text": ["b"], "id": [7], "dump": ["c"]}]
    paths = []
    for number, content in enumerate(tables):
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(pa.table(content), paths[-1])
    sample = take(paths, tmp_path / "sample", wish(1 << 20))
    assert sorted(rows([Path(part.path) for part in sample.parts])) == [("a", None), ("b", "7")]


def test_a_survey_that_has_no_time_looks_at_a_file_of_each_format(
    parquets: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')
    files = describe_files([*map(str, parquets), str(tmp_path / "x.jsonl")])
    found = survey(files, COLUMNS, -1.0)
    assert {files[index].format for index in found.seen} == {"parquet", "jsonl"}
    assert not found.exact
    whole = survey(files, COLUMNS, 60.0)
    assert found.total("parquet") == pytest.approx(whole.total("parquet"), rel=0.1)
    assert found.total("jsonl") == whole.total("jsonl") == 14
