"""The examples of docs/loader.md run as they stand; those for a framework where it is installed."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT, SAMPLE

from fineshards.pipeline.cli import main

PAGE = ROOT / "docs/loader.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--input", str(SAMPLE), "--output", str(tmp_path / "out"), "--shard_tokens=50000"]
    assert main(["build", *flags]) == 0
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) >= 10
    names: dict[str, object] = {}
    ran = 0
    for example in examples:
        frameworks = set(re.findall(r"(?:from|import) (torchdata|torch|jax|grain)\b", example))
        if all(find_spec(framework) for framework in frameworks):
            exec(compile(example, str(PAGE), "exec"), names)
            ran += 1
    assert ran >= 5
    names.clear()


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    written = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    assert {name for name in named if f"def {name}(" not in written} == set()
    assert len(named) > 12
