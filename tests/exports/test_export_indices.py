"""Indices of Megatron's GPTDataset, against the rule as a loop over tokens."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from support.growing import build, made_up_rows, write_rows
from support.tokenizer_files import save, train

import fineshards
from fineshards.errors import UsageError

DESCRIPTION = {
    "class": "GPTDataset",
    "dataset_path": "/data/train_0000",
    "num_samples": None,
    "index_split": "train",
    "random_seed": 7,
    "sequence_length": 16,
    "split": None,
    "split_matrix": None,
    "tokenizer": {"class": "any"},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indices")
    source = write_rows(folder / "rows.parquet", made_up_rows(1, 120))
    build(folder / "out", source, "--shard_tokens=300", "--test_fraction=0.2")
    return folder / "out"


def described(folder: Path, **more: object) -> str:
    (folder / "wanted.json").write_text(json.dumps({**DESCRIPTION, **more}))
    return str(folder / "wanted.json")


def test_samples_follow_each_other_in_the_order_of_documents(dataset: Path, tmp_path: Path) -> None:
    export = fineshards.export(
        dataset, tmp_path / "x", "megatron", tokens_per_file=500, indices=described(tmp_path)
    )
    counts = json.loads((tmp_path / "x/sequences.json").read_text())
    assert export.splits["train"]["parts"] == len(counts) > 2
    for number, (path, (sequences, borders)) in enumerate(counts.items()):
        assert path == f"/data/train_{number:04d}"
        text = json.dumps({**DESCRIPTION, "dataset_path": path}, indent=4)
        stem = f"{hashlib.md5(text.encode()).hexdigest()}-GPTDataset-train"
        cache = tmp_path / "x/cache/GPTDataset_indices"
        assert (cache / f"{stem}-description.txt").read_text() == text
        order, samples, shuffled = (
            np.load(cache / f"{stem}-{kind}_index.npy")
            for kind in ("document", "sample", "shuffle")
        )
        index = (tmp_path / f"x/train_{number:04d}.idx").read_bytes()
        lengths = np.frombuffer(index, "<i4", sequences, 34)
        assert borders == sequences + 1
        assert sorted(order) == list(range(sequences))
        # Every token in the order of the documents; a sample begins at each 16th of them.
        tokens = [(place, token) for place, k in enumerate(order) for token in range(lengths[k])]
        whole = (len(tokens) - 1) // 16
        assert samples.tolist() == [[*tokens[16 * sample]] for sample in range(whole + 1)]
        assert sorted(shuffled) == list(range(len(samples) - 1))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"class": "BERTDataset"}, "class must be GPTDataset"),
        ({"dataset_path": "/data/other"}, "dataset_path must be FOLDER/train_0000"),
        ({"dataset_path": "/data/all_0000"}, "the export has no files all_0000"),
        ({"num_samples": "many"}, 'num_samples cannot be "many"'),
        ({"sequence_length": 0}, "sequence_length and num_samples must be 1 or more"),
        ({"index_split": "test", "split_matrix": [[0, 1], None, None]}, "split_matrix must have"),
        ({"another": 1}, "its fields must be class, dataset_path"),
        (
            {"split": "999,1", "split_matrix": [None, [0.999, 1], None], "index_split": "valid"},
            "'999,1' leaves no document of",
        ),
    ],
)
def test_a_wrong_description_is_refused(
    dataset: Path, tmp_path: Path, more: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        fineshards.export(dataset, tmp_path / "x", "megatron", indices=described(tmp_path, **more))


def test_tokens_that_megatron_would_read_as_another_type_are_refused(tmp_path: Path) -> None:
    """With sequences.json it does not read the type in the index."""
    rows = made_up_rows(1, 20)
    tokenizer = save(
        train("gpt2", [row["text"] for row in rows if row["text"]], 300), tmp_path / "t.json"
    )
    source = write_rows(tmp_path / "rows.parquet", rows)
    build(tmp_path / "out", source, f"--tokenizer={tokenizer}", "--test_shards=0")
    given = described(tmp_path)
    with pytest.raises(UsageError, match="as uint16 when it starts fast"):
        fineshards.export(tmp_path / "out", tmp_path / "x", "megatron", indices=given)
    fineshards.export(tmp_path / "out", tmp_path / "x", "megatron", indices=given, dtype="uint16")
