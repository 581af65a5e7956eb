"""MaxText's sources for Grain read our files for Megatron, as copies and as links, and for OLMo."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from conftest import Exported
from maxtext.input_pipeline import olmo_data
from maxtext.input_pipeline._mmap_datasource import create_mmap_source
from maxtext.input_pipeline.olmo_data_grain import OlmoNpyDataSource
from support.dataset_contents import Contents

LENGTH = 128


@pytest.mark.parametrize("flags", [["--tokens_per_file", "100k"], ["--link"]], ids=" ".join)
def test_maxtext_reads_the_files_for_megatron(
    dataset: Contents, exported: Exported, flags: list[str]
) -> None:
    folder = exported("megatron", "--split", "train", *flags)
    tokens = np.concatenate(dataset.ended("train"))
    if flags == ["--link"]:
        # A document that ends with its shard has no EOT: that begins the next shard.
        shards = [np.load(path) for path in sorted((dataset.folder / "train").glob("*.npy"))]
        tokens = np.concatenate([shard[int(shard[0] == dataset.eot) :] for shard in shards])
    assert len([*folder.glob("*.idx")]) > 3
    source = create_mmap_source(str(folder), False, LENGTH, dataset.eot)
    rows = [source[number]["text"] for number in range(len(source))]
    assert np.array_equal(np.concatenate(rows), tokens[: len(tokens) // LENGTH * LENGTH])


def test_maxtext_reads_the_files_for_olmo(dataset: Contents, exported: Exported) -> None:
    (path,) = (exported("olmo") / "train").glob("*.npy")
    size = partial(olmo_data.read_raw_metadata_from_path, dtype=dataset.dtype)
    index = olmo_data.build_index(
        [(str(path), "train")], LENGTH, tokenizer="any", header_reader=size
    )
    source = OlmoNpyDataSource(index)
    rows = [source[number]["tokens"] for number in range(len(source))]
    tokens = np.concatenate(dataset.ended("train"))
    assert np.array_equal(np.concatenate(rows), tokens[: len(tokens) // LENGTH * LENGTH])
