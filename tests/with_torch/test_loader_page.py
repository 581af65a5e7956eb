"""The examples in docs/loader.md run as printed, those with torch among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fineshards

ROOT = Path(__file__).parent.parent.parent


def test_the_examples_of_the_page_run_with_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fineshards.build(
        input=ROOT / "samples/debian_text.parquet", output=tmp_path / "out", shard_tokens=50_000
    )
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/loader.md").read_text().partition("\n## Packing\n")[0]
    names: dict[str, object] = {}
    with_torch = 0
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        if not re.search(r"(?:from|import) (jax|grain)\b", example):
            exec(compile(example, "docs/loader.md", "exec"), names)
            with_torch += bool(re.search(r"(?:from|import) torch", example))
    assert with_torch >= 2
    names.clear()
