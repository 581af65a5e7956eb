"""Documents that are not there any more when they are compared end a job with a sentence."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from fineshards.config import BuildConfig
from fineshards.errors import InputError
from fineshards.pipeline.launch import prepare
from fineshards.shards.job.records import Block
from fineshards.shards.tables.marks import key_records, positions
from fineshards.shards.tables.verdicts import WANTED, KeyFile, StageFiles
from fineshards.worker.blocks import discover_file
from fineshards.worker.judging import Judging
from fineshards.worker.work import Work

TEXT = "the same words in the same order again"


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("inline", [False, True])
def test_a_document_that_is_gone_is_named(tmp_path: Path, inline: bool, gone: int) -> None:
    source = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": TEXT}) for _ in range(2)]
    source.write_text("\n".join(lines))
    config = BuildConfig(input=source, output=tmp_path / "out", dedup="minhash")
    launch = prepare(config)
    work = Work.of(launch.checkpoints, launch.job, config, inline=inline)
    judging = Judging(work)
    (file,) = launch.job.files
    (block,) = discover_file(file, work)
    judged, _ = judging.judge_block(file, block, 0)
    ((partition, part),) = judging.keyed_step(0).split_keys(judged.keys, 1)
    found = judging.keyed_step(0).mark_keys(partition, 1, [part])
    # Edited in its place, with the size and the times of before.
    times = source.stat()
    lines[gone] = lines[gone].replace(json.dumps(TEXT), "null".ljust(len(TEXT) + 2))
    source.write_text("\n".join(lines))
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    comparing = judging.keyed_step(0)
    wanted = [each for _, each in found if each[0] == WANTED]
    pairs = [each for _, each in found if each[0] != WANTED]
    with pytest.raises(InputError, match=rf"a.jsonl, row {gone}: the document is missing"):
        comparing.compare_documents(
            0, [*pairs, *(each for _, each in comparing.write_contents(0, wanted))]
        )


# Half of the documents have one key.
FILES, ROWS = 200, 20_000
RANGES = 4


@pytest.mark.parametrize("inline", [False, True])
def test_millions_of_equal_documents_are_compared_in_little_memory(
    sample: Path, tmp_path: Path, inline: bool
) -> None:
    config = BuildConfig(input=sample, output=tmp_path, dedup="exact")
    launch = prepare(config)
    work = Work.of(launch.checkpoints, launch.job, config, inline=inline)
    compared, stage = Judging(work).keyed_step(0), StageFiles(launch.checkpoints, 0)
    draw = np.random.default_rng(1)
    blocks = [Block(n, 0, 1, 0, 0, 0, bytes=9) for n in range(FILES)]
    ranges = defaultdict(list)
    for block in blocks:
        keys = draw.integers(0, 2**64, (ROWS, 2), np.uint64)
        keys[::2] = 5
        records = key_records(keys, positions(block.file, np.arange(ROWS)))
        stage.write_block(block, [], records)
        for number, part in compared.split_keys(KeyFile(stage.keys_file(block), ROWS), RANGES):
            ranges[number].append(part)
    crossing = sum(len(part[4] or b"") for parts in ranges.values() for part in parts)
    assert crossing < FILES * ROWS * 24 * 0.51

    of_file = defaultdict(list)
    tracemalloc.start()
    for number, parts in ranges.items():
        for file, found in compared.mark_keys(number, RANGES, parts):
            of_file[file].append(found)
    # A quarter of the unequal documents, of 64 bytes; of the equal ones it would be 250 MB.
    assert tracemalloc.get_traced_memory()[1] < 64 * FILES * ROWS // 2 // RANGES + 20_000_000
    for block in blocks:
        compared.write_marked(block.file, [block], of_file[block.file])
    assert tracemalloc.get_traced_memory()[1] < 64 * FILES * ROWS // 2 // RANGES + 20_000_000
    tracemalloc.stop()
    for block in blocks:
        rows = np.arange(0, ROWS, 2)[block.file == 0 :]
        marked = stage.marked(block.file)
        assert np.array_equal(marked["row"], rows)
        witness = set(marked["witness_file"].to_pylist()), set(marked["witness_row"].to_pylist())
        assert witness == ({0}, {0})
