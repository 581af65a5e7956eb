"""Readers of a dataset that grows: a generation is the same forever, whatever is appended."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.generations import FLAGS, LENGTH, ROWS, make_generations, opened
from support.growing import append, build, write_parts
from support.oracle import shards_in

import fineshards
from fineshards import BatchLoader, Mixture, Packing, TokenDataset, WholeDocuments
from fineshards.cli.cli import main
from fineshards.errors import OutputError, UsageError

pytestmark = pytest.mark.growing

SPLITS = ("test", "train")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_parts(tmp_path_factory.mktemp("parts"), ROWS, 30)


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory, parts: list[Path]) -> list[Path]:
    """Read-only."""
    return make_generations(tmp_path_factory.mktemp("generations"), parts)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory, parts: list[Path]) -> Path:
    """One build of the three files. Read-only."""
    folder = tmp_path_factory.mktemp("once")
    build(folder / "out", *parts, *FLAGS)
    return folder / "out"


def test_a_generation_has_the_same_samples_and_documents_forever(generations: list[Path]) -> None:
    for number, copy in enumerate(generations, 1):
        for split in SPLITS:
            before, after = opened(copy, split), opened(generations[-1], split, number)
            assert (len(after), after.generation) == (len(before), number)
            assert after.fingerprint == before.fingerprint
            indices = np.arange(len(before))
            assert np.array_equal(after.gather(indices), before.gather(indices))
            for index in (*range(0, len(before), 5), len(before) - 1):
                assert after.documents(index) == before.documents(index)


def test_a_dataset_tells_that_there_is_more(generations: list[Path]) -> None:
    last = generations[-1]
    assert [opened(last).generation, opened(last).latest()] == [3, 3]
    assert [opened(last, generation=1).generation, opened(last, generation=1).latest()] == [1, 3]
    for number, copy in enumerate(generations, 1):
        assert opened(last).generation_of(opened(copy).fingerprint) == number
        assert opened(last).generation_of(opened(copy, "test").fingerprint) is None
        assert opened(copy).latest() == number


def test_a_generation_that_does_not_exist(
    generations: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, there in ((generations[0], "one"), (generations[2], "1 to 3")):
        sentence = f"{folder} has no generation 4: it has {there}."
        with pytest.raises(OutputError) as caught:
            opened(folder, generation=4)
        assert str(caught.value) == sentence
        with pytest.raises(OutputError) as caught:
            fineshards.verify(folder, generation=4)
        assert str(caught.value) == sentence
        for command in ("verify", "inspect"):
            assert main([command, str(folder), "--generation=4"]) == 1
            assert capsys.readouterr().err == f"fineshards: {sentence}\n"
    with pytest.raises(UsageError, match="generation"):
        opened(generations[0], generation=0)


def training(dataset: TokenDataset) -> BatchLoader:
    return BatchLoader(dataset, batch_size=4, seed=7, shuffle_shards=2)


def test_a_state_is_of_its_generation(generations: list[Path]) -> None:
    first, last = generations[0], generations[-1]
    with training(opened(first)) as loader:
        for _ in range(5):
            next(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        expected = [next(loader).copy() for _ in range(5)]
    with training(opened(last)) as loader:
        with pytest.raises(UsageError) as caught:
            loader.load_state_dict(state)
        assert str(caught.value) == (
            "the state belongs to generation 1 of the dataset, and this is another one. Open the "
            "dataset with generation=1 to go on."
        )
    with training(opened(last, generation=1)) as loader:
        loader.load_state_dict(state)
        assert all(np.array_equal(next(loader), batch) for batch in expected)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("mapped", [True, False])
def test_samples_are_those_of_one_build(
    generations: list[Path], once: Path, split: str, mapped: bool
) -> None:
    grown, built = generations[2], once
    assert len(shards_in(grown)) > len(shards_in(built))
    for length in (1, LENGTH, 700, 1999):  # up to samples with several borders of shards
        kinds: dict[str, Any] = {"sequence_length": length, "mapped": mapped}
        one, other = (TokenDataset(each, split, **kinds) for each in (grown, built))
        numbers = np.arange(len(other))[:: max(len(other) // 300, 1)]
        assert (len(one), one.tokens) == (len(other), other.tokens)
        assert np.array_equal(one.gather(numbers), other.gather(numbers))
        for number in numbers[::9].tolist():
            assert one.documents(number) == other.documents(number)
    assert np.array_equal(*(each.read_tokens(0, each.tokens) for each in (one, other)))


LOADERS: dict[str, Callable[[Path], BatchLoader]] = {
    "shuffled": lambda folder: BatchLoader(opened(folder), 4, 7, epochs=2),
    "in order": lambda folder: BatchLoader(opened(folder), 4, shuffle=False, epochs=1),
    "packed": lambda folder: BatchLoader(opened(folder), 4, 7, epochs=1, packing=Packing(rows=8)),
    "whole documents": lambda folder: BatchLoader(WholeDocuments(opened(folder)), 4, 7, epochs=1),
    "mixture": lambda folder: BatchLoader(
        Mixture({split: (opened(folder, split), 1) for split in SPLITS}, exhausted="drop"), 4, 7
    ),
    "added": lambda folder: BatchLoader(
        Mixture(
            {
                "old": (opened(folder, generation=1), 1),
                "new": (TokenDataset(folder, sequence_length=LENGTH, after_generation=1), 2),
            },
            exhausted="drop",
        ),
        *(4, 7),
    ),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_batches_are_those_of_one_build(
    generations: list[Path], parts: list[Path], once: Path, tmp_path: Path, kind: str
) -> None:
    if kind == "added":  # what was added at once, and in two generations
        once = Path(shutil.copytree(generations[0], tmp_path / "out"))
        append(once, *parts[1:])
    with LOADERS[kind](generations[2]) as grown, LOADERS[kind](once) as built:
        batches = 0
        for one, other in zip(grown, built, strict=True):
            np.testing.assert_equal(one, other)
            batches += 1
        assert batches > 10


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("earlier", "generation"), [(1, 2), (1, 3), (2, 3), (2, None)])
def test_what_was_added_is_read_by_itself(
    generations: list[Path], split: str, earlier: int, generation: int | None
) -> None:
    folder = generations[2]
    first = len(opened(folder, split, earlier))
    kinds: dict[str, Any] = {"sequence_length": LENGTH, "generation": generation}
    whole = TokenDataset(folder, split, **kinds)
    added = TokenDataset(folder, split, **kinds, after_generation=earlier)
    numbers = np.arange(len(added))
    assert len(added) == len(whole) - first
    assert np.array_equal(added.gather(numbers), whole.gather(first + numbers))
    rows = np.zeros((len(added), LENGTH + 1), np.int64)
    added.gather_into(rows, numbers[::-1].copy(), numbers)
    assert np.array_equal(rows[::-1], whole.gather(first + numbers))
    assert added.tokens == whole.tokens - first * LENGTH
    assert np.array_equal(
        added.read_tokens(0, added.tokens), whole.read_tokens(first * LENGTH, whole.tokens)
    )
    for number in range(0, len(added), 5):
        assert np.array_equal(added[number], whole[first + number])
        assert added.documents(number) == whole.documents(first + number)
    with pytest.raises(IndexError):
        added[len(added)]
    # The shard of each sample, from the first that has one.
    lengths = [len(np.load(path)) for path in sorted((folder / split).iterdir())]
    starts = (first + numbers) * LENGTH
    shards = np.searchsorted(np.cumsum(lengths), starts, side="right")
    bounds = added.shard_bounds
    assert bounds[0] == 0
    assert bounds[-1] == len(added)
    found = np.searchsorted(bounds, numbers, side="right") - 1
    assert np.array_equal(found, shards - shards[0])
    assert added.fingerprint != whole.fingerprint
    assert added.generation_of(added.fingerprint) == whole.generation
    with BatchLoader(added, 4, seed=1, shuffle_shards=2, epochs=1) as loader:
        read = np.concatenate(list(loader))
    assert len(read) // 4 == len(added) // 4
    assert {row.tobytes() for row in read} <= {row.tobytes() for row in added.gather(numbers)}


@pytest.mark.parametrize("packing", [None, Packing(rows=4)])
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("split", SPLITS)
def test_a_state_of_what_was_added_is_explained(
    generations: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    split: str,
    number: int,
    packing: Packing | None,
) -> None:
    folder = generations[2]
    added = TokenDataset(
        folder, split, sequence_length=LENGTH, generation=number, after_generation=number - 1
    )
    with BatchLoader(added, 4, seed=1, packing=packing) as loader:
        for _ in range(2):
            next(loader)
        expected = [documents for _, documents in loader.explain(1)]
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    flags = [str(folder), "--state", str(tmp_path / "state.json"), "--json"]
    assert main(["explain", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["split"]) == (1, split)
    samples = found["samples"]
    assert [[part["document"]["number"] for part in each["parts"]] for each in samples] == [
        [document.number for document in documents] for documents in expected
    ]
    # The documents lead back to the step, and one of the earlier generation leads nowhere.
    for each in samples:
        for part in each["parts"]:
            document = str(part["document"]["number"])
            assert main(["explain", *flags, "--document", document]) == 0
            (back,) = json.loads(capsys.readouterr().out)["documents"]
            assert each["drawn"] in back["drawn"]
    first = min(document.number for document in added.documents(0))
    earlier = opened(folder, split).documents(0)[0].number
    assert earlier < first
    assert main(["explain", *flags, "--document", str(earlier)]) == 0
    assert [each["samples"] for each in json.loads(capsys.readouterr().out)["documents"]] == [[]]


def test_a_run_goes_on_with_what_was_added(generations: list[Path]) -> None:
    old, whole = opened(generations[2], generation=1), opened(generations[2])
    with BatchLoader(Mixture({"web": (old, 1)}, exhausted="drop"), 4, seed=5) as loader:
        read = [next(loader) for _ in range(3)]
        state = loader.state_dict()
    added = TokenDataset(generations[2], sequence_length=LENGTH, after_generation=1)
    joined = Mixture(
        {"web": (old, 1), "new": (added, 0)},
        exhausted="drop",
        schedule={12: {"web": len(old) - 12, "new": len(added)}},
    )
    with BatchLoader(joined, 4, seed=5, drop_last=False) as loader:
        loader.load_state_dict(state)
        read += list(loader)
    # Every sample of the latest generation once.
    rows = np.concatenate(read)
    assert len(rows) == len(whole)
    expected = whole.gather(np.arange(len(whole)))
    assert sorted(map(bytes, rows)) == sorted(map(bytes, expected))


def test_what_was_added_after_a_generation_that_is_not_earlier(generations: list[Path]) -> None:
    for after, words in (
        (2, "after_generation is 2, but generation 2 is read"),
        (9, "after_generation is 9, but generation 2 is read"),
        (0, "after_generation is 0; give an integer of at least 1"),
        (True, "after_generation is True"),
    ):
        with pytest.raises(UsageError, match=words):
            TokenDataset(
                generations[2], sequence_length=LENGTH, generation=2, after_generation=after
            )
    # Too little for a sample: all of the earlier generation, but for a token, is one.
    length = opened(generations[2], generation=2).tokens - 1
    with pytest.raises(UsageError, match=r"after generation 2 the train split has .* Wait until"):
        TokenDataset(generations[2], sequence_length=length, after_generation=2)


def test_a_training_goes_on_while_the_dataset_grows(
    generations: list[Path], parts: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(generations[0], folder)
    with training(opened(generations[0])) as loader:
        expected = [next(loader).copy() for _ in range(30)]
    over = threading.Event()
    wrong: list[object] = []
    epochs: list[int] = []

    def train() -> None:
        while not over.is_set() or not epochs:
            # Opened again each time, so that it meets shards in every state.
            with training(opened(folder, generation=1)) as loader:
                for number, batch in enumerate(expected):
                    if not np.array_equal(next(loader), batch):
                        wrong.append(number)
            epochs.append(opened(folder).generation)

    def caught() -> None:
        try:
            train()
        except BaseException as error:  # shown by the assertion below
            wrong.append(error)

    kept = training(opened(folder))
    begun = [next(kept).copy() for _ in range(3)]
    thread = threading.Thread(target=caught)
    thread.start()
    try:
        append(folder, parts[1])
        append(folder, parts[2])
    finally:
        over.set()
        thread.join()
    assert wrong == []
    assert epochs == sorted(epochs)
    # One that was opened before the appends goes on as well.
    with kept:
        begun += [next(kept).copy() for _ in range(27)]
    assert all(np.array_equal(*pair) for pair in zip(begun, expected, strict=True))
    assert opened(folder, generation=1).latest() == 3


def test_a_step_of_an_older_generation_is_explained(
    generations: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with training(opened(generations[0])) as loader:
        for _ in range(3):
            next(loader)
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))

    def explained(folder: Path, *flags: str) -> Any:
        capsys.readouterr()
        state = f"--state={tmp_path / 'state.json'}"
        assert main(["explain", str(folder), state, "--json", *flags]) == 0
        return json.loads(capsys.readouterr().out)

    for flags in ([], ["--step=9"], ["--document=20"]):
        assert explained(generations[2], *flags) == explained(generations[0], *flags)
