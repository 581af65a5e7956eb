"""Requests to a store, counted by the proxy in front of it."""

from pathlib import Path

import pytest
from support.faulty_proxy import Proxy

import fineshards
from fineshards.config import BuildConfig
from fineshards.pipeline.run import build_quietly
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.cloud

# In Tokenize: is it finished, is the job still there, its tokens, its documents, its mark.
OF_A_BLOCK = 5
# In Write, where a block goes into a shard: its tokens are found and read; its documents
# are found, then footer and rows are read.
OF_A_PIECE = 5
# In Write: is it finished, is the job still there, its tokens, its table, its record.
OF_A_SHARD = 5


def requests(store: Proxy, source: Path, shard_tokens: int, blocks: int) -> int:
    """The requests of a build, without those of progress and of deleting at the end."""
    before = len(store.requests)
    manifest = build_quietly(
        BuildConfig(
            input=str(source),
            output=f"{store.scheme}://data/{shard_tokens}-{blocks}",
            keep_checkpoints=True,
            shard_tokens=shard_tokens,
            block_bytes=1 if blocks > 1 else 1 << 20,
        )
    )
    assert manifest.totals["blocks"] == blocks
    assert len(manifest.shards) == (1 if shard_tokens > 3000 else 9)
    return len(store.requests) - before


def test_a_block_and_a_shard_take_few_requests(either: Proxy, small: Path) -> None:
    """By what builds of the same text take more, with more blocks and with more shards."""
    least = requests(either, small, 10**6, blocks=1)
    blocks = requests(either, small, 10**6, blocks=8)
    shards = requests(either, small, 3000, blocks=8)
    assert blocks - least <= 7 * (OF_A_BLOCK + OF_A_PIECE)
    # A shard more is a piece more, because its border cuts a block.
    assert shards - blocks <= 8 * (OF_A_SHARD + OF_A_PIECE)


def test_status_of_a_planned_job_lists_no_blocks(either: Proxy, small: Path) -> None:
    output = f"{either.scheme}://data/planned"
    manifest = build_quietly(
        BuildConfig(input=str(small), output=output, keep_checkpoints=True, block_bytes=1)
    )
    names = [name for name in either.names("data") if "/checkpoints/" in name]
    assert any(name.endswith("/files/00000-00999.json") for name in names)
    storage = open_storage(output)
    storage.delete("metadata/manifest.json")
    before = len(either.requests)
    found = fineshards.status(output)
    asked = [request.line for request in either.requests[before:]]
    assert not [line for line in asked if "blocks" in line or "files/00000.json" in line]
    totals = manifest.totals
    assert (found.stage, found.tokens) == ("writing", totals["tokens"])
    assert [each.done for each in found.stages] == [1, 8, 1]
    assert found.seconds_idle < 600
