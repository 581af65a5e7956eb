"""Datasets to report on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.hostile_rows import write_hostile_input
from support.reported import KINDS

from fineshards.cli.cli import main


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Datasets by kind, each built once."""
    found: dict[str, Path] = {}

    def build(kind: str) -> Path:
        if kind not in found:
            folder = tmp_path_factory.mktemp("report")
            KINDS[kind](folder)
            found[kind] = folder / "out"
        return found[kind]

    return build


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with a recipe, in whose every text, name and path is an attack."""
    folder = tmp_path_factory.mktemp("hostile")
    source = write_hostile_input(folder / "in<put>")
    given = [f"--input={source}/*.jsonl", f"--output={folder}/out", "--shard_tokens=5000"]
    assert main(["build", *given, f"--recipe={source}/recipe.toml"]) == 0
    return folder / "out"
