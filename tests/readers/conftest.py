"""Datasets of the sample, and exports of them, as a user makes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
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
    """Runs `fineshards export`: `exported("megatron", "--link")` -> the folder."""

    def run(to: str, *flags: str) -> Path:
        folder = tmp_path_factory.mktemp("exports") / to
        assert (
            main(["export", str(dataset.folder), "--to", to, "--output", str(folder), *flags]) == 0
        )
        return folder

    return run


def imported(
    kind: str, files: Path, dataset: Contents, folder: Path, *flags: str
) -> list[list[int]]:
    """The documents of what `fineshards import` makes of files with documents of a dataset."""
    tokenizer = "cl100k_base"
    if dataset.dtype == "uint16":
        tokenizer = str(tokenizer_files.path_of("gpt2"))
    command = ["import", f"--from={kind}", f"--input={files}", f"--output={folder / 'imported'}"]
    command += [f"--tokenizer={tokenizer}", f"--dtype={dataset.dtype}", "--eot_side=begin"]
    assert main([*command, "--test_shards=0", "--shard_tokens=10k", *flags]) == 0
    shards = sorted((folder / "imported/train").glob("*.npy"))
    tokens = np.concatenate([np.load(shard) for shard in shards])
    found = np.split(tokens, np.flatnonzero(tokens == dataset.eot)[1:])
    return [document.tolist() for document in found]
