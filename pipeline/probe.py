"""What `fineshards estimate` measures: Tokenize, on blocks from all over the input."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from fineshards.config import BuildConfig
from fineshards.cores import usable_cores
from fineshards.errors import InputError, UsageError
from fineshards.inspection.dataflow_cost import on_dataflow
from fineshards.inspection.estimate import Curation, Estimate, StepShare, hub_limit, scaled, spread
from fineshards.inspection.last_estimate import remember
from fineshards.pipeline.append import are_new
from fineshards.pipeline.input_files import find_input, settle_input
from fineshards.pipeline.launch import default_block_bytes, describe_job
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import Counts
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.recipe_record import RecipeRecord
from fineshards.shards.job.records import Block, SourceFile
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage
from fineshards.storage.temporary import scratch_folder
from fineshards.worker.fresh_interpreter import call_apart, call_in_fresh_interpreter
from fineshards.worker.pool import Pool
from fineshards.worker.tasks import discover_files, probe_block, side_by_side
from fineshards.worker.work import Work

# Text of a probe per core, because an encoder is slow until it has seen the common words; at most.
_CORE_BYTES, _MOST_BYTES = 96 << 20, 2 << 30
# Files that are looked at, per kind. Parts of a probe: many, so that they are from many places; the
# size of one; how much larger it may be where blocks are large.
_FILES, _PARTS, _BLOCK_BYTES, _LARGER = 64, 48, 4 << 20, 4
_SECONDS = 30.0  # after which a slow probe ends
# Seconds of a build that are not work, and what Write adds to Tokenize: docs/performance.md.
_FIXED_SECONDS, _WRITE = 1.5, 1.1

Found = dict[SourceFile, list[Block]]


@dataclass(frozen=True, slots=True)
class _Grows:
    """The dataset that would grow by the input."""

    storage: Storage
    manifest: Manifest

    @classmethod
    def of(cls, config: BuildConfig) -> _Grows:
        """The dataset; raises OutputError if it is not finished."""
        storage = open_storage(config.folder, config.s3_endpoint)
        return cls(storage, Manifest.load_finished(storage))

    def describe(self, config: BuildConfig, block_bytes: int) -> tuple[Job, tuple[bytes, ...]]:
        """As `describe_job`, with the dataset's settings, and without its recipe."""
        settings = replace(
            self.manifest.settings,
            block_bytes=block_bytes,
            shuffle=None,
            recipe=None,
            statistics=False,
        )
        files, origin, _ = find_input(config)
        files = settle_input(files, settings.columns, config)
        if not are_new(self.manifest.job, files):
            raise UsageError(f"{self.storage.root} has all of these files, so nothing is appended.")
        stored = tuple(map(self.storage.read, settings.stored_files))
        return Job(settings, tuple(files), origin), stored


@dataclass(frozen=True, slots=True)
class _ProbePart:
    """What a block gave.

    bytes: of it that were read. seconds: of one core. judging: those of them for the recipe.
    """

    file: SourceFile
    bytes: float
    is_whole: bool
    counts: Counts
    seconds: float
    judging: float


def estimate(config: BuildConfig, workers: int | None, size: int | None = None) -> Estimate:
    """Tokenizes a probe of the input in a temporary folder; returns what the whole will take.

    workers: on Dataflow; None for a sensible number. size: bytes of text to probe. Raises
    FineshardsError for an input or a tokenizer that `build` refuses too.
    """
    with scratch_folder() as folder:
        probed = size or min(_CORE_BYTES * usable_cores(), _MOST_BYTES)
        return call_in_fresh_interpreter(_measure, config, workers, probed, folder)


def _measure(config: BuildConfig, workers: int | None, size: int, folder: str) -> Estimate:
    block_bytes = min(size // _PARTS, _BLOCK_BYTES)
    # Rows that cannot be encoded are counted, not refused.
    trial = replace(
        config, append=False, output=folder, block_bytes=block_bytes, max_bad_rows=sys.maxsize
    )
    storage = open_storage(folder)
    grows = _Grows.of(config) if config.append else None
    job, stored = describe_job(trial) if grows is None else grows.describe(config, block_bytes)
    asked = job.settings
    if asked.recipe is not None:
        job = replace(job, settings=replace(asked, recipe=call_apart(_without_keyed, asked.recipe)))
    for name, content in zip(asked.stored_files, stored, strict=True):
        storage.write(name, content)
    job.save(storage)
    work, kinds = Work.of(Checkpoints.of(storage, job), job, trial), defaultdict(list)
    for file in job.files:
        kinds[_kind(file)].append(file)
    looked = [files[n] for files in kinds.values() for n in spread(len(files))[:_FILES]]
    with Pool(work, usable_cores(), ()) as pool:
        found: Found = dict(
            pair
            for pairs, _ in pool.results([discover_files(*each) for each in side_by_side(looked)])
            for pair in pairs
        )
        totals = {kind: _total(files, found) for kind, files in kinds.items()}
        parts = _read(pool, found, totals, size, _LARGER * block_bytes)
    if not any(part.counts.documents for part in parts):
        dropped = sum(part.counts.documents_dropped for part in parts)
        raise InputError(
            f"the recipe drops all {dropped:,} documents of a probe of the input."
            if dropped
            else "the input has no documents, as far as it was probed."
        )
    # A block is done by one core. A build's are larger than those of the probe.
    usual = config.block_bytes or default_block_bytes(job.files, job.settings.recipe is not None)
    largest = max(usual, *(block.bytes for blocks in found.values() for block in blocks))
    busy = min(usable_cores(), max(1.0, sum(totals.values()) / largest))
    result = _conclude(job, workers, usual, parts, totals, busy, Path(folder))
    if asked.recipe is not None:
        result = replace(result, curation=_curation(asked.recipe, parts))
    result = replace(result, hub=hub_limit(job.files))
    remember(result, job.files, asked)
    return result


def _total(files: Sequence[SourceFile], found: Found) -> int:
    """Bytes of all files of a kind, in the measure of `Block.bytes`, from those of some."""
    seen = [file for file in files if file in found]
    size = sum(block.bytes for file in seen for block in found[file])
    return size * sum(file.size for file in files) // max(sum(file.size for file in seen), 1)


def _read(
    pool: Pool, found: Found, totals: Mapping[str, int], size: int, part_bytes: int
) -> list[_ProbePart]:
    """Parts of together about `size` bytes, each kind by its share."""
    chosen: list[tuple[float, SourceFile, Block, int]] = []
    for kind, total in totals.items():
        blocks = [(file, block) for file in found if _kind(file) == kind for block in found[file]]
        share = size * total / max(sum(totals.values()), 1)
        limit, taken = max(part_bytes, round(share / len(blocks))), 0
        for file, block in (blocks[number] for number in spread(len(blocks))):
            chosen.append((taken / max(share, 1), file, block, limit))
            taken += min(block.bytes, limit)
            if taken >= share:
                break
    # Kinds in turn, so that all are read if time runs out.
    chosen.sort(key=lambda each: each[0])
    tasks = [probe_block(file, block, limit) for _, file, block, limit in chosen]
    until, parts = time.monotonic() + _SECONDS, []
    for (_, file, block, _), ((summary, share, judging), seconds) in zip(
        chosen, pool.results(tasks), strict=False
    ):
        read, is_whole = share * block.bytes, share == 1
        parts.append(_ProbePart(file, read, is_whole, summary.counts, seconds, judging))
        if time.monotonic() > until and len(parts) >= len(totals):
            break
    return parts


def _conclude(
    job: Job,
    workers: int | None,
    block_bytes: int,
    parts: list[_ProbePart],
    totals: Mapping[str, int],
    busy: float,
    folder: Path,
) -> Estimate:
    found = [(_kind(part.file), part.bytes, part.counts.tokens) for part in parts]
    tokens, likely = scaled(found, totals)
    # Lines are read from the beginning of a file, which may differ from the rest.
    is_spread = all(part.is_whole or part.file.format == "parquet" for part in parts)
    counts = Counts.total([part.counts for part in parts])
    warm = _warm(parts)
    rate = sum(part.counts.tokens for part in warm) / sum(part.seconds for part in warm)
    on_disk = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    in_blocks = {
        path: size
        for path, size in on_disk.items()
        if path.parent.name == "blocks" or path.suffix in (".decisions", ".scores")
    }
    tables = sum(
        size
        for path, size in in_blocks.items()
        if path.suffix in (".parquet", ".decisions", ".scores")
    )
    token_bytes, scale = job.settings.token_dtype.itemsize, tokens / counts.tokens
    growing = tokens * token_bytes + round(scale * tables)
    # Shards are written early, but for the last one of each stream and one that is being written.
    windows = len(job.settings.split.streams) + 1
    in_windows = min(1.0, windows * job.settings.shard_tokens / max(1, tokens))
    if job.settings.shuffle is not None:
        in_windows = 1.0
    fixed = sum(on_disk.values()) - sum(in_blocks.values())
    memory = getrusage(RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Estimate(
        exact=all(part.is_whole for part in parts) and scale == 1,
        tokens=tokens,
        tokens_range=likely if is_spread else None,
        documents=round(scale * counts.documents),
        rejected=counts.rejected,
        seconds=_FIXED_SECONDS + _WRITE * tokens / (rate * busy),
        cores=usable_cores(),
        memory_bytes=(usable_cores() + 1) * memory,
        output_bytes=fixed + growing,
        peak_bytes=fixed + growing + round(in_windows * growing),
        probe_share=1 / scale,
        dataflow=on_dataflow(
            tokens,
            token_bytes,
            rate,
            workers,
            blocks=scale * _text_bytes(counts) / block_bytes,
            shards=tokens / job.settings.shard_tokens,
        ),
    )


def _warm(parts: list[_ProbePart]) -> list[_ProbePart]:
    """The later parts, where all is loaded and the common words are known."""
    warm = parts[len(parts) // 3 :]
    return warm if any(part.counts.tokens for part in warm) else parts


def _text_bytes(counts: Counts) -> int:
    """Text of the documents that reach a recipe; where it rewrites, about that."""
    return counts.text_bytes + sum(each.text_bytes for each in counts.dropped)


def _without_keyed(recipe: RecipeRecord) -> RecipeRecord | None:
    """The steps that judge documents one by one."""
    from fineshards.curation.curator import describe
    from fineshards.curation.recipe import load_steps

    steps = load_steps(step for step in recipe.steps if not step.keyed)
    return describe(steps) if steps else None


def _curation(recipe: RecipeRecord, parts: list[_ProbePart]) -> Curation:
    counts, warm = Counts.total([part.counts for part in parts]), _warm(parts)
    dropped: Counter[int] = Counter()
    for each in counts.dropped:
        dropped[each.step] += each.documents
    left, steps = counts.documents + counts.documents_dropped, []
    judges = [number for number in range(len(recipe.steps)) if number not in recipe.keyed]
    for number, place in enumerate(judges):
        steps.append(StepShare(recipe.step_name(place), left, left - dropped[number]))
        left -= dropped[number]
    text = _text_bytes(Counts.total([part.counts for part in warm]))
    return Curation(
        steps=tuple(steps),
        keyed=tuple(map(recipe.step_name, recipe.keyed)),
        bytes_per_second=text / max(sum(part.judging for part in warm), 1e-9),
    )


def _kind(file: SourceFile) -> str:
    return f"{file.format} {file.compression}"
