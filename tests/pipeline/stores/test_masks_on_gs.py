"""Conversations with output on gs://: the bytes of a local dataset, also appended and redacted."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.conversations import TEMPLATE, made_up, write
from support.faulty_proxy import Proxy
from support.growing import append, build
from support.oracle import files_in

import fineshards

pytestmark = pytest.mark.cloud
OUTPUT = "gs://data/out"


def test_masks_on_gs_are_those_of_a_local_dataset(cloud: Proxy, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    first = write(tmp_path / "a.parquet", made_up(60, 1))
    second = write(tmp_path / "b.jsonl", made_up(30, 2))
    flags = [f"--chat_template={tmp_path}/chat.jinja", "--shard_tokens=3001", "--block_bytes=3000"]
    for output in (tmp_path / "out", OUTPUT):
        build(output, first, *flags)
        append(output, second)
        fineshards.redact(str(output), documents=[4, 70])
        assert fineshards.verify(output, sample="100%").problems == []
    found = {name.removeprefix("out/"): cloud.content("data", name) for name in cloud.names("data")}
    expected = files_in(tmp_path / "out")
    assert any(name.startswith("metadata/masks/") for name in expected)
    assert found == expected | {"test/": b"", "train/": b""}
