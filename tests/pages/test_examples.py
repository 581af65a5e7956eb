"""Examples in docstrings run as written, and every public name has one."""

import doctest
import importlib
from pathlib import Path

import pytest
from support.build_here import build_here
from support.checkout import ROOT

import fineshards

PACKAGES = {
    "fineshards": "fineshards",
    "pipeline": "fineshards.pipeline",
    "transforms": "fineshards.transforms",
}
MODULES = sorted(
    ".".join([package, *path.relative_to(ROOT / folder).with_suffix("").parts])
    for folder, package in PACKAGES.items()
    for path in (ROOT / folder).rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.fixture(scope="session")
def dataset_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset made from the sample: 1 test and 6 train shards."""
    folder = tmp_path_factory.mktemp("examples") / "out"
    build_here(
        input=ROOT / "samples/debian_text.parquet",
        output=folder,
        shard_tokens=100_000,
        test_shards=1,
    )
    return str(folder)


@pytest.mark.long
@pytest.mark.parametrize("name", MODULES)
def test_examples_run_as_written(
    name: str, dataset_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    more = tmp_path / "more.jsonl"
    more.write_text('{"text": "one"}\n{"text": "two"}\n{"text": "three"}\n')
    given = {
        "dataset_folder": dataset_folder,
        "folder": str(tmp_path / "new"),
        "more_documents": str(more),
    }
    module = importlib.import_module(name.removesuffix(".__init__"))
    result = doctest.testmod(module, extraglobs=given)
    assert result.failed == 0
    assert result.attempted > 0


def test_every_public_name_has_an_example() -> None:
    names = [name for name in fineshards.__all__ if name != "__version__"]
    assert [name for name in names if ">>> " not in (getattr(fineshards, name).__doc__ or "")] == []
