"""Arguments of the loader that cannot be used: one sentence each, never a traceback of numpy's."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sentences import refused

from benchmarks.made_up_dataset import make_dataset, stream
from fineshards import BatchLoader, TokenDataset, WholeDocuments
from fineshards.errors import UsageError
from fineshards.loader.arguments import checked_integer, checked_numbers
from fineshards.storage.open import open_storage

HUGE = 10**30
NOT_INTEGERS = [True, False, np.True_, 1.0, float("nan"), "1", None, [1], np.arange(3), 1j]
POSITIVE = ["sequence_length"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made_up")
    make_dataset(open_storage(str(folder)), 1000, 100, test_shards=1)
    return folder


@pytest.fixture
def dataset(folder: Path) -> TokenDataset:
    return TokenDataset(folder, sequence_length=10)


@pytest.mark.parametrize("value", NOT_INTEGERS, ids=repr)
@pytest.mark.parametrize("name", [*POSITIVE, "generation"])
def test_what_is_no_integer_is_refused(folder: Path, name: str, value: object) -> None:
    if value is None and name != "sequence_length":
        return  # the default
    options = {"sequence_length": 10} | {name: value}
    message = refused(lambda: TokenDataset(folder, **options))  # type: ignore[arg-type]
    shown = " ".join(repr(value).split())
    assert message == f"{name} is {shown}; give an integer of at least 1."


@pytest.mark.parametrize("value", NOT_INTEGERS, ids=repr)
@pytest.mark.parametrize("name", ["seed", "batch_size", "rank", "world_size", "prefetch"])
def test_a_loader_takes_no_boolean_for_a_number(
    dataset: TokenDataset, name: str, value: object
) -> None:
    options = {"batch_size": 4} | {name: value}
    message = refused(lambda: BatchLoader(dataset, **options))  # type: ignore[arg-type]
    assert message.startswith(f"{name} is {' '.join(repr(value).split())}; give an integer")


@pytest.mark.parametrize("value", [HUGE, 2**62 + 1, 2**64], ids=str)
@pytest.mark.parametrize("name", [*POSITIVE, "generation"])
def test_absurd_counts_are_refused(folder: Path, name: str, value: int) -> None:
    options = {"sequence_length": 10} | {name: value}
    message = refused(lambda: TokenDataset(folder, **options))
    assert message == f"{name} is {value}; give an integer from 1 to 4611686018427387904."


@pytest.mark.parametrize("name", ["batch_size", "prefetch", "world_size", "epochs"])
def test_absurd_counts_of_a_loader_are_refused(dataset: TokenDataset, name: str) -> None:
    options = {"batch_size": 4} | {name: HUGE}
    message = refused(lambda: BatchLoader(dataset, **options))
    assert f"{name} is {HUGE}; give an integer from " in message


def test_numbers_too_long_to_print_are_refused(folder: Path) -> None:
    """Python prints no integer of more than 4,300 digits."""
    message = refused(lambda: TokenDataset(folder, sequence_length=10**5000))
    assert message.startswith("sequence_length is an integer of 16,610 bits; give an integer from ")
    message = refused(lambda: TokenDataset(folder, sequence_length=list(range(10**4))))
    assert len(message) < 150


@given(st.integers(), st.sampled_from([int, np.int64, np.uint64, np.int8]))
def test_seeds_are_any_integer_of_any_kind(seed: int, kind: Callable[[int], object]) -> None:
    if kind is not int:
        seed %= 128
    assert checked_integer("seed", kind(seed)) == seed


@pytest.mark.parametrize("kind", [int, np.int8, np.uint32, np.int64, np.array])
def test_integers_of_numpy_are_taken(folder: Path, kind: Callable[[int], object]) -> None:
    options = {name: kind(7) for name in POSITIVE} | {"generation": kind(1)}
    dataset = TokenDataset(folder, **options)  # type: ignore[arg-type]
    assert dataset[kind(3)].tolist() == stream(121, 129).tolist()  # type: ignore[index]


@pytest.mark.parametrize("split", [None, 0, ["train"], {"train": 1}, b"train", "dev", ""], ids=repr)
def test_what_names_no_split_is_refused(folder: Path, split: str) -> None:
    message = refused(lambda: TokenDataset(folder, split, sequence_length=10))
    assert message.endswith(f"has no split {split!r}; choose test or train.")


@pytest.mark.parametrize("path", [None, 1, b"folder", ["folder"]], ids=repr)
def test_what_names_no_folder_is_refused(path: str) -> None:
    message = refused(lambda: TokenDataset(path, sequence_length=10))
    assert message == f"the folder is {path!r}; give a path."


@pytest.mark.parametrize("source", [None, 1, "folder", ["folder"]], ids=repr)
def test_a_source_is_a_dataset_or_a_mixture(source: object) -> None:
    with pytest.raises(UsageError, match="give a TokenDataset or a Mixture"):
        BatchLoader(source, 1)


# Sample numbers

WRONG_NUMBERS = [
    (np.array([1.0]), "dtype float64 and shape (1,)"),
    (np.array([True, False]), "dtype bool and shape (2,)"),
    (np.array([[1, 2], [3, 4]]), "dtype int64 and shape (2, 2)"),
    (np.array(3), "dtype int64 and shape ()"),
    (np.empty((0, 3)), "dtype float64 and shape (0, 3)"),
    (["1"], "dtype <U1 and shape (1,)"),
    ([[1], [1, 2]], "dtype object and shape (2,)"),
    ([10**30], "dtype object and shape (1,)"),
    (None, "dtype object and shape ()"),
]


@pytest.mark.parametrize(("numbers", "found"), WRONG_NUMBERS, ids=lambda value: repr(value)[:30])
@pytest.mark.parametrize("method", ["gather", "loss_mask"])
def test_sample_numbers_are_integers_in_one_dimension(
    dataset: TokenDataset, method: str, numbers: object, found: str
) -> None:
    message = refused(lambda: getattr(dataset, method)(numbers))
    assert message == f"the sample numbers have {found}; give integers in one dimension."


@pytest.mark.parametrize("wrong", [-1, 89, 2**40, -(2**62)])
@pytest.mark.parametrize("method", ["gather", "loss_mask"])
def test_sample_numbers_out_of_range_are_named(
    dataset: TokenDataset, method: str, wrong: int
) -> None:
    with pytest.raises(IndexError, match=rf"^there is no sample {wrong}: there are 89, "):
        getattr(dataset, method)(np.array([5, wrong, 7]))


def test_sample_numbers_may_be_a_list_or_of_any_integer_type(dataset: TokenDataset) -> None:
    expected = dataset.gather(np.array([3, 88]))
    for numbers in ([3, 88], (3, 88), np.array([3, 88], np.uint8), np.array([3, 88], np.uint64)):
        assert np.array_equal(dataset.gather(numbers), expected)  # type: ignore[arg-type]
    assert dataset.gather([]).shape == (0, 11)  # type: ignore[arg-type]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(0, 2**62))
def test_numbers_are_checked_one_by_one(numbers: list[int], length: int) -> None:
    wrong = [number for number in numbers if not 0 <= number < length]
    if wrong:
        with pytest.raises(
            IndexError, match=rf"^there is no sample {wrong[0]}: there are {length}"
        ):
            checked_numbers(numbers, length)
    else:
        assert checked_numbers(numbers, length).tolist() == numbers


@pytest.mark.parametrize("index", [True, 1.0, "1", None], ids=repr)
def test_an_index_is_an_integer(dataset: TokenDataset, index: int) -> None:
    for read in (dataset.__getitem__, dataset.documents):
        message = refused(partial(read, index))
        assert message == f"the sample's number is {index!r}; give an integer."


@pytest.mark.parametrize("part", [slice(0, 3), slice(-2, None), slice(None, None, -9), slice(5, 5)])
def test_a_slice_is_several_samples(dataset: TokenDataset, part: slice) -> None:
    for source in (dataset, WholeDocuments(dataset, 4)):
        numbers = range(len(source))[part]
        expected = [source[number] for number in numbers]
        assert source[part].shape == (len(numbers), dataset.sequence_length + 1)
        assert source[part].tolist() == [sample.tolist() for sample in expected]
