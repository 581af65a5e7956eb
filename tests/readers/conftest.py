"""Datasets of the sample, and exports of them, as a user makes them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support import tokenizer_files
from support.dataset_contents import Contents

from fineshards.cli.cli import main

pytest_plugins = ["support.slices"]

SAMPLE = Path(__file__).parent.parent.parent / "samples/debian_text.parquet"
Exported = Callable[..., Path]


@pytest.fixture(scope="session", params=["uint32", "uint16"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """110 documents in test, about 950 in train, several shards."""
    folder = tmp_path_factory.mktemp(request.param) / "dataset"
    tokenizer = "cl100k_base"
    if request.param == "uint16":
        tokenizer = str(tokenizer_files.path_of("gpt2"))
    command = ["build", "--input", str(SAMPLE), "--output", str(folder)]
    command += ["--shard_tokens", "150k", "--test_fraction", "0.1", "--tokenizer", tokenizer]
    assert main([*command, "--dtype", request.param]) == 0
    return Contents.read(folder)


@pytest.fixture(scope="session")
def exported(dataset: Contents, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Runs `fineshards export`: `exported("megatron", "--eot", "begin")` -> the folder."""

    def run(to: str, *flags: str) -> Path:
        folder = tmp_path_factory.mktemp("exports") / to
        assert (
            main(["export", str(dataset.folder), "--to", to, "--output", str(folder), *flags]) == 0
        )
        return folder

    return run
