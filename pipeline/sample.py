"""A build of a sample of the input: what it says of the whole, and what a recipe does to it."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from fineshards.config import BuildConfig
from fineshards.cores import usable_cores
from fineshards.errors import UsageError
from fineshards.pipeline.launch import Launch, describe_job
from fineshards.pipeline.output_folder import take_folder
from fineshards.pipeline.run import complete
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.dataset_files import expected_files
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.tables.hash_sample import splitmix64
from fineshards.sources.reading import cut, discover_blocks
from fineshards.storage.open import open_storage
from fineshards.storage.temporary import scratch_folder
from fineshards.wording import approximately, duration, size
from fineshards.worker.fresh_interpreter import call_apart, call_in_fresh_interpreter

if TYPE_CHECKING:
    from fineshards.inspection.dropped import DroppedDocuments
    from fineshards.inspection.stats import Stats

# Where the input is read, and text that is read there: 64 MiB in all.
_POINTS, _POINT_BYTES = 32, 2 << 20

# A block, or its beginning, as a file of its own; points that are in it, and bytes as stored.
_Part = tuple[SourceFile, Block, int, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a build of the whole input gives and takes.

    exact: whether the sample was the whole input. sample_share: its share of the input, 0 to 1.
    tokens_range: the lowest and the highest number that is likely; None if a sample cannot tell,
    because there is one place to read, or because steps compare documents. seconds: on this
    machine. disk_bytes: of the finished dataset.
    """

    exact: bool
    sample_share: float
    tokens: int
    tokens_range: tuple[int, int] | None
    documents: int
    dropped: int
    seconds: float
    disk_bytes: int

    def __str__(self) -> str:
        about, likely = approximately, "from too little to tell how precisely"
        if self.exact:
            about, likely = "{:,}".format, "exactly"
        elif self.tokens_range:
            likely = "likely {} to {}".format(*map(approximately, self.tokens_range))
        return (
            f"from a build of {self.sample_share:.2%} of the input\n"
            f"  tokens     {about(self.tokens)}, {likely}\n"
            f"  documents  {about(self.documents)}, and {about(self.dropped)} dropped\n"
            f"  time       {duration(self.seconds)} on this machine, as busy as it is now\n"
            f"  disk       {size(self.disk_bytes)}, and up to as much again until it is finished"
        )


@dataclass(frozen=True, slots=True)
class Check:
    """What a recipe does to a sample of the input.

    sample_share: the sample's share of the input, 0 to 1. stats: of the sample. dropped: for each
    step, some of the documents that it dropped or cut.
    """

    sample_share: float
    stats: Stats
    dropped: list[DroppedDocuments]

    def __str__(self) -> str:
        from fineshards.inspection.dropped import describe_dropped

        examples = ["\n".join(describe_dropped(step)) for step in self.dropped if step.shown]
        return "\n\n".join([str(self.stats), *examples])


def estimate(config: BuildConfig) -> Estimate:
    """Builds a sample in a temporary folder; raises FineshardsError for what `build` refuses."""
    with scratch_folder() as folder:
        return call_in_fresh_interpreter(_estimate, config, folder)


def _estimate(config: BuildConfig, folder: str) -> Estimate:
    began = time.monotonic()
    manifest, parts, share = build_sample(config, folder)
    seconds, counts = time.monotonic() - began, manifest.counts()
    disk = sum(bytes_ for _, bytes_, _ in expected_files(manifest))
    sums = [counts.tokens, counts.documents, counts.documents_dropped]
    likely: tuple[int, int] | None = (counts.tokens, counts.tokens)
    if parts:
        _, _, points, read = (np.array(column) for column in zip(*parts, strict=True))
        of_files = [report.counts for report in manifest.reports]
        of_parts = [[of.tokens, of.documents, of.documents_dropped] for of in of_files]
        ratios, total = np.array(of_parts) / read[:, None], sum(read) / share
        means = np.average(ratios, axis=0, weights=points)
        sums, scale = np.rint(total * means).astype(int).tolist(), total * means[0] / counts.tokens
        squares = np.average((ratios - means)[:, 0] ** 2, weights=points)
        error = round(2 * total * sqrt(squares / max(len(parts) - 1, 1)))
        compares = manifest.settings.recipe is not None and manifest.settings.recipe.keyed
        measurable = len(parts) > 1 and not compares
        likely = (sums[0] - error, sums[0] + error) if measurable else None
        # Start and end take as long as they took. Large blocks may be too few for all workers.
        first, last = (
            max(path.stat().st_mtime for path in Path(folder, CHECKPOINTS).glob(f"*/{kind}/*"))
            for kind in ("files", "blocks")
        )
        workers = config.workers or usable_cores()
        at_once = min(workers, len(parts)) / min(workers, total / max(read))
        seconds, disk = seconds + (last - first) * (scale * at_once - 1), round(scale * disk)
    tokens, documents, dropped = sums
    return Estimate(not parts, share, tokens, likely, documents, dropped, seconds, disk)


def check(config: BuildConfig, examples: int) -> Check:
    """Builds a sample in a temporary folder; returns its statistics, and examples of each step."""
    if not config.curates:
        raise UsageError("give a recipe, or --where, --dedup or --decontaminate.")
    with scratch_folder() as folder:
        return call_in_fresh_interpreter(_check, config, examples, folder)


def _check(config: BuildConfig, examples: int, folder: str) -> Check:
    manifest, parts, part = build_sample(replace(config, statistics=True), folder)
    # Steps load libraries, which the build's workers must not find here.
    from fineshards.inspection.dropped import show_dropped
    from fineshards.inspection.stats import stats
    from fineshards.shards.dataset_files import Dataset

    dataset, recipe = Dataset.open(open_storage(folder)), manifest.settings.recipe
    steps = range(1, 1 + len(recipe.steps if recipe else ()))
    dropped = [show_dropped(dataset, None, step, None, examples) for step in steps]
    more = ""
    if parts and recipe and recipe.keyed:
        more = ", of which the whole has more duplicates"
    name = f"a build of {part:.2%} of the input{more}"
    return Check(part, replace(stats(folder), folder=name), dropped)


def build_sample(config: BuildConfig, folder: str) -> tuple[Manifest, list[_Part], float]:
    """Builds a sample in a folder; returns its parts, none if it is all, and its share of all."""
    config = replace(config, output=folder, block_bytes=_POINT_BYTES, keep_checkpoints=True)
    job, stored = describe_job(config)
    total = sum(file.size for file in job.files)
    parts = [] if total <= _POINTS * _POINT_BYTES // 2 else call_apart(_draw, job)
    if parts:
        (before,) = job.generations
        files = tuple(file for file, *_ in parts)
        before = structs.replace(before, files=len(files))
        job = structs.replace(job, files=files, generations=(before,))
    storage = open_storage(folder)
    job, _ = take_folder(storage, job, stored, config)
    checkpoints = Checkpoints.of(storage, job)
    for file, block, *_ in parts:  # Discover takes what is found already
        checkpoints.write_blocks(file.index, [block])
    share = sum(read for *_, read in parts) / total if parts else 1.0
    return complete(Launch(job, checkpoints, None, resumes=False), config), parts, share


def _draw(job: Job) -> list[_Part]:
    """Blocks at points all over the input: a hash places one in each of so many equal ranges."""
    numbers, sizes = np.arange(_POINTS, dtype=np.uint64), np.array([f.size for f in job.files])
    ends, columns, parts = np.cumsum(sizes), job.settings.columns, list[_Part]()
    at = ends[-1] * ((numbers + splitmix64(numbers) / 2**64) / _POINTS)
    files = np.searchsorted(ends, at, side="right")
    chosen = [job.files[number] for number in np.unique(files)]
    with ThreadPoolExecutor(_POINTS) as pool:
        of_files = [*pool.map(lambda file: discover_blocks(file, columns, _POINT_BYTES), chosen)]
    for file, blocks in zip(chosen, of_files, strict=True):
        weights = np.array([max(block.bytes, 1) for block in blocks])
        stored = weights * (file.size / weights.sum())
        borders = ends[file.index] - file.size + np.cumsum(stored)[:-1]
        inside = np.searchsorted(borders, at[files == file.index], side="right")
        for number, points in Counter(inside.tolist()).items():
            block, limit, index = blocks[number], points * _POINT_BYTES, len(parts)
            # Of what is not in small blocks, the beginning.
            whole = block.stop_group and block.bytes <= limit + _POINT_BYTES
            stop, part = (None, 1.0) if whole else cut(file, columns, block, limit)
            source = structs.replace(file, index=index, stop_row=stop)
            block = structs.replace(block, file=index, index=0, blocks=1)
            parts.append((source, block, points, part * float(stored[number])))
    return parts
