"""Texts of evaluations, read from JSON Lines, csv, tsv and Parquet files."""

import codecs
from collections.abc import Iterator, Sequence
from itertools import chain, starmap
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fineshards.curation.reference_files import Pinned, read
from fineshards.errors import InputError, UsageError

_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_SEPARATORS = {"csv": ",", "tsv": "\t"}
FORMATS = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet")
# Evaluations have some megabytes. A small compressed file can hold far more.
_LARGEST = 1 << 30


class EvaluationRecord(NamedTuple):
    """A record of a file. line: its line in JSON Lines, else its number; both count from 1."""

    line: int
    values: dict[str, Any]


def task_of(path: str) -> str:
    """The task that a file stands for: its name without endings of formats."""
    stem, _ = _format_and_stem(path)
    return stem.rpartition("/")[2]


def records(file: Pinned) -> Iterator[EvaluationRecord]:
    """Yields the records of a file.

    Raises InputError for a damaged file, UsageError for a format that cannot be read.
    """
    _, format_ = _format_and_stem(file.path)
    content = read(file)
    try:
        for ending, compression in _COMPRESSIONS.items():
            if file.path.endswith(ending):
                with pa.CompressedInputStream(pa.BufferReader(content), compression) as opened:
                    content = opened.read(_LARGEST + 1)
                if len(content) > _LARGEST:
                    raise InputError(
                        f"{file.path} has more than {_LARGEST:,} bytes without its compression. "
                        "Cut it into several files."
                    )
        content = content.removeprefix(codecs.BOM_UTF8)
        yield from _json(content) if format_ in FORMATS[:3] else _table(content, format_)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{file.path} cannot be read as {format_}: {error}") from error


def strings_in(value: object) -> Iterator[str]:
    """Yields the strings in a value: itself, or those in its lists, objects and maps, in order."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            left += reversed(one.values())
        elif isinstance(one, list):
            left += reversed(one)
        elif isinstance(one, tuple):
            # A map's key and value. Keys are names, as those of an object are.
            left.append(one[-1])


def chosen(file: Pinned, record: EvaluationRecord, columns: Sequence[str]) -> list[Any]:
    """The values of columns of a record; raises UsageError if it has not all of them."""
    if missing := [name for name in columns if name not in record.values]:
        raise UsageError(
            f"decontaminate: {file.path}, record {record.line} has no column {missing[0]!r}; its "
            f"columns are {', '.join(record.values)}."
        )
    return [record.values[name] for name in columns]


def _format_and_stem(path: str) -> tuple[str, str]:
    stem = path
    for ending in _COMPRESSIONS:
        stem = stem.removesuffix(ending)
    stem, _, format_ = stem.rpartition(".")
    if format_ not in FORMATS or (format_ == "parquet" and not path.endswith("parquet")):
        raise UsageError(
            f"decontaminate: files names {path}, expected files that end with "
            f".{', .'.join(FORMATS)}; all but Parquet may end with .gz or .zst too."
        )
    return stem, format_


def _json(content: bytes) -> Iterator[EvaluationRecord]:
    """The objects of lines, or of one array, as some evaluations are published."""
    is_array = content.lstrip().startswith(b"[")
    for number, line in enumerate(orjson.loads(content) if is_array else content.splitlines(), 1):
        if not is_array and not line.strip():
            continue
        try:
            record = line if is_array else orjson.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{'element' if is_array else 'line'} {number} is not an object")
        yield EvaluationRecord(number, record)


def _table(content: bytes, format_: str) -> Iterator[EvaluationRecord]:
    opened = pa.BufferReader(content)
    if format_ == "parquet":
        table = pa.parquet.read_table(opened, use_threads=False)
    else:
        table = pa.csv.read_csv(
            opened,
            read_options=pa.csv.ReadOptions(use_threads=False),
            parse_options=pa.csv.ParseOptions(
                delimiter=_SEPARATORS[format_], newlines_in_values=True
            ),
        )
    batches = table.to_batches(max_chunksize=1024)
    values = chain.from_iterable(batch.to_pylist() for batch in batches)
    yield from starmap(EvaluationRecord, enumerate(values, 1))
