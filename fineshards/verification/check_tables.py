"""Shards and tables: in order, and with the sums of the manifest; as part of verify.

Tables are read side by side. Of each a few numbers are left, which are added up: the sums are a
table of what is counted, what the tables give, and what the manifest says.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow.compute as pc

from fineshards.errors import FineshardsError
from fineshards.shards import npy
from fineshards.shards.counts import FileReport, sums_by_stream
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import ShardRecord
from fineshards.shards.layout import files_of, table_name
from fineshards.shards.npy import count_learned, mask_content
from fineshards.shards.shuffle_order import DocumentOrder
from fineshards.shards.tables import statistics
from fineshards.shards.tables.block_counts import blocks_of_file
from fineshards.shards.tables.decisions import read_decisions
from fineshards.shards.tables.documents import DocumentPiece, DocumentTable
from fineshards.shards.tables.scores import read_scores
from fineshards.verification.check_files import differences, file_problem

# Numbers in the statistics of a dataset, and in the counts of a source file.
_COUNTED = {"documents": "documents", "bytes": "text_bytes", "tokens": "tokens"}


@dataclass(slots=True)
class ShardFindings:
    """What a shard and its document table hold, as read from them.

    sums: what the table gives for all tables together, by what is counted. inner_eots: EOTs inside
    of documents, None where some are redacted. first, last: pieces of documents; None if the table
    cannot be read.
    """

    problems: list[str] = field(default_factory=list)
    tokens: int = 0
    documents: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    inner_eots: int | None = 0
    first: DocumentPiece | None = None
    last: DocumentPiece | None = None


def check_shard(
    dataset: Dataset, shard: ShardRecord, there: set[str], numbers: dict[str, int]
) -> ShardFindings:
    """Reads the files of a shard, each once. What is in a damaged one is not looked at.

    shard: its record in the latest generation, where it may have redacted documents. there: the
    names of the files that are there. numbers: the position of each source path in the input.
    """
    settings, findings = dataset.manifest.settings, ShardFindings()
    _, table_file, mask_file = files_of(shard.name)
    contents: dict[str, list[bytes]] = {table_file: [], mask_file: []}
    eots, seen = [np.empty(0, np.int64)], -npy.HEADER_BYTES // settings.token_dtype.itemsize

    def see_tokens(content: bytes) -> None:
        nonlocal seen
        count = len(content) // settings.token_dtype.itemsize
        tokens = np.frombuffer(content, settings.token_dtype, count)
        eots.append(np.flatnonzero(tokens == settings.tokenizer.eot) + seen)
        seen += count

    whole = set[str]()
    for name, size, checksum in shard.files():
        if name in there:
            see = see_tokens if name == shard.name else contents[name].append
            if problem := file_problem(dataset.storage, name, size, checksum, see):
                findings.problems.append(problem)
            else:
                whole.add(name)
    findings.tokens = seen if shard.name in whole else 0
    if table_file not in whole:
        return findings
    try:
        table = dataset.parse_table(shard, b"".join(contents[table_file]))
    except FineshardsError as error:
        findings.problems.append(str(error))
        return findings
    begins, ranges = table.start == 0, table.ranges()
    findings.documents = int(begins.sum())
    sums = {"rows": len(table), "documents that begin": findings.documents}
    sums |= {} if ranges is None else {"learned tokens": count_learned(ranges)}
    expected = {"rows": shard.pieces, "documents that begin": shard.documents}
    expected |= {} if ranges is None else {"learned tokens": shard.learned or 0}
    findings.problems += differences(sums, expected, table_file)
    if not table:
        return findings
    findings.first, findings.last = table.piece(0), table.piece(-1)
    findings.sums = _table_sums(dataset.manifest, shard, table)
    checks = _table_checks(dataset.manifest, shard, table, numbers)
    if mask_file in whole:
        derived = ranges is not None and mask_content(ranges, shard.tokens)
        checks[f" does not give the bits of {mask_file}"] = derived == b"".join(contents[mask_file])
    findings.problems += (f"{table_file}{what}" for what, holds in checks.items() if not holds)
    if shard.name in whole:
        places = np.concatenate(eots)
        # A redacted document has no other tokens.
        in_rows = np.searchsorted(table.offset[1:], places[places >= 0], side="right")
        wanted = np.where(table.redacted > 0, table.length, begins)
        inner = np.bincount(in_rows, minlength=len(table)) - wanted
        # Documents that were tokens already may have some, which the manifest counts.
        findings.inner_eots = None if table.redacted.any() else int(inner.sum())
        holds = np.all(inner >= 0) if settings.columns.tokens else not inner.any()
        if not holds or not np.isin(table.offset[begins], places).all():
            findings.problems.append(
                f"{shard.name}: its EOT tokens are not where its documents begin"
            )
    return findings


def _table_checks(
    manifest: Manifest, shard: ShardRecord, table: DocumentTable, numbers: dict[str, int]
) -> dict[str, bool | np.bool_]:
    """What would be wrong with a table, and whether it is right: it covers the shard, in order."""
    ends, order = table.offset + table.length, DocumentOrder.of(manifest)
    begins = np.concatenate([[0], ends[:-1]])
    covers = np.array_equal(table.offset, begins) and ends[-1] == shard.tokens
    first = int(table.document[0]) - manifest.first_number(shard.split)
    in_test = table.split_hash is not None and manifest.settings.split.in_test(table.split_hash)
    return {
        f" does not cover tokens 0 to {shard.tokens} exactly": covers and np.all(table.length > 0),
        ": its document numbers are not consecutive": np.all(np.diff(table.document) == 1),
        ": 'start' is negative, or not 0 after the first row": (
            np.all(table.start[1:] == 0) and table.start[0] >= 0
        ),
        f" begins with document {first}; the manifest says {shard.first_document}": (
            first == shard.first_document
        ),
        f": its documents are not in the order of {order}": (
            order.follows(table.file_numbers(numbers), table.row)
        ),
        " has documents of the other split, by their split_hash": (
            table.split_hash is None or np.all(in_test == (shard.split == "test"))
        ),
    }


def _table_sums(manifest: Manifest, shard: ShardRecord, table: DocumentTable) -> Counter[str]:
    """What a table adds to the sums of all; `_expected_sums` has the same names."""
    where = _where(manifest, shard.split)
    sums = Counter[str]()
    for name, (tokens, documents) in table.sums_by_file().items():
        sums[f"tokens of {name} in the {where}"] = tokens
        sums[f"documents of {name} in the {where}"] = documents
    for number in range(1, manifest.generation + 1):
        redacted = int(np.sum((table.redacted == number) & (table.start == 0)))
        sums[f"documents that generation {number} redacted"] = redacted
    return sums


def _expected_sums(manifest: Manifest) -> dict[str, int]:
    sums = {}
    for file, report in zip(manifest.files, manifest.reports, strict=True):
        for stream, its in zip(manifest.settings.split.streams, report.streams(), strict=True):
            where = _where(manifest, stream)
            sums[f"tokens of {file.name} in the {where}"] = its.tokens
            sums[f"documents of {file.name} in the {where}"] = its.documents
    for number, generation in enumerate(manifest.generations, 1):
        sums[f"documents that generation {number} redacted"] = generation.redacted
    return sums


def _where(manifest: Manifest, stream: str) -> str:
    return f"{stream} tables" if manifest.settings.split.by_document else "document tables"


def check_stream(
    manifest: Manifest, findings: Sequence[ShardFindings], numbers: dict[str, int]
) -> Iterator[str]:
    """The tables of all shards continue piece other and add up, if all can be read."""
    if any(contents.first is None for contents in findings):
        return
    yield from _borders(manifest, findings, numbers)
    sums = Counter[str]()
    for contents in findings:
        sums.update(contents.sums)
    yield from differences(sums, _expected_sums(manifest))
    counts = [contents.inner_eots for contents in findings if not contents.problems]
    if len(counts) == len(findings) and None not in counts:
        inner = {"EOTs inside of documents": sum(filter(None, counts))}
        yield from differences(inner, dict.fromkeys(inner, manifest.totals.get("inner_eots", 0)))


def _borders(
    manifest: Manifest, findings: Sequence[ShardFindings], numbers: dict[str, int]
) -> Iterator[str]:
    """Each shard continues where the previous one ended, in the stream and in the sources."""
    order, stream = DocumentOrder.of(manifest), ""
    before: DocumentPiece | None = None
    for shard, contents in zip(manifest.shards, findings, strict=True):
        first, where = contents.first, _where(manifest, shard.split)
        assert first is not None
        if before is None:
            holds = (first.document, first.start) == (0, 0)
        elif first.start and where == stream:
            # In both of its shards, a document has the same number, source, id and hashes.
            holds = first.start == before.start + before.length
            pieces = [replace(piece, offset=0, length=0, start=0) for piece in (first, before)]
            holds = holds and pieces[0] == pieces[1]
        else:
            files = np.array([numbers.get(piece.file, -1) for piece in (before, first)])
            holds = (first.document, first.start) == (before.document + 1, 0)
            rows = np.array([before.row, first.row])
            holds = holds and (where != stream or order.follows(files, rows))
        if not holds:
            yield (
                f"{table_name(shard.name)} begins with token {first.start} of document "
                f"{first.document}, row {first.row} of {first.file}, and does not continue the "
                "shard before"
            )
        before, stream = contents.last, where


def check_curated(dataset: Dataset) -> Iterator[str]:
    """The tables about each source file, which are whole, have the sums of the manifest."""
    for report in dataset.manifest.reports:
        try:
            actual, expected = _curated_sums(dataset, report)
            yield from differences(actual, expected, dataset.manifest.files[report.file].path)
        except FineshardsError as error:
            yield str(error)


def _curated_sums(dataset: Dataset, report: FileReport) -> tuple[Counter[str], Counter[str]]:
    """What the tables about a source file give, by what is counted; and what the manifest says."""
    settings, counts = dataset.manifest.settings, report.counts
    blocks = blocks_of_file(dataset.blocks, report.file, settings.split.by_document)
    actual, expected = Counter[str](blocks=len(blocks)), Counter[str](blocks=report.blocks)
    for sums, parts in ((actual, blocks), (expected, [report])):
        streams = zip(settings.split.streams, sums_by_stream(parts, settings.split), strict=True)
        for stream, its in streams:
            sums[f"{stream} documents of its blocks"] = its.documents
            sums[f"{stream} tokens of its blocks"] = its.tokens
    tables = ["decisions"]
    decisions = read_decisions(dataset.storage, report.file).table
    steps = decisions.filter(pc.is_null(decisions["span"]))["step"].to_numpy()
    for step, documents in zip(*np.unique(steps, return_counts=True), strict=True):
        actual[f"documents dropped by step {step + 1} in the decisions"] = int(documents)
    if settings.recipe is not None and settings.recipe.scores:
        first = min(settings.recipe.scores.values())
        scores = read_scores(dataset.storage, report.file)
        actual["documents with scores"] = 0 if scores is None else len(scores)
        later = (dropped.documents for dropped in counts.dropped if dropped.step >= first)
        expected["documents with scores"] = counts.documents + sum(later)
    if settings.statistics and report.blocks:
        tables.append("statistics")
        for row in statistics.read_file(dataset.storage, report.file).to_pylist():
            if row["what"] == "dataset":
                of_dataset = {f"{name} in the statistics": row[name] for name in _COUNTED}
                actual.update(of_dataset)
            elif row["what"] == "dropped":
                where = f"documents dropped by step {row['step'] + 1} in the statistics"
                actual[where] += row["documents"]
        for name, counted in _COUNTED.items():
            expected[f"{name} in the statistics"] = getattr(counts, counted)
    for dropped in counts.dropped:
        for table in tables:
            where = f"documents dropped by step {dropped.step + 1} in the {table}"
            expected[where] += dropped.documents
    return actual, expected
