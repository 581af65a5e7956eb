"""The plan of a shuffle at FineWeb's size: buckets, merged runs, fragments, requests and dollars.

The functions are those of `fineshards/shards/shuffle_order.py`. Every block, group and merged run
is counted. The encoded size of references is that of a sample of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

from apache_beam.coders import registry
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from msgspec.structs import replace
from rich.table import Table

from benchmarks.made_up import DOCUMENT_TOKENS, Size, file_summaries
from fineshards.shards.counts import BlockSummary, SortedRun, complete_file, report_file
from fineshards.shards.layout import SplitRule
from fineshards.shards.shuffle_order import (
    FRAGMENT_BYTES,
    MOST_BUCKET_BYTES,
    Bucket,
    Fragment,
    Group,
    PlainFragment,
    ShufflePlan,
    fragments_of_run,
    groups_of,
)
from fineshards.transforms.shuffle_documents import PlainGroup

TOKEN_BYTES = 4
# A fragment is a range of the tokens and one of the documents.
READS = 2
# Cloud Storage, standard storage: dollars per request, and requests per second that a bucket
# takes at once (it takes more when the load grows slowly).
DOLLARS_PER_READ = 0.0004 / 1000
READS_PER_SECOND = 5000
# Of a document in the file of documents: file, row, id, hashes and length, in Arrow's format.
_DOCUMENT_BYTES = 100
_BLOCK_BYTES = 64 << 20
# Merged runs whose fragments are made.
_SAMPLE = 20


@dataclass(frozen=True, slots=True)
class ShuffleReport:
    """The cost of a shuffle. Bytes of runs, buckets and fragments are those of tokens.

    parts: fragments of runs that are read to merge them. dollars, hours: of the reads alone, the
    latter at 5,000 per second.
    """

    buckets: int
    bucket_bytes: int
    runs: int
    run_bytes: int
    parts: int
    merged: int
    merged_bytes: int
    fragments: int
    fragment_bytes: int
    unmerged_fragment_bytes: int
    reads: int
    dollars: float
    hours: float
    summaries_bytes: int
    groups_bytes: int
    references_bytes: int
    seconds: float


def simulate_shuffle(size: Size, rule: SplitRule) -> ShuffleReport:
    """Plans the shuffle of a synthetic dataset in which every block is sorted at once.

    Buckets are those that runners on other machines make by default.
    """
    began = time.perf_counter()
    reports = [
        report_file(complete_file(summaries))
        for summaries in (file_summaries(size, file) for file in range(size.files))
        if summaries
    ]
    plan = ShufflePlan.of(reports, rule, _BLOCK_BYTES, TOKEN_BYTES, None, MOST_BUCKET_BYTES)
    totals = [sum(report.streams()[n].tokens for report in reports) for n in (0, 1)]
    summary_coder, group_coder = _coder(tuple[int, BlockSummary]), _coder(_GROUP)
    runs = parts = summaries_bytes = groups_bytes = 0
    merged: Counter[Group] = Counter()
    for file in range(size.files):
        # Blocks of about the same size have summaries of about the same size.
        encode = file % 100 == 0
        summaries = [_sorted(each, plan, encode) for each in reversed(file_summaries(size, file))]
        if encode:
            encoded = sum(len(summary_coder.encode((file, each))) for each in summaries)
            summaries_bytes += encoded * 100
        runs += sum(len(each.runs) for each in summaries)
        if not plan.group:
            continue
        for group, fragment in groups_of(summaries, plan):
            parts += 1
            merged[group] += fragment.stop - fragment.start
            if encode:
                plain = astuple(group), fragment.plain()
                groups_bytes += 100 * len(group_coder.encode(plain))
    # Runs of gigabytes have documents for every bucket of their range.
    fragments = sum(1 << group.bits - group.range_bits for group in merged)
    fragment_coder, encoded_sizes = _coder(tuple[int, PlainFragment]), []
    for group in list(merged)[:: max(len(merged) // _SAMPLE, 1)]:
        for bucket, fragment in _fragments(group, merged[group], plan):
            encoded_sizes.append(len(fragment_coder.encode((bucket, fragment.plain()))))
    buckets = [1 << bits for bits in plan.bits]
    whole_runs = runs // len(plan.streams)
    # Each block and each merged run is read once, in parts.
    reads = READS * (parts + fragments)
    return ShuffleReport(
        buckets=plan.buckets,
        bucket_bytes=totals[1] * TOKEN_BYTES // buckets[1],
        runs=runs,
        run_bytes=totals[1] * TOKEN_BYTES // whole_runs,
        parts=parts,
        merged=len(merged),
        merged_bytes=sum(totals) * TOKEN_BYTES // max(len(merged), 1),
        fragments=fragments,
        fragment_bytes=sum(totals) * TOKEN_BYTES // max(fragments, 1),
        unmerged_fragment_bytes=totals[1] * TOKEN_BYTES // (whole_runs * buckets[1]),
        reads=reads,
        dollars=reads * DOLLARS_PER_READ,
        hours=reads / READS_PER_SECOND / 3600,
        summaries_bytes=summaries_bytes,
        groups_bytes=groups_bytes,
        references_bytes=fragments * sum(encoded_sizes) // max(len(encoded_sizes), 1),
        seconds=time.perf_counter() - began,
    )


_GROUP = tuple[PlainGroup, PlainFragment]


def _coder(kind: Any) -> Any:
    return registry.get_coder(convert_to_beam_type(kind))


def _sorted(summary: BlockSummary, plan: ShufflePlan, cells: bool) -> BlockSummary:
    """A summary with a run per stream, of cells of about 256 KiB, as RunWriter makes them.

    cells: False for a cell per range of the plan, which is faster and gives the same groups.
    """
    runs, tokens, documents = [], 0, 0
    for stream, bits, sums in zip(plan.streams, plan.range_bits, summary.streams(), strict=True):
        if cells:
            bits = max(sums.tokens * TOKEN_BYTES // FRAGMENT_BYTES, 1).bit_length() - 1
        run = _run(stream, sums.tokens, bits, tokens, documents)
        runs.append(run)
        tokens, documents = run.tokens[-1], run.documents[-1]
    return replace(summary, runs=tuple(runs))


def _run(stream: str, tokens: int, bits: int, start: int, first_byte: int) -> SortedRun:
    """A run with equal cells."""
    cells = 1 << bits
    content = tokens // DOCUMENT_TOKENS * _DOCUMENT_BYTES
    return SortedRun(
        stream,
        tuple(start + tokens * cell // cells for cell in range(cells + 1)),
        tuple(first_byte + content * cell // cells for cell in range(cells + 1)),
    )


def _fragments(group: Group, tokens: int, plan: ShufflePlan) -> Iterator[tuple[int, Fragment]]:
    """The fragments of a merged run, by the number of the bucket."""
    streams = len(plan.streams)
    stream, bits = group.number % streams, group.bits - group.range_bits
    run = _run(plan.streams[stream], tokens, bits, 0, 0)
    for prefix, fragment in fragments_of_run(group.place, run, bits):
        own = (group.prefix << bits) + prefix
        yield Bucket(stream, streams, group.bits, own).number, fragment


def shuffle_table(report: ShuffleReport) -> Table:
    """The report as a table for the terminal."""
    shown = Table(
        title="the shuffle of the same tokens, on gs://", caption=f"{report.seconds:.0f} s"
    )
    for title in ("", "number", "each", "encoded references"):
        shown.add_column(title, justify="right" if title else "left")
    mb, gb = 1e6, 1e9
    for name, number, each, crossing in (
        ("runs: blocks, by stream", report.runs, f"{report.run_bytes / mb:,.0f} MB", None),
        ("block summaries with cells", report.runs // 2, None, report.summaries_bytes),
        ("parts of runs to merge", report.parts, None, report.groups_bytes),
        ("merged runs", report.merged, f"{report.merged_bytes / gb:,.2f} GB", None),
        ("buckets", report.buckets, f"{report.bucket_bytes / gb:,.2f} GB", None),
        (
            "fragments of merged runs",
            report.fragments,
            f"{report.fragment_bytes / 1e3:,.0f} kB",
            report.references_bytes,
        ),
        ("without merging", 0, f"{report.unmerged_fragment_bytes / 1e3:,.1f} kB", None),
    ):
        shown.add_row(
            name,
            f"{number:,}" if number else "",
            each or "",
            f"{crossing / gb:,.2f} GB" if crossing else "",
        )
    shown.add_section()
    shown.add_row(
        "reads", f"{report.reads:,}", f"${report.dollars:,.0f}", f"{report.hours:,.1f} h at 5,000/s"
    )
    return shown
