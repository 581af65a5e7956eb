"""The examples of docs/trainers.md run as printed. With torch and the trainers: tests/readers/."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.build_here import build_here
from support.checkout import ROOT
from support.page_examples import run_examples


def test_the_examples_with_jax_and_grain_run(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("grain")
    monkeypatch.chdir(tmp_path)
    build_here(input=sample, output="out", shard_tokens=100_000)
    ran = run_examples(ROOT / "docs/trainers.md")
    assert ran["JAX"]["tokens"].shape == ran["Grain"]["rows"].shape == (32, 1025)
