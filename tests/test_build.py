"""The bytes of every shard, against the oracle, for whatever may vary between two runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from oracle import oracle, read_texts, shards_in

Build = Callable[..., int]


@pytest.mark.parametrize(
    "flags",
    [
        ["--direct_running_mode=in_memory"],
        ["--direct_running_mode=multi_threading", "--direct_num_workers=3"],
        ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
        ["--direct_running_mode=in_memory", "--direct_runner_bundle_repeat=2"],
        ["--block_bytes=1"],
        ["--block_bytes=1000000000"],
    ],
    ids=lambda flags: " ".join(flags),
)
def test_bytes_do_not_depend_on_how_the_job_runs(
    build: Build, sample: Path, tmp_path: Path, flags: list[str]
) -> None:
    assert build(sample, tmp_path, "--shard_tokens=50000", *flags) == 0
    assert shards_in(tmp_path) == oracle(read_texts(sample), 50_000, test_shards=1)
