"""A key that very many documents have takes little memory to compare, wherever it crosses."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from fineshards.config import BuildConfig
from fineshards.errors import FineshardsError
from fineshards.pipeline.launch import prepare
from fineshards.shards.job.records import Block
from fineshards.shards.tables.marks import key_records, positions
from fineshards.shards.tables.verdicts import KeyFile, StageFiles
from fineshards.worker import marking
from fineshards.worker.judging import Judging
from fineshards.worker.work import Work

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
    compared, stage = Judging(work).marking(0), StageFiles(launch.checkpoints, 0)
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
    crossing = sum(len(part[3] or b"") for parts in ranges.values() for part in parts)
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


def test_components_are_refused_where_memory_cannot_hold_them(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BuildConfig(input=sample, output=tmp_path, recipe=tmp_path / "recipe.toml")
    (tmp_path / "recipe.toml").write_text('[[steps]]\nuse = "minhash"\nrule = "components"\n')
    launch = prepare(config)
    work = Work.of(launch.checkpoints, launch.job, config)
    assert 0 < marking.machine_memory() < 1 << 50
    monkeypatch.setattr(marking, "machine_memory", lambda: 16_000_000_000)
    with pytest.raises(FineshardsError, match=r"^150,000,000 links .* 16\.1 GB .* has 16\.0 GB"):
        Judging(work).marking(0).join_components([("links", 0, 150_000_000 * 16, None)])
