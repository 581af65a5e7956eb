"""What `fineshards estimate` measures: one build of a probe of the input, on this machine."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from glob import escape
from math import inf
from pathlib import Path

from fineshards.commands.estimate import Estimate, on_dataflow, remember, scaled
from fineshards.config import BuildConfig
from fineshards.cores import usable_cores
from fineshards.pipeline.launch import columns_of, default_block_bytes, find_input
from fineshards.pipeline.run import run
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job import Job
from fineshards.shards.manifest import Manifest
from fineshards.shards.records import SourceFile
from fineshards.sources.probe import Part, Probe, take_probe
from fineshards.storage.base import open_storage
from fineshards.storage.temporary import temporary_room

# Input of this size on disk is built as it is.
_SMALL_BYTES = 32 << 20
# The size of a probe per core, and at most: an encoder is slow until it has seen the common words.
_CORE_BYTES, _MOST_BYTES = 96 << 20, 4 << 30
# Reading a remote input may be slow: copying ends after so many seconds.
_COPY_SECONDS = 30.0
# A probe has several shards for each core, as a large input has.
_SHARD_TOKENS = 2_000_000


def estimate(config: BuildConfig, workers: int | None, say: Callable[[str], None]) -> Estimate:
    """Builds a probe of the input in a temporary folder; returns what the whole will take.

    workers: on Dataflow; None for a sensible number. say: told what is being done. Raises
    FineshardsError for an input or a tokenizer that `build` refuses too.
    """
    files, _ = find_input(config)
    small = sum(file.size for file in files) <= _SMALL_BYTES
    with temporary_room(), tempfile.TemporaryDirectory(prefix="fineshards-estimate-") as folder:
        # Rows that cannot be encoded are counted, not refused.
        output = f"{folder}/out"
        build = replace(config, output=output, keep_checkpoints=True, max_bad_rows=sys.maxsize)
        if small:
            probe = Probe([Part("", "all", 1)], {"all": 1}, 1, True, 0.0)
        else:
            say("reading a probe of the input …")
            os.mkdir(f"{folder}/in")
            size = min(_CORE_BYTES * usable_cores(), _MOST_BYTES)
            probe = take_probe(files, columns_of(config), f"{folder}/in", size, _COPY_SECONDS)
            build = replace(
                build,
                input=f"{escape(folder)}/in/*",
                dataset=None,
                dataset_config=None,
                dataset_revision=None,
                shard_tokens=_SHARD_TOKENS,
            )
        say(f"building {'the input' if small else 'the probe'} …")
        began = time.monotonic()
        manifest = run(build)
        seconds = time.monotonic() - began
        found = _estimate(config, files, probe, manifest, output, seconds, workers)
    remember(found, files, manifest.settings)
    return found


def _estimate(
    config: BuildConfig,
    files: Sequence[SourceFile],
    probe: Probe,
    manifest: Manifest,
    output: str,
    seconds: float,
    workers: int | None,
) -> Estimate:
    """Concludes from the build of a probe to that of the input."""
    sums, cores = manifest.totals(), usable_cores()
    small = probe.parts[0].path == ""
    counts = [manifest.counts()] if small else [report.counts for report in manifest.reports]
    found = {
        what: scaled(
            (
                (part.kind, part.bytes, getattr(count, what))
                for part, count in zip(probe.parts, counts, strict=True)
            ),
            probe.totals,
        )
        for what in ("tokens", "documents", "text_bytes")
    }
    tokens, text_bytes = found["tokens"][0], found["text_bytes"][0]
    share = sums["tokens"] / max(tokens, 1)
    tokenizing, writing = _rates(output, cores)
    rate = tokenizing or sums["tokens"] / seconds
    # All of a row group, and of a file of JSON Lines, is done by one worker.
    total = sum(probe.totals.values())
    busy = min(cores, max(1.0, total / probe.largest))
    work = cores / busy / rate + 1 / writing
    if any("://" in file.path for file in files):
        work += probe.seconds / sums["tokens"] / busy
    checkpoints, whole = _size(Path(output, CHECKPOINTS)), _size(Path(output))
    settings = manifest.settings
    return Estimate(
        exact=small,
        tokens=tokens,
        tokens_range=found["tokens"][1] if probe.even else None,
        documents=found["documents"][0],
        documents_range=found["documents"][1] if probe.even else None,
        text_bytes=text_bytes,
        rejected=sums["rejected"],
        seconds=seconds + (tokens - sums["tokens"]) * work,
        cores=cores,
        memory_bytes=_peak_memory(cores),
        output_bytes=round((whole - checkpoints) / share),
        peak_bytes=round(whole / share),
        probe_share=share,
        probe_seconds=seconds,
        dataflow=on_dataflow(
            tokens,
            text_bytes,
            settings.token_dtype.itemsize,
            rate / cores,
            workers,
            config.block_bytes or default_block_bytes(files),
            config.shard_tokens,
        ),
    )


def _rates(output: str, cores: int) -> tuple[float | None, float]:
    """Tokens per second of all cores while they tokenize, if it can be told, and while they write.

    By the times of the files that a build leaves, so its start does not count.
    """
    storage = open_storage(output)
    job = Job.load(storage)
    assert job is not None
    checkpoints = Checkpoints.of(storage, job)
    blocks = [(moment, tokens) for tokens, moment in checkpoints.finished_blocks().values()]
    shards = [(moment, _SHARD_TOKENS) for moment in checkpoints.finished_shards()]
    return _rate(blocks, cores), _rate(shards, cores) or inf


def _rate(finished: list[tuple[float, int]], cores: int) -> float | None:
    """Tokens per second, from (time, tokens) of pieces of work; None if there are too few.

    Without the first third, in which the encoders learn words, and the last ones, when some cores
    have no work left.
    """
    finished = sorted(finished)[len(finished) // 3 : len(finished) - cores + 1]
    if len(finished) < 2 or finished[-1][0] == finished[0][0]:
        return None
    return sum(tokens for _, tokens in finished[1:]) / (finished[-1][0] - finished[0][0])


def _peak_memory(cores: int) -> int:
    """Bytes of this process, or of as many as work at once if the build was done by others."""
    unit = 1 if sys.platform == "darwin" else 1024
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    others = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(here, (cores + 1) * others) * unit


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
