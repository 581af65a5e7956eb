"""FASTA: sequences of genes or proteins, each after a line of `>`, an id and a description."""

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from fineshards.plugins import (
    BadRow,
    Block,
    Columns,
    Format,
    RowBatch,
    SourceFile,
    gathered,
    read_lines,
)

_SCHEMA = pa.schema({"text": pa.large_string(), "id": pa.string(), "description": pa.string()})


class Fasta(Format):
    """Sequences, numbered from 0."""

    endings = (".fasta", ".fa")

    def schema(self, file: SourceFile, opened: BinaryIO) -> pa.Schema:
        return _SCHEMA

    def read(
        self, file: SourceFile, opened: BinaryIO, block: Block, columns: Columns
    ) -> Iterator[RowBatch]:
        yield from gathered(_rows(file, opened), _SCHEMA)


def _rows(file: SourceFile, opened: BinaryIO) -> Iterator[BadRow | tuple[int, list[str], int]]:
    row, id_, about, parts = -1, "", "", [""]
    for _, line in read_lines(file, opened):
        text = line.decode("utf-8", "surrogateescape").strip()
        if not text.startswith(">"):
            parts.append(text)
            continue
        if row >= 0:
            yield _row(row, id_, about, "".join(parts))
        row, (id_, _, about), parts = row + 1, text[1:].partition(" "), []
    if row >= 0:
        yield _row(row, id_, about, "".join(parts))


def _row(row: int, id_: str, about: str, text: str) -> BadRow | tuple[int, list[str], int]:
    if not text:
        return BadRow(row, "", "it has no sequence")
    return row, [text, id_, about], len(text)
