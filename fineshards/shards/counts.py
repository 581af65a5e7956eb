"""Counts of rows, documents and tokens, of a record batch, block, file or dataset; none missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from itertools import accumulate, chain
from operator import sub
from typing import Any

from msgspec import json
from msgspec.structs import astuple

from fineshards.errors import FineshardsError, InputError
from fineshards.shards.job.records import BadRow, Block, SourceFile, TokenBlock
from fineshards.shards.layout import REJECTED_FOLDER
from fineshards.shards.record import Count, Record
from fineshards.shards.split_rule import SplitRule
from fineshards.storage.base import Storage

# Values of a label column that are counted one by one. FineWeb has about a hundred dumps, FineWeb-2
# fewer than two thousand languages; a column with more values holds something else.
MAX_VALUES = 2_000
MANY_VALUES = f"(more than {MAX_VALUES:,} values)"


class Sums(Record, frozen=True):
    """Documents and their tokens.

    Args:
        documents: Number of documents.
        tokens: Their tokens, with one EOT each.
    """

    documents: Count
    tokens: Count


class LabelCount(Record, frozen=True):
    """Documents and tokens with one value of a label column.

    Args:
        column: Name of the label column: `dump`, `language` or `http_body`.
        value: The value, or `(more than 2,000 values)` for all of a column with so many.
        documents: Documents with that value.
        tokens: Their tokens.
    """

    column: str
    value: str
    documents: Count
    tokens: Count


class Dropped(Record, frozen=True):
    """Documents that a step of the recipe dropped for one reason.

    Args:
        step: Number of the step in the recipe, from 0.
        reason: Why, or `(more than 2,000 values)` for all of a step with so many reasons.
        documents: Number of documents.
        text_bytes: UTF-8 bytes of their texts as the source has them.
    """

    step: Count
    reason: str
    documents: Count
    text_bytes: Count


class DroppedDump(Record, frozen=True):
    """Documents with one value of the label column `dump` that a step of the recipe dropped.

    Args:
        step: Number of the step in the recipe, from 0.
        dump: The value, or `(more than 2,000 values)` for all of a step with so many.
        documents: Number of documents.
    """

    step: Count
    dump: str
    documents: Count


class Unextracted(Record, frozen=True):
    """Pages of WARC files whose text cannot be extracted, for one reason.

    Args:
        reason: Why: `bad_response`, `too_large`, `too_deep` or `failed`.
        rows: Number of pages.
    """

    reason: str
    rows: Count


class Counts(Record, frozen=True):
    """Counts of rows, and of the documents and tokens made from them. Add them with `+`.

    Args:
        rows: All rows read.
        documents: Rows with text; each is one document.
        nulls: Rows without text.
        rejected: Rows that cannot be encoded, but for pages whose text cannot be extracted.
        tokens: Tokens of the documents, with one EOT each.
        text_bytes: UTF-8 bytes of the documents' text.
        by_reference: Documents encoded by the reference encoder.
        compared: Documents that the reference encoder encoded as well, with the same tokens.
        learned: Tokens of conversations that are learned.
        inner_eots: EOTs inside of documents that were tokens already.
        labels: Documents and tokens per label, sorted by column and value.
        dropped: Documents that the recipe dropped, by step and reason, sorted.
        dropped_dumps: Those of them with a value of `dump`, by step and value, sorted.
        unextracted: Pages whose text cannot be extracted, by reason, sorted.

    Example:
        >>> from fineshards.shards.counts import Counts
        >>> block = Counts(rows=3, documents=2, nulls=1, tokens=20)
        >>> (block + block).tokens, block.balances(), Counts(rows=1).balances()
        (40, True, False)
    """

    rows: Count = 0
    documents: Count = 0
    nulls: Count = 0
    rejected: Count = 0
    tokens: Count = 0
    text_bytes: Count = 0
    by_reference: Count = 0
    compared: Count = 0
    learned: Count = 0
    inner_eots: Count = 0
    labels: tuple[LabelCount, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    dropped_dumps: tuple[DroppedDump, ...] = ()
    unextracted: tuple[Unextracted, ...] = ()

    def __add__(self, other: Counts) -> Counts:
        return Counts.total([self, other])

    @classmethod
    def total(cls, parts: Iterable[Counts]) -> Counts:
        """The sum of any number of counts.

        Args:
            parts: The counts to add; none give zeros.

        Returns:
            The sum of each number, and of the labels with the same column and value. A column
            with more than `MAX_VALUES` values has one label instead, `MANY_VALUES`.
        """
        parts = list(parts)
        sums: dict[str, Any] = {
            name: sum(getattr(part, name) for part in parts) for name in _NUMBERS
        }
        for name, (kind, at) in _GROUPED.items():
            groups: dict[tuple[Any, ...], dict[str, list[int]]] = {}
            for value_counts in chain.from_iterable(getattr(part, name) for part in parts):
                fields = astuple(value_counts)
                _add_value(groups.setdefault(fields[:at], {}), fields[at], fields[at + 1 :])
            sums[name] = tuple(
                kind(*group, value, *values[value])
                for group, values in sorted(groups.items())
                for value in sorted(values)
            )
        return cls(**sums)

    @classmethod
    def sum_numbers(cls, parts: Iterable[Counts]) -> dict[str, int]:
        """The sums of all numbers by name, without those by label or reason, which are many."""
        parts = list(parts)
        sums = {name: sum(getattr(part, name) for part in parts) for name in _NUMBERS}
        # Without what only conversations and tokens have, where there is none.
        rare = ("learned", "inner_eots")
        return {name: number for name, number in sums.items() if number or name not in rare}

    def balances(self) -> bool:
        """Whether rows = documents + nulls + rejected + dropped + unextracted."""
        return self.rows == self.documents + self.nulls + self.documents_dropped + self.listed

    @property
    def pages_unextracted(self) -> int:
        """The number of pages whose text cannot be extracted."""
        return sum(of.rows for of in self.unextracted)

    @property
    def listed(self) -> int:
        """The number of rows that `metadata/rejected/` lists."""
        return self.rejected + self.pages_unextracted

    @property
    def documents_dropped(self) -> int:
        """The number of documents that the recipe dropped."""
        return sum(of.documents for of in self.dropped)

    def by_step(self, steps: int) -> dict[str | None, list[tuple[int, int]]]:
        """For each step of a recipe, the documents that reach it, and those that it drops.

        Of each dump of which any is dropped, and of all documents: None.
        """
        documents = {of.value: of.documents for of in self.labels if of.column == "dump"}
        gone: dict[str | None, list[int]] = {None: [0] * steps}
        for dropped in self.dropped:
            gone[None][dropped.step] += dropped.documents
        # Those of a column with many values are counted together.
        for of in () if MANY_VALUES in documents else self.dropped_dumps:
            gone.setdefault(of.dump, [0] * steps)[of.step] += of.documents
        first = {dump: documents.get(dump or "", 0) + sum(sums) for dump, sums in gone.items()}
        first[None] = self.documents + self.documents_dropped
        return {
            dump: list(zip(accumulate(sums, sub, initial=first[dump]), sums, strict=False))
            for dump, sums in gone.items()
        }

    def imbalance(self) -> str:
        """The numbers of rows that do not balance, for an error message."""
        dropped = f", {self.documents_dropped} dropped" if self.dropped else ""
        pages = f", {self.pages_unextracted} not extracted" if self.unextracted else ""
        return (
            f"{self.rows} rows, but {self.documents} documents{dropped}{pages}, {self.nulls} null "
            f"and {self.rejected} rejected"
        )


# The type of each group, and which of its fields is the value that is counted; sums follow.
_GROUPED: dict[str, tuple[type[Record], int]] = {
    "labels": (LabelCount, 1),
    "dropped": (Dropped, 1),
    "dropped_dumps": (DroppedDump, 1),
    "unextracted": (Unextracted, 0),
}
_NUMBERS = tuple(name for name in Counts.__struct_fields__ if name not in _GROUPED)


def _add_value(values: dict[str, list[int]], value: str, sums: tuple[int, ...]) -> None:
    """Adds to the sums of one value of a column, or of one reason of a step.

    Whether a column has one entry depends on its values alone: an addend with more than MAX_VALUES
    makes the sum have more. So order and grouping do not matter.
    """
    value = MANY_VALUES if MANY_VALUES in values else value
    values[value] = [*map(sum, zip(values.get(value, [0] * len(sums)), sums, strict=True))]
    if value == MANY_VALUES or len(values) > MAX_VALUES:
        total = [*map(sum, zip(*values.values(), strict=True))]
        values.clear()
        values[MANY_VALUES] = total


@dataclass(slots=True)
class Rejected:
    """The rows of one block that cannot be encoded, and are listed in `metadata/rejected/`.

    Pages whose text cannot be extracted are listed with them; any number of those is allowed.

    limit: the most rejected rows allowed in the whole input; a share of it, such as `0.1%`, is
    checked by `check_total` once all rows are counted.
    """

    file: SourceFile
    limit: int | str
    rows: list[BadRow] = field(default_factory=list)

    def add(self, rows: Iterable[BadRow]) -> None:
        """Adds rows; beyond the limit, raises InputError with the first row that exceeds it."""
        self.rows += rows
        # Of all rows even the smallest share is more than none.
        limit = self.limit if isinstance(self.limit, int) else len(self.rows)
        if len(self.rows) <= limit:
            return
        rejected = [row for row in self.rows if row.unextracted is None]
        if len(rejected) > limit:
            bad = rejected[limit]
            allowed = f" (--max_bad_rows allows {self.limit})" if self.limit else ""
            place = ", ".join(filter(None, [self.file.path, bad.place]))
            raise InputError(
                f"{place}, row {bad.row}: {bad.reason}{allowed}. Fix the row and start "
                "over with --overwrite, or raise --max_bad_rows to skip such rows and go on."
            )

    def save(self, storage: Storage, block: Block) -> None:
        """Writes the rows to `metadata/rejected/`, one JSON object per line; no file if none."""
        if not self.rows:
            return
        rows = [{"file": self.file.name, **asdict(row)} for row in self.rows]
        lines = [json.encode({k: v for k, v in row.items() if v is not None}) for row in rows]
        name = f"{REJECTED_FOLDER}/{block.file:05d}-{block.index:05d}.jsonl"
        storage.write(name, b"".join(line + b"\n" for line in lines))


class SortedRun(Record, frozen=True):
    """A part of a token block whose documents are in the order of their keys, cut into cells.

    All keys of a cell have the same leading bits; there are 2^n cells. Cell i is tokens
    `[tokens[i], tokens[i + 1])` of the block's tokens, and bytes `[documents[i], documents[i + 1])`
    of its file of documents (`fineshards/shards/shuffle_order.py`).
    """

    stream: str
    tokens: tuple[Count, ...]
    documents: tuple[Count, ...]


def _streams(summed: BlockSummary | FileReport) -> tuple[Sums, ...]:
    """What went to each stream, in the order of SplitRule.streams."""
    counts, test = summed.counts, summed.test
    if test is None:
        return (Sums(counts.documents, counts.tokens),)
    return (test, Sums(counts.documents - test.documents, counts.tokens - test.tokens))


class BlockSummary(Record, frozen=True):
    """The counts of block `index`, one of the `blocks` blocks of source file `file`.

    test: what went to the test split, where the split is by document; otherwise None. runs: the
    sorted parts of the token block, if documents are shuffled.
    """

    file: Count
    index: Count
    blocks: Count
    counts: Counts
    test: Sums | None = None
    runs: tuple[SortedRun, ...] = ()

    @property
    def place(self) -> TokenBlock:
        """The token block of a block."""
        return TokenBlock("blocks", self.file, self.index)

    streams = _streams


class FileReport(Record, frozen=True):
    """The counts of a source file.

    Args:
        file: Index of the source file.
        blocks: Number of its blocks.
        counts: Sum of the blocks' counts.
        test: What went to the test split, where the split is by document; otherwise None.
    """

    file: Count
    blocks: Count
    counts: Counts
    test: Sums | None = None

    streams = _streams


def sums_by_stream(
    reports: Iterable[FileReport | BlockSummary], rule: SplitRule
) -> tuple[Sums, ...]:
    """What went to each stream from all of some files, or blocks."""
    streams = zip(*(report.streams() for report in reports), strict=True)
    sums = tuple(
        Sums(sum(s.documents for s in parts), sum(s.tokens for s in parts)) for parts in streams
    )
    return sums or (Sums(0, 0),) * len(rule.streams)


def complete_file(summaries: Iterable[BlockSummary]) -> list[BlockSummary]:
    """A file's summaries in order; raises FineshardsError unless each block occurs once."""
    ordered = sorted(summaries, key=lambda summary: summary.index)
    numbers = [summary.index for summary in ordered]
    if numbers != list(range(ordered[0].blocks)):
        raise FineshardsError(
            f"file {ordered[0].file}: got blocks {numbers}, expected 0 to {ordered[0].blocks - 1} "
            "once each. This is a bug in the runner or in fineshards; please report it."
        )
    return ordered


def report_file(summaries: list[BlockSummary]) -> FileReport:
    """The sum of a file's summaries; raises FineshardsError if its rows do not balance."""
    counts = Counts.total(summary.counts for summary in summaries)
    file = summaries[0].file
    if not counts.balances():
        raise FineshardsError(
            f"file {file} does not balance: {counts.imbalance()}. This is a bug in fineshards; "
            "please report it."
        )
    in_test = [summary.test for summary in summaries if summary.test is not None]
    test = Sums(sum(one.documents for one in in_test), sum(one.tokens for one in in_test))
    return FileReport(file, len(summaries), counts, test if in_test else None)


def check_masks(reports: Iterable[FileReport], files: Sequence[SourceFile]) -> None:
    """Raises InputError for a file of which all tokens but EOTs are learned, or none."""
    for report in reports:
        counts = report.counts
        most = counts.tokens - counts.documents
        if not counts.documents or 0 < counts.learned < most:
            continue
        which = "none" if counts.learned == 0 else "all"
        raise InputError(
            f"{files[report.file].path}: {which} of the {most:,} tokens of its "
            f"{counts.documents:,} conversations would be learned. Check --learn, and the roles "
            "in the file; --allow_constant_mask takes it as it is."
        )


def check_reports(
    reports: Iterable[FileReport], max_bad_rows: int | str, must_have_documents: bool = True
) -> None:
    """Raises InputError if there are no documents, or more rejected rows than allowed."""
    reports = list(reports)
    sums = Counts.sum_numbers(report.counts for report in reports)
    check_total(sums["rejected"], max_bad_rows, sums["rows"])
    if sums["documents"] or not must_have_documents:
        return
    if dropped := sum(report.counts.documents_dropped for report in reports):
        by = Counter[tuple[int, str]]()
        for of in (of for report in reports for of in report.counts.dropped):
            by[of.step + 1, of.reason] += of.documents
        most = ", ".join(f"{n:,} by step {step} ({why})" for (step, why), n in by.most_common(3))
        bad = f" Rejected rows: {sums['rejected']:,}." if sums["rejected"] else ""
        raise InputError(
            f"the recipe leaves no documents: {sums['rows']:,} rows, {dropped:,} of them dropped: "
            f"{most}.{bad} Loosen these steps, or check --input."
        )
    if pages := sum(report.counts.pages_unextracted for report in reports):
        raise InputError(
            f"the input has no documents: {sums['rows']:,} rows, and of {pages:,} pages the text "
            f"cannot be extracted. {REJECTED_FOLDER}/ lists them with the reasons."
        )
    raise InputError(
        f"the input has no documents: {sums['rows']} rows, none with text. Check --input, and "
        "--text_column or --text_template."
    )


def most_allowed(limit: int | str, whole: int) -> int:
    """The most that a limit allows: a number, or a share of a whole, such as `0.1%`."""
    return limit if isinstance(limit, int) else int(whole * Fraction(limit.removesuffix("%")) / 100)


def check_total(rejected: int, limit: int | str, rows: int) -> None:
    """Raises InputError if the `rows` of all source files have more rejected ones than allowed."""
    if rejected > most_allowed(limit, rows):
        share = "" if isinstance(limit, int) else f" of {rows:,}"
        raise InputError(
            f"{rejected} rows{share} cannot be encoded, and --max_bad_rows allows {limit}. They are"
            f" listed in {REJECTED_FOLDER}/. Fix them, or raise --max_bad_rows to skip such rows."
        )
