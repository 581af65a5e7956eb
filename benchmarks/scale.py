"""Measures the plan of a dataset of FineWeb's size, with synthetic counts.

Reports the time and memory of its parts, and the bytes that they shuffle. The functions are those
of `fineshards/shards`, called as `transforms/shards.py` calls them: the summaries of one file at a
time, all reports at once. Sizes are those of Beam's own coders.
"""

import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from apache_beam.coders import registry
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from rich.console import Console
from rich.table import Table

from benchmarks.contestants import ROOT
from benchmarks.machine import describe_commit, describe_machine, describe_versions
from benchmarks.made_up import TEST_DIVISOR, Size, file_summaries
from benchmarks.made_up_dataset import make_dataset
from benchmarks.measure import measure
from benchmarks.results import free_path, save
from fineshards import TokenDataset
from fineshards.errors import FineshardsError
from fineshards.shards.counts import (
    BlockSummary,
    FileReport,
    check_reports,
    complete_file,
    report_file,
)
from fineshards.shards.job.records import Piece
from fineshards.shards.layout import Layout, ShardKey
from fineshards.shards.piece_plan import StreamPlan, plan_pieces, plan_stream
from fineshards.shards.split_rule import ByFraction
from fineshards.storage.open import open_storage

RULE = ByFraction(f"1/{TEST_DIVISOR}", "text", 1)
# The whole plan would take some minutes and gigabytes in one process.
BEAM_SHRINK = 10
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the plan. seconds: all calls, on one core. peak: bytes, NumPy arrays included."""

    name: str
    calls: int
    seconds: float
    peak: int


@dataclass(frozen=True, slots=True)
class Crossing:
    """Elements that pass between two steps. bytes: encoded size of all of them."""

    name: str
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ScaleReport:
    """The cost of a dataset's plan. pieces_per_shard: (fewest, median, most)."""

    size: Size
    test_shards: int
    shards: int
    steps: tuple[Step, ...]
    crossings: tuple[Crossing, ...]
    pieces: int
    pieces_per_shard: tuple[int, float, int]


def simulate(size: Size) -> ScaleReport:
    """Runs the plan of a synthetic dataset; raises FineshardsError if it does not add up."""
    files = range(size.files)
    per_file = Stopwatch("each file: order, check, report")
    reports, summaries_bytes = [], 0
    longest: list[BlockSummary] = []
    summary_coder = coder(tuple[int, BlockSummary])
    for file in files:
        arriving = file_summaries(size, file)
        summaries_bytes += sum(len(summary_coder.encode((file, each))) for each in arriving)
        if arriving:
            reports.append(per_file.time(_report, arriving))
            longest = max(longest, arriving, key=len)

    layout = Stopwatch("all files: offsets and layout")
    plan = layout.time(_plan, reports, size)

    cutting = Stopwatch("each file: pieces")
    pieces, pieces_bytes = 0, 0
    per_shard = np.zeros((2, plan.layout.windows), dtype=np.int64)
    piece_coder = coder(tuple[tuple[str, int], Piece])
    for file in files:
        if arriving := file_summaries(size, file):
            for key, piece in cutting.time(_pieces, arriving, plan):
                pieces += 1
                pieces_bytes += len(piece_coder.encode(((key.split, key.index), piece)))
                per_shard[:, _window(plan.layout, key)] += (1, piece.stop - piece.start)
    _check(per_shard[1], plan)

    return ScaleReport(
        size=size,
        test_shards=plan.layout.windows_of("test"),
        shards=plan.layout.windows,
        steps=(
            per_file.step(peak_bytes(lambda: _report(copies(longest)))),
            layout.step(peak_bytes(lambda: _plan(copies(reports), size))),
            cutting.step(peak_bytes(lambda: _pieces(copies(longest), plan))),
        ),
        crossings=(
            Crossing("block summaries, by file", size.blocks, summaries_bytes),
            Crossing("file reports, to one place", len(reports), encoded_bytes(reports)),
            Crossing("the plan, as side input", 1, len(coder(StreamPlan).encode(plan))),
            Crossing("pieces, by shard", pieces, pieces_bytes),
        ),
        pieces=pieces,
        pieces_per_shard=(
            int(per_shard[0].min()),
            float(np.median(per_shard[0])),
            int(per_shard[0].max()),
        ),
    )


class Stopwatch:
    """Adds up the time of calls."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls = 0
        self._seconds = 0.0

    def time(self, action: Callable[..., _Result], *arguments: Any) -> _Result:
        """Calls an action and returns its result."""
        began = time.perf_counter()
        result = action(*arguments)
        self._seconds += time.perf_counter() - began
        self._calls += 1
        return result

    def step(self, peak: int) -> Step:
        """The measured step. peak: bytes, measured in a separate run because that is slow."""
        return Step(self._name, self._calls, self._seconds, peak)


def peak_bytes(action: Callable[[], object]) -> int:
    """The peak of the memory that an action allocates, in bytes."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def coder(kind: Any) -> Any:
    """The coder that Beam chooses for elements of a type."""
    return registry.get_coder(convert_to_beam_type(kind))


def encoded_bytes(reports: list[FileReport]) -> int:
    """The size of all reports, each encoded on its own."""
    report_coder = coder(FileReport)
    return sum(len(report_coder.encode(report)) for report in reports)


def copies(elements: list[_Result]) -> list[_Result]:
    """Elements as a worker has them: decoded, so that they share no objects."""
    any_coder = coder(type(elements[0]))
    return [any_coder.decode(any_coder.encode(element)) for element in elements]


def _report(arriving: list[BlockSummary]) -> FileReport:
    return report_file(complete_file(arriving))


def _plan(reports: list[FileReport], size: Size) -> StreamPlan:
    check_reports(reports, max_bad_rows=0)
    return plan_stream(reports, size.shard_tokens, RULE)


def _pieces(arriving: list[BlockSummary], plan: StreamPlan) -> list[Any]:
    return list(plan_pieces(complete_file(arriving), plan))


def _window(layout: Layout, key: ShardKey) -> int:
    """The place of a shard in global order, from 0."""
    return key.index + (layout.windows_of("test") if key.split == "train" else 0)


def _check(tokens_per_shard: Any, plan: StreamPlan) -> None:
    for key in [shard.key for shard in plan.layout.shards()]:
        found, expected = tokens_per_shard[_window(plan.layout, key)], plan.layout.shard_length(key)
        if found != expected:
            raise FineshardsError(
                f"the pieces of {plan.layout.shard_name(key)} hold {found} tokens, "
                f"expected {expected}."
            )


def time_opening(size: Size) -> Step:
    """Opens a dataset with as many shards and files, whose shards are not there."""
    shards, tokens = -(-size.tokens // size.shard_tokens), 16
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        storage = open_storage(folder)
        make_dataset(storage, shards * tokens, tokens, files=size.files, empty=True)
        TokenDataset(folder, sequence_length=tokens)  # with the time of imports
        began = time.process_time()
        TokenDataset(folder, sequence_length=tokens)
        seconds = time.process_time() - began
        peak = peak_bytes(lambda: TokenDataset(folder, sequence_length=tokens))
    return Step("open", shards, seconds, peak)


def table(report: ScaleReport) -> Table:
    """The report as a table for the terminal."""
    size = report.size
    fewest, median, most = report.pieces_per_shard
    shown = Table(
        title=f"the plan of {size.tokens:,} tokens: {size.blocks:,} blocks, {size.files:,} files",
        caption=f"{report.shards:,} shards, {report.test_shards:,} of them test, "
        f"of {fewest} to {most} pieces, median {median:g}",
    )
    for title in ("", "calls or elements", "seconds", "peak memory", "encoded", "each"):
        shown.add_column(title, justify="right" if title else "left")
    for step in report.steps:
        shown.add_row(step.name, f"{step.calls:,}", f"{step.seconds:.2f}", _size(step.peak), "", "")
    shown.add_section()
    for crossing in report.crossings:
        shown.add_row(
            crossing.name,
            f"{crossing.elements:,}",
            "",
            "",
            _size(crossing.bytes),
            f"{crossing.bytes / crossing.elements:,.0f} B",
        )
    return shown


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count / 1e3:,.1f} kB"


def bench_scale(size: Size, results: Path, name: str, console: Console) -> Path:
    """Simulates the plan, runs a tenth of it in Beam, prints and saves; returns the JSON's path.

    Raises FineshardsError if something does not add up.
    """
    began = datetime.now(UTC).isoformat(timespec="seconds")
    report = simulate(size)
    console.print(table(report))
    part = size.shrunk(BEAM_SHRINK)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        arguments = map(str, (part.tokens, part.blocks, part.files, part.shard_tokens))
        command = [sys.executable, "-m", "benchmarks.scale_beam", *arguments]
        measured = measure(command, Path(folder, "log"), cwd=ROOT)
        machine = describe_machine(Path(folder))
    console.print(
        f"a Beam run of Plan and its shuffles with 1/{BEAM_SHRINK} of that: "
        f"{measured.wall:.1f} s, {measured.peak_tree / 1e6:,.0f} MB, start-up included",
        highlight=False,
    )
    opening = time_opening(size)
    console.print(
        f"opening a dataset of {opening.calls:,} shards for training: {opening.seconds:.2f} s of "
        f"processor time, {_size(opening.peak)}",
        highlight=False,
    )
    path = free_path(results, began, name)
    content = {
        "format": "fineshards-scale",
        "version": 1,
        "name": name,
        "date": began,
        "commit": describe_commit(ROOT),
        "machine": machine,
        "versions": describe_versions(sys.executable, ("apache-beam", "numpy")),
        **asdict(report),
        "opening": asdict(opening),
        "beam": {"size": asdict(part), **asdict(measured)},
    }
    save(content, path)
    console.print(f"written to {os.path.relpath(path)}", highlight=False)
    return path
