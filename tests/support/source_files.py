"""Small input files, written and read as the job does."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.files import describe_files, find_files
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.sources.rows import Rows

COLUMNS = Columns("text", "id", id_required=False)
STRINGS = (
    *(pa.string(), pa.large_string(), pa.string_view()),
    *(pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.large_string())),
)


@dataclass
class Read:
    """All rows of a file: (number, text, id) of the valid ones, and the bad ones."""

    rows: list[tuple[int, str | None, str | None]]
    bad: list[BadRow]
    labels: dict[str, list[str | None]]
    others: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def texts(self) -> list[str | None]:
        return [text for _, text, _ in self.rows]


def write_groups(path: Path, groups: list[pa.Table], **options: Any) -> Path:
    """Writes a parquet file with the given row groups, including empty ones."""
    with pq.ParquetWriter(path, groups[0].schema, **options) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(1, group.num_rows))
    return path


def describe(path: Path) -> SourceFile:
    (file,) = describe_files([str(path)])
    return file


def blocks_of(path: Path, block_bytes: int = 1, columns: Columns = COLUMNS) -> list[Block]:
    return discover_blocks(describe(path), columns, block_bytes)


def read_all(path: Path, block_bytes: int = 1, columns: Columns = COLUMNS) -> Read:
    """Reads all blocks of a file in order."""
    return read_file(describe(path), block_bytes, columns)


def read_file(file: SourceFile, block_bytes: int = 1, columns: Columns = COLUMNS) -> Read:
    """As `read_all`, of a file that was found."""
    read = Read([], [], {})
    for block in discover_blocks(file, columns, block_bytes):
        add(read, read_block(file, columns, block))
    return read


def texts_of(file: SourceFile) -> list[str | None]:
    return read_file(file).texts


def find(*patterns: str) -> list[str]:
    """The paths of the files that patterns match."""
    return [file.path for file in find_files(patterns)]


def add(read: Read, batches: Any) -> None:
    for batch in batches:
        check(batch)
        rows = zip(
            batch.numbers.tolist(), batch.texts.to_pylist(), batch.ids.to_pylist(), strict=True
        )
        read.rows += rows
        read.bad += batch.bad
        for name, values in batch.labels.items():
            read.labels.setdefault(name, []).extend(values.to_pylist())
        for name, values in batch.others.items():
            read.others.setdefault(name, []).extend(values.to_pylist())


def check(batch: Rows) -> None:
    """Checks the properties that every `Rows` has."""
    assert batch.texts.type == pa.large_string()
    assert batch.ids.type == pa.string()
    assert all(values.type == pa.string() for values in batch.labels.values())
    assert all(len(values) == len(batch.numbers) for values in batch.labels.values())
    assert all(len(values) == len(batch.numbers) for values in batch.others.values())
    if batch.others_are_json:
        assert all(values.type == pa.string() for values in batch.others.values())
