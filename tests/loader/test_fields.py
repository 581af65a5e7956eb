"""Fields of batches, against definitions that look at one token at a time."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.build_here import build_here
from support.sentences import refused

from benchmarks.made_up_dataset import make_dataset
from fineshards import BatchLoader, Mixture, TokenDataset
from fineshards.loader.boundaries import cumulative_lengths
from fineshards.loader.fields import NAMES as ALL
from fineshards.loader.fields import BatchRows, Fields
from fineshards.loader.memory import Memory
from fineshards.storage.open import open_storage

LENGTH = 96


@pytest.fixture(scope="module")
def folder(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fields")
    build_here(input=sample, output=folder, shard_tokens=30_000, test_shards=3)
    return folder


@pytest.fixture
def train(folder: Path) -> TokenDataset:
    return TokenDataset(folder, sequence_length=LENGTH)


def expected_of(tokens: np.ndarray, eot: int) -> dict[str, Any]:
    """What each field is by its definition, from rows of T + 1 tokens."""
    rows: dict[str, list[list[int]]] = {name: [] for name in ALL[3:6]}
    ends = [0]
    for row in tokens.tolist():
        position = document = 0
        of_row: dict[str, list[int]] = {name: [] for name in rows}
        for place, (token, following) in enumerate(pairwise(row)):
            if place and token == eot:
                position, document = 0, document + 1
            of_row["position_ids"].append(position)
            of_row["document_ids"].append(document)
            of_row["loss_mask"].append(following != eot)
            position += 1
            if place == len(row) - 2 or following == eot:
                ends.append(ends[-1] + position)
        for name in rows:
            rows[name].append(of_row[name])
    return {
        "inputs": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "labels": tokens[:, :-1],
        **rows,
        "cu_seqlens": ends,
        "max_seqlen": max(np.diff(ends)),
    }


@pytest.mark.parametrize("dtype", ["uint32", "int32", "int64"])
def test_fields_are_what_their_definitions_say(train: TokenDataset, dtype: str) -> None:
    plain = BatchLoader(train, 6, 3)
    loader = BatchLoader(train, 6, 3, dtype=dtype, fields=ALL)
    several = 0
    for _ in range(20):
        batch = next(loader)
        assert tuple(batch) == ALL
        step = loader.step - 1
        for name, value in expected_of(next(plain), train.eot).items():
            assert np.array_equal(batch[name], value), name
        assert [str(batch[name].dtype) for name in ALL[:3]] == [dtype] * 3
        of_documents = ("position_ids", "document_ids", "source_ids", "cu_seqlens")
        assert {str(batch[name].dtype) for name in of_documents} == {"int32"}
        assert batch["sample_ids"].tolist() == [each.sample for each in loader.samples(step)]
        assert not batch["source_ids"].any()
        several += int(batch["document_ids"].max())
    assert several > 10
    plain.close()
    loader.close()


def test_ignored_labels_are_those_that_the_mask_leaves_out(train: TokenDataset) -> None:
    names = {"input_ids": "inputs", "labels": "labels", "next": "targets", "mask": "loss_mask"}
    options = {"dtype": "int64", "fields": names, "ignore_index": -100}
    ignored = 0
    with BatchLoader(train, 6, 3, **options) as loader, BatchLoader(train, 6, 3) as plain:  # type: ignore[arg-type]
        for _ in range(20):
            batch, tokens = next(loader), next(plain)
            assert list(batch) == list(names)
            mask = tokens[:, 1:] != train.eot
            assert np.array_equal(batch["mask"], mask)
            assert np.array_equal(batch["next"], np.where(mask, tokens[:, 1:].astype(int), -100))
            # A model that shifts labels itself compares its output at i - 1 with label i.
            assert np.array_equal(batch["labels"][:, 1:], batch["next"][:, :-1])
            assert np.array_equal(batch["input_ids"], tokens[:, :-1])
            ignored += int((~mask).sum())
    assert ignored > 10


def test_rows_of_a_mixture_name_their_source(folder: Path, train: TokenDataset) -> None:
    test = TokenDataset(folder, "test", sequence_length=LENGTH)
    mixed = Mixture({"train": (train, 0.7), "test": (test, 0.3)}, seed=5)
    loader = BatchLoader(mixed, 9, 1, fields=("inputs", "source_ids", "sample_ids"))
    seen = set()
    for step in range(10):
        batch = next(loader)
        drawn = loader.samples(step)
        assert [mixed.names[source] for source in batch["source_ids"]] == [
            each.source for each in drawn
        ]
        assert batch["sample_ids"].tolist() == [each.sample for each in drawn]
        for row, each in zip(batch["inputs"], drawn, strict=True):
            source = train if each.source == "train" else test
            assert np.array_equal(row, source[each.sample][:-1])
            seen.add(each.source)
    assert seen == {"train", "test"}
    loader.close()


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=6))
def test_lengths_of_a_fixed_shape_repeat_the_total(marks: list[list[bool]]) -> None:
    begins = np.array(marks)
    begins[:, 0] = True
    tokens, none = np.zeros_like(begins, np.uint32), np.zeros(len(begins), np.int64)
    rows = BatchRows(tokens, tokens, begins, None, none.astype(np.int32), none)
    fields = Fields.checked(("cu_seqlens", "position_ids"), np.dtype(np.uint32), None)
    batch, ends = fields.of(rows, Memory(1), 5), cumulative_lengths(begins)
    fixed = batch["cu_seqlens"]
    assert fixed.shape == (len(marks) * 5 + 1,)
    assert fixed[: len(ends)].tolist() == ends.tolist()
    assert set(fixed[len(ends) :].tolist()) <= {begins.size}
    assert np.array_equal(batch["position_ids"] == 0, begins)


def test_a_uint16_dataset_can_be_read_as_it_is(tmp_path: Path) -> None:
    make_dataset(open_storage(str(tmp_path)), 5000, 700, dtype="uint16")
    dataset = TokenDataset(tmp_path, sequence_length=50)
    assert dataset.dtype == np.uint16
    with BatchLoader(dataset, 4, dtype="uint16") as narrow, BatchLoader(dataset, 4) as wide:
        batch = next(narrow)
        assert batch.dtype == np.uint16
        assert np.array_equal(batch, next(wide))


def test_uint16_is_refused_where_tokens_are_larger(train: TokenDataset) -> None:
    assert "dtype is uint16, but a source's tokens are uint32" in refused(
        lambda: BatchLoader(train, 4, dtype="uint16")
    )
