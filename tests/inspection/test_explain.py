"""Explain: the documents of a training step, and the steps of a document."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.build_here import build_here
from support.shuffled import at_places, at_positions

from fineshards import BatchLoader, Mixture, Packing, TokenDataset
from fineshards.cli.cli import main
from fineshards.errors import UsageError, printable
from fineshards.loader.batches import Share
from fineshards.loader.order import EpochOrder, GroupedShuffle
from fineshards.loader.permutation import Permutation, key

LENGTH = 128


@pytest.fixture(scope="module")
def folder(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    build_here(input=sample, output=folder, shard_tokens=30_000, test_shards=3)
    return folder


@pytest.fixture(scope="module")
def train(folder: Path) -> TokenDataset:
    return TokenDataset(folder, sequence_length=LENGTH)


# ---- the arithmetic


@given(st.integers(1, 10_000), st.integers(0, 2**64 - 1))
def test_a_permutation_is_inverted(n: int, seed: int) -> None:
    permutation = Permutation(n, seed)
    everything = np.arange(n)
    assert np.array_equal(permutation.inverse(permutation(everything)), everything)
    with pytest.raises(IndexError):
        permutation.inverse(np.array([n]))


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any),
    st.integers(1, 40),
    st.integers(0, 99),
)
def test_a_shuffle_by_shards_is_inverted(sizes: list[int], group: int, seed: int) -> None:
    bounds = np.append(0, np.cumsum(sizes))
    shuffle = GroupedShuffle(bounds, group, key(seed))
    everything = np.arange(bounds[-1])
    assert np.array_equal(shuffle.inverse(at_places(shuffle, everything)), everything)


# ---- the loader


def loaders(train: TokenDataset, folder: Path) -> list[dict[str, Any]]:
    test = TokenDataset(folder, "test", sequence_length=LENGTH)
    mixed = {"train": (train, 0.7), "test": (test, 0.3)}
    return [
        {"source": train, "epochs": 2},
        {"source": train, "shuffle": False, "epochs": 1, "drop_last": False},
        {"source": train, "shuffle_shards": 3, "epochs": 2},
        {"source": Mixture(mixed, seed=5, exhausted="stop")},
        {"source": Mixture(mixed, seed=5, exhausted="drop")},
        {"source": train, "batch_size": {0: 12, 30: 24, 100: 48}, "epochs": 2},
    ]


@pytest.mark.long
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("world_size", [1, 3])
def test_samples_are_those_of_the_batches(
    train: TokenDataset, folder: Path, number: int, world_size: int
) -> None:
    for rank in range(world_size):
        options = loaders(train, folder)[number]
        options = {"batch_size": 24, "seed": 9, "rank": rank, "world_size": world_size} | options
        with BatchLoader(**options) as it:
            sources = dict(zip(it.batches.names, it.batches.sources, strict=True))
            step = -1
            for step, batch in enumerate(it):
                drawn = it.samples(step)
                assert [(each.step, each.rank) for each in drawn] == [(step, rank)] * len(batch)
                for row, each in zip(batch, drawn, strict=True):
                    assert np.array_equal(row, sources[each.source][each.sample])
                assert [each.row for each in drawn] == [*range(len(batch))]
            assert step > 20
            following = it.samples(step + 1)
            if isinstance(options["source"], Mixture):
                assert following == []
            else:
                batch = next(iter(it))
                assert len(batch) == len(following)
                for row, each in zip(batch, following, strict=True):
                    assert np.array_equal(row, sources[each.source][each.sample])


@pytest.mark.long
@pytest.mark.parametrize("number", range(6))
def test_occurrences_are_all_places_of_a_sample(
    train: TokenDataset, folder: Path, number: int
) -> None:
    options = loaders(train, folder)[number]
    ranks = 3
    parts = [
        BatchLoader(**{"batch_size": 24, "rank": rank, "world_size": ranks} | options)
        for rank in range(ranks)
    ]
    every = [drawn for part in parts for step in range(1000) for drawn in part.samples(step)]
    assert len(every) > 2000
    for source, name in zip(parts[0].batches.sources, parts[0].batches.names, strict=True):
        for sample in [0, 1, len(source) // 2, len(source) - 1]:
            here = [
                each
                for each in every
                if (each.source, each.sample) == (name, sample) and each.epoch < 5
            ]
            found = parts[0].occurrences(sample, name, epochs=5)
            assert found == sorted(here, key=lambda each: each.epoch)


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_sample_has_one_rank_and_row(samples: int, world_size: int) -> None:
    found = [Share(0, world_size).place(at, samples) for at in range(samples)]
    parts = [Share(rank, world_size).part(samples) for rank in range(world_size)]
    assert found == [
        (rank, row) for rank, (first, stop) in enumerate(parts) for row in range(stop - first)
    ]


def test_epochs_follow_each_other(train: TokenDataset) -> None:
    order = EpochOrder(train, 4, "")
    numbers = np.arange(len(train))
    for epoch in (0, 3):
        assert np.array_equal(at_positions(order, order.positions(numbers, epoch)), numbers)
        assert set((order.positions(numbers, epoch) // len(train)).tolist()) == {epoch}


def test_what_is_not_there_is_refused(train: TokenDataset) -> None:
    loader = BatchLoader(train, batch_size=4)
    for wrong in (
        lambda: loader.samples(-1),
        lambda: loader.occurrences(len(train)),
        lambda: loader.occurrences(0, "other"),
        lambda: loader.occurrences(0, epochs=0),
    ):
        with pytest.raises(UsageError):
            wrong()


# ---- the command


def save_state(train: TokenDataset, path: Path, steps: int, **options: Any) -> BatchLoader:
    loader = BatchLoader(train, batch_size=6, seed=2, **options)
    for _ in range(steps):
        next(loader)
    path.write_text(json.dumps(loader.state_dict()))
    loader.close()
    return loader


def explained(capsys: pytest.CaptureFixture[str], *flags: object) -> Any:
    assert main(["explain", *map(str, flags), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("options", [{}, {"shuffle_shards": 2}, {"shuffle": False}])
def test_a_step_is_explained_by_the_text_of_its_sources(
    options: dict[str, Any],
    folder: Path,
    train: TokenDataset,
    sample: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = pq.read_table(sample)["text"].to_pylist()
    ids = pq.read_table(sample)["id"].to_pylist()
    save_state(train, tmp_path / "state.json", 5, **options)
    found = explained(capsys, folder, "--state", tmp_path / "state.json")
    assert (found["step"], found["split"], len(found["samples"])) == (4, "train", 6)
    for each in found["samples"]:
        ends = [part["document"]["end"] for part in each["parts"]]
        begins = [part["document"]["begin"] for part in each["parts"]]
        assert (begins, ends[-1]) == ([0, *ends[:-1]], LENGTH + 1)
        for part in each["parts"]:
            document = part["document"]
            assert document["id"] == ids[document["row"]]
            # A part may begin or end within a character.
            text = part["text"].strip("\N{REPLACEMENT CHARACTER}")
            assert text in texts[document["row"]]
            if document["position"] == 0:
                assert texts[document["row"]].startswith(text)
    for rank in range(3):
        ranks = ["--rank", rank, "--world_size", 3, "--step", 4]
        part = explained(capsys, folder, "--state", tmp_path / "state.json", *ranks)
        whole = found["samples"][2 * rank : 2 * rank + 2]
        assert [each["parts"] for each in part["samples"]] == [each["parts"] for each in whole]


def test_a_step_is_explained_by_a_seed(
    folder: Path, train: TokenDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_state(train, tmp_path / "state.json", 5)
    by_state = explained(capsys, folder, "--state", tmp_path / "state.json", "--step", 3)
    flags = ["--seed", 2, "--batch_size", 6, "--sequence_length", LENGTH]
    assert explained(capsys, folder, "--step", 3, *flags) == by_state
    by_default = explained(capsys, folder, "--step", 3, *flags[2:])
    assert by_default == explained(capsys, folder, "--step", 3, "--seed", 0, *flags[2:]) != by_state
    assert main(["explain", str(folder), "--step", "3", *map(str, flags)]) == 0
    shown = capsys.readouterr().out
    assert "\N{REPLACEMENT CHARACTER}" not in shown
    for sample in by_state["samples"]:
        for part in sample["parts"]:
            assert f"  {printable(part['text'])}\n" in shown


@pytest.mark.long
def test_a_packed_step_is_explained_by_the_text_of_its_sources(
    folder: Path,
    train: TokenDataset,
    sample: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = pq.read_table(sample)["text"].to_pylist()
    packing = Packing(rows=16, shuffle_windows=3)
    loader = save_state(train, tmp_path / "state.json", 5, packing=packing)
    found = explained(capsys, folder, "--state", tmp_path / "state.json")
    assert (found["step"], len(found["samples"])) == (4, 6)
    # Each document of the step leads back to the rows, and to this step.
    for each in found["samples"]:
        borders = [(part["document"]["begin"], part["document"]["end"]) for part in each["parts"]]
        assert [begin for begin, _ in borders] == [0, *[end for _, end in borders[:-1]]]
        assert borders[-1][1] == LENGTH
        for part in each["parts"]:
            document = part["document"]
            assert part["text"].strip("\N{REPLACEMENT CHARACTER}") in texts[document["row"]]
            flags = ["--document", document["number"], "--state", tmp_path / "state.json"]
            (back,) = explained(capsys, folder, *flags)["documents"]
            assert each["drawn"]["sample"] in back["samples"]
            assert each["drawn"] in back["drawn"]
            rows = [
                row
                for row in range(len(train))
                for held in loader.batches.readers[0].documents(row)
                if held.number == document["number"]
            ]
            assert back["samples"] == list(dict.fromkeys(rows))


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 150, 151, 152, 200, 700, 1062])
def test_the_samples_of_a_document_are_all_that_touch_it(
    number: int, folder: Path, train: TokenDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """Documents of both splits, and one that straddles them."""
    test = TokenDataset(folder, "test", sequence_length=LENGTH)
    expected = {}
    for split, dataset in (("test", test), ("train", train)):
        touching = [
            index
            for index in range(len(dataset))
            if any(document.number == number for document in dataset.documents(index))
        ]
        if touching:
            expected[split] = touching
    given = ["--document", number, "--sequence_length", LENGTH]
    found = explained(capsys, folder, *given)["documents"]
    assert {each["split"]: each["samples"] for each in found if each["samples"]} == expected
    assert {each["number"] for each in found} == {number}


def test_the_steps_of_a_document_draw_it(
    folder: Path, train: TokenDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = save_state(train, tmp_path / "state.json", 1)
    id_ = train.documents(300)[0].id
    flags = ["--id", id_, "--state", tmp_path / "state.json", "--epochs", 2]
    (found,) = explained(capsys, folder, *flags)["documents"]
    assert len(found["drawn"]) == 2 * len(found["samples"]) > 0
    for drawn in found["drawn"]:
        (place,) = [each for each in loader.samples(drawn["step"]) if each.row == drawn["row"]]
        assert place.sample == drawn["sample"]
        assert id_ in [document.id for document in train.documents(place.sample)]
    assert main(["explain", str(folder), *map(str, flags)]) == 0
    assert f"  step     {found['drawn'][0]['step']:,}, rank 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("", "give --state, or a --document or --id with --sequence_length."),
        ("--document 5", "give --sequence_length, or a --state."),
        ("--document 5000 --sequence_length 9", "the dataset has 1,063 documents"),
        ("--id nobody --sequence_length 9", "--id nobody: no document has this id."),
        ("--state {tmp}/none.json", "--state {tmp}/none.json cannot be read: No such file"),
        ("--state {tmp}/list.json", "Expected `object`, got `array`. Give what"),
        ("--state {tmp}/empty.json", "missing required field `version`"),
        ("--state {tmp}/other.json", "--state is not of {folder}, but of another dataset"),
        ("--state {tmp}/old.json", "missing required field `batch_size`"),
        ("--state {tmp}/start.json", "the state was saved before step 1, so no step is"),
        ("--step 3 --seed 1", "a step needs --state, or --batch_size and --sequence_length"),
        ("--state {tmp}/start.json --step 0 --rank 3", "rank is 3"),
        ("--step 3 --document 3", "not allowed with"),
        ("--document=-1 --sequence_length 9", "--document -1: the dataset has"),
        ("--document 5 --sequence_length 0", "sequence_length is 0"),
        ("--document 5 --sequence_length 9 --epochs 0", "epochs is 0"),
        (
            "--state {tmp}/start.json --step 1e20",
            "step is 100000000000000000000; give an integer from 0 to",
        ),
        ("--state {tmp}/start.json --step 0 --batch_size 0", "batch_size is 0"),
        ("--state {tmp}/start.json --step 0 --world_size 0", "world_size is 0"),
        ("--state {tmp}/changed.json", "resumed at step 4 with other batch sizes"),
    ],
)
def test_mistakes_are_one_sentence(
    flags: str,
    words: str,
    folder: Path,
    train: TokenDataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_state(train, tmp_path / "start.json", 0)
    state = json.loads((tmp_path / "start.json").read_text())
    old = {name: value for name, value in state.items() if name != "batch_size"}
    contents = {"list": [], "empty": {}, "other": state | {"fingerprint": "other"}, "old": old}
    contents["changed"] = state | {"consumed": 10, "step": 4, "since": [4, 10, 0]}
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    given = flags.format(tmp=tmp_path).split()
    assert main(["explain", str(folder), *given]) in (1, 2)
    errors = capsys.readouterr().err
    assert words.format(tmp=tmp_path, folder=folder) in errors
    assert errors.count("\n") == 1
