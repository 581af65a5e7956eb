"""Megatron's GPTDataset makes the same indices, byte for byte, and starts from ours."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Exported
from megatron.core.datasets import gpt_dataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.tokenizers import MegatronTokenizer
from support.dataset_contents import Contents

SEED = 1234


def config(dataset: Contents, cache: Path, length: int, **more: object) -> GPTDatasetConfig:
    size = 100_276 if dataset.dtype == "uint32" else 50_256
    return GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=length,
        path_to_cache=str(cache),
        tokenizer=MegatronTokenizer.from_pretrained(
            metadata_path={"library": "null"}, vocab_size=size
        ),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        **more,
    )


def built(options: GPTDatasetConfig, *samples: int | None) -> list[GPTDataset | None]:
    found = BlendedMegatronDatasetBuilder(GPTDataset, list(samples), lambda: True, options).build()
    assert isinstance(found, list)
    return found


def per_split(*prefixes: Path | None) -> list[tuple[list[str], None] | None]:
    return [None if path is None else ([str(path)], None) for path in prefixes]


def described(cache: Path) -> str:
    return ",".join(str(path) for path in sorted(cache.glob("*-description.txt")))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# An epoch; part of one; two, the last of which is shuffled alone; three and some, shuffled at once.
@pytest.mark.parametrize("epochs", [None, 0.4, 1.3, 3.9])
@pytest.mark.parametrize("length", [1, 64, 1024])
def test_megatron_makes_the_same_indices(
    dataset: Contents, exported: Exported, tmp_path: Path, epochs: float | None, length: int
) -> None:
    plain = exported("megatron")
    blends = per_split(plain / "train_0000", plain / "test_0000", plain / "test_0000")
    splits = ("train", "test", "test")
    samples = [
        None if epochs is None else int(epochs * len(dataset.tokens[split]) / length)
        for split in splits
    ]
    built(config(dataset, tmp_path / "own", length, blend_per_split=blends), *samples)
    assert len(contents(tmp_path / "own")) == 3 * 4
    folder = exported("megatron", "--indices", described(tmp_path / "own"))
    assert contents(folder / "cache/GPTDataset_indices") == contents(tmp_path / "own")


def test_the_indices_of_shares_of_a_file_are_megatrons(
    dataset: Contents, exported: Exported, tmp_path: Path
) -> None:
    prefix = str(exported("megatron") / "train_0000")
    options = config(dataset, tmp_path / "own", 64, blend=([prefix], None), split="90,7,3")
    built(options, 2_000, 100, None)
    folder = exported("megatron", "--indices", described(tmp_path / "own"))
    assert contents(folder / "cache/GPTDataset_indices") == contents(tmp_path / "own")


@pytest.mark.parametrize("more", [["--tokens_per_file", "100k"], ["--link"]])
def test_one_description_makes_the_indices_of_all_files(
    dataset: Contents, exported: Exported, tmp_path: Path, more: list[str]
) -> None:
    """Written by hand, in any order, for the place where the files will be."""
    size = 100_276 if dataset.dtype == "uint32" else 50_256
    wanted = {
        "sequence_length": 128,
        "random_seed": SEED,
        "dataset_path": f"{tmp_path}/moved/train_0000",
        "class": "GPTDataset",
        "index_split": "train",
        "num_samples": None,
        "split": None,
        "split_matrix": None,
        "tokenizer": {
            "class": "megatron.core.tokenizers.text.models.default_tokenizer.DefaultTokenizerText",
            "tokenizer_path": None,
            "vocab_size": str(size),
        },
    }
    (tmp_path / "wanted.json").write_text(json.dumps(wanted))
    folder = exported("megatron", "--indices", str(tmp_path / "wanted.json"), *more)
    shutil.copytree(folder, tmp_path / "moved")
    stems = [path.with_suffix("") for path in sorted((tmp_path / "moved").glob("train_*.bin"))]
    assert len(stems) > 3
    for stem in stems:
        built(
            config(dataset, tmp_path / "own", 128, blend_per_split=per_split(stem, None, None)),
            None,
            None,
            None,
        )
    assert contents(folder / "cache/GPTDataset_indices") == contents(tmp_path / "own")


def test_megatron_starts_fast_from_our_indices(
    dataset: Contents, exported: Exported, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a cache of its own, and without reading any `.idx` header."""
    plain = exported("megatron")
    blends = per_split(plain / "train_0000", plain / "test_0000", None)
    options = config(dataset, tmp_path / "own", 64, blend_per_split=blends)
    slow = built(options, 3_000, 50, None)
    folder = exported("megatron", "--indices", described(tmp_path / "own"))
    fast = config(
        dataset,
        folder / "cache/GPTDataset_indices",
        64,
        blend_per_split=blends,
        fast_cache_load=True,
        defer_npy_index_mmap=True,
        sequences_per_dataset=json.loads((folder / "sequences.json").read_text()),
    )
    before = contents(folder / "cache/GPTDataset_indices")
    for one, other in zip(built(fast, 3_000, 50, None)[:2], slow[:2], strict=True):
        assert one is not None
        assert other is not None
        for number in (0, 1, 17, len(other) - 1):
            for name, found in one[number].items():
                assert np.array_equal(found, other[number][name])
    # Nor does a start that checks for them make any.
    with caplog.at_level(logging.INFO, gpt_dataset.__name__):
        built(
            config(dataset, folder / "cache/GPTDataset_indices", 64, blend_per_split=blends),
            3_000,
            50,
            None,
        )
    assert "Load the GPTDataset train indices" in caplog.text
    assert "Build and save" not in caplog.text
    assert contents(folder / "cache/GPTDataset_indices") == before
