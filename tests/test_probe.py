"""Probes: copies of some rows from all over an input, in files like those of the input."""

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
from fineshards.sources.probe import Probe, ProbeLimits, copy_probe, spread, survey
from fineshards.sources.reading import discover_blocks


def limits(size: int, **more: int) -> ProbeLimits:
    fields = {"group_bytes": 1 << 30, "line_files": 8, "seconds": 60, "max_bad_rows": 0} | more
    return ProbeLimits(size=size, **fields)


def copy(paths: list[Path], folder: Path, limits: ProbeLimits) -> Probe:
    folder.mkdir()
    files = describe_files(map(str, paths))
    return copy_probe(survey(files, COLUMNS, 60.0), COLUMNS, str(folder), limits)


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
def test_a_spread_has_every_number_once(count: int) -> None:
    assert sorted(spread(count)) == list(range(count))


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_no_prefix_of_a_spread_leaves_a_large_gap(count: int, length: int) -> None:
    length = min(length, count)
    chosen = [-1, *sorted(spread(count)[:length]), count]
    gaps = [after - before for before, after in itertools.pairwise(chosen)]
    # The golden ratio leaves gaps of three lengths, the longest less than three times the mean.
    assert max(gaps) <= 3 * count / length + 1


def test_row_groups_are_copied_whole_from_all_over_the_input(
    parquets: list[Path], tmp_path: Path
) -> None:
    groups = [b for f in describe_files(map(str, parquets)) for b in discover_blocks(f, COLUMNS, 1)]
    total = sum(block.bytes for block in groups)
    probe = copy(parquets, tmp_path / "probe", limits(total // 4))
    paths = [Path(part.path) for part in probe.parts]
    copied = rows(paths)
    assert set(copied) < set(rows(parquets))
    assert len(set(copied)) == len(copied) == probe.documents
    assert probe.files == 4
    assert total // 4 <= probe.bytes <= total // 4 + max(block.bytes for block in groups)
    for path in paths:
        metadata = pq.read_metadata(path)
        assert all(metadata.row_group(g).num_rows <= 20 for g in range(metadata.num_row_groups))
        assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_limit_beyond_the_input_copies_all_rows(parquets: list[Path], tmp_path: Path) -> None:
    probe = copy(parquets, tmp_path / "probe", limits(1 << 40))
    copied = rows([Path(part.path) for part in probe.parts])
    assert sorted(copied) == sorted(rows(parquets))
    found = survey(describe_files(map(str, parquets)), COLUMNS, 60.0)
    assert found.exact
    assert probe.bytes == found.total("parquet")


def test_huge_row_groups_are_cut(parquets: list[Path], tmp_path: Path) -> None:
    probe = copy(parquets, tmp_path / "probe", limits(3000, group_bytes=1000))
    groups = [pq.read_metadata(part.path) for part in probe.parts]
    assert sum(metadata.num_row_groups for metadata in groups) >= 3
    assert set(rows([Path(part.path) for part in probe.parts])) < set(rows(parquets))


def test_first_lines_of_files_are_copied(lines: list[Path], tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in lines) // 2
    probe = copy(lines, tmp_path / "probe", limits(size))
    assert probe.files == 3
    for part, number in zip(probe.parts, spread(3), strict=True):
        head = read_all(Path(part.path)).rows
        assert head == read_all(lines[number]).rows[: len(head)]
        assert 0 < part.bytes <= lines[number].stat().st_size


def test_a_limit_beyond_the_input_copies_all_lines(lines: list[Path], tmp_path: Path) -> None:
    probe = copy(lines, tmp_path / "probe", limits(1 << 30))
    assert sorted(rows([Path(part.path) for part in probe.parts])) == sorted(rows(lines))
    assert probe.bytes == sum(path.stat().st_size for path in lines)


def test_bad_rows_are_skipped_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a"}\n{\n{"text": null}\n{"text": 1}\n{"text": "b"}\n')
    with pytest.raises(InputError, match=r"line 4, row 3: its 'text' is a number"):
        copy([path], tmp_path / "one", limits(1 << 20, max_bad_rows=1))
    probe = copy([path], tmp_path / "two", limits(1 << 20, max_bad_rows=2))
    assert [text for text, _ in rows([Path(probe.parts[0].path)])] == ["a", None, "b"]


def test_files_may_have_different_columns(tmp_path: Path) -> None:
    tables = [{"text": ["a"]}, {"text": ["b"], "id": [7], "dump": ["c"]}]
    paths = []
    for number, content in enumerate(tables):
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(pa.table(content), paths[-1])
    probe = copy(paths, tmp_path / "probe", limits(1 << 20))
    assert sorted(rows([Path(part.path) for part in probe.parts])) == [("a", None), ("b", "7")]


def test_a_survey_without_time_inspects_one_file_of_each_format(
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
