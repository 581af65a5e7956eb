"""A validation set of one's own: files that are the test split, which a recipe leaves alone."""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.build_here import build_here
from support.curated import (
    Steps,
    counts_in,
    curate,
    decisions_in,
    made_up_files,
    write_files,
    write_recipe,
)
from support.damage import flip_middle
from support.growing import write_rows
from support.oracle import files_in, shards_in, split_shards, streams_of
from support.sentences import refused

import fineshards
from fineshards.cli.cli import main
from fineshards.publishing import facts

pytestmark = pytest.mark.curation

SHARD_TOKENS = 500
FILES = made_up_files(11, (30, 40, 35))
OF_2019 = {"language_column": "dump", "per_language": [{"label": "2019", "min_chars": 90}]}
RECIPES: dict[str, Steps] = {
    "rewrites before keys": [
        ("length", {"min_chars": 30} | OF_2019),
        ("symbol_lines", {}),
        ("exact", {"by": "normalized"}),
        ("minhash", {"n_grams": 3}),
    ],
    "cuts before keys": [
        ("lines", {"min_doc_words": 3}),
        ("exact", {}),
        ("sentences", {"split_sentences": False, "min_doc_words": 3, "min_num_sentences": 1}),
        ("minhash", {"n_grams": 2, "buckets": 40, "hashes_per_bucket": 1, "threshold": 0.5}),
    ],
    "components": [
        ("minhash", {"rule": "components", "buckets": 30, "hashes_per_bucket": 3, "n_grams": 2}),
        ("sample", {"rate": 0.8}),
        ("minhash", {"rule": "components", "verify": "none", "seed": 5}),
    ],
    "in groups": [
        ("exact", {"by": "column:group", "within": "column:dump"}),
        ("minhash", {"within": "file", "n_grams": 3}),
    ],
}


shards_of = partial(split_shards, SHARD_TOKENS)


def options(folder: Path, steps: Steps, **more: Any) -> dict[str, Any]:
    return {
        "input": [folder / "in/1.jsonl", folder / "in/2.jsonl.gz"],
        "test_input": folder / "in/0.parquet",
        "recipe": write_recipe(folder / "recipe.toml", steps),
        "shard_tokens": SHARD_TOKENS,
        **more,
    }


@pytest.mark.parametrize("curate_test", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_drops_from_train_what_is_in_test_and_leaves_test_as_it_is(
    tmp_path: Path, name: str, curate_test: bool
) -> None:
    write_files(tmp_path / "in", FILES)
    more = {"output": tmp_path / "out", "block_bytes": 1, "memory_bytes": 4000}
    manifest = build_here(**options(tmp_path, RECIPES[name], curate_test=curate_test, **more))
    expected = curate(FILES, RECIPES[name], spared=() if curate_test else {0})
    test, *train = expected.texts
    assert decisions_in(tmp_path / "out", 3) == expected.decisions
    assert list(counts_in(tmp_path / "out")) == [expected.counts(file) for file in range(3)]
    assert shards_in(tmp_path / "out") == shards_of(test, (text for of in train for text in of))
    witnesses = {witness for of in expected.decisions[1:] for *_, witness, _, _ in of}
    assert name == "in groups" or 0 in witnesses
    assert bool(expected.decisions[0]) is curate_test
    of_train_alone = "The recipe was applied to the train split alone." in facts.steps(manifest)
    assert of_train_alone is not curate_test
    assert fineshards.verify(tmp_path / "out", sample="100%").problems == []
    flip_middle(tmp_path / "out/test/test_0000.npy")
    fineshards.repair(tmp_path / "out")
    assert fineshards.verify(tmp_path / "out").problems == []


@pytest.mark.parametrize("workers", [1, 3])
def test_the_bytes_do_not_depend_on_workers_and_blocks(tmp_path: Path, workers: int) -> None:
    write_files(tmp_path / "in", FILES)
    given = options(tmp_path, RECIPES["rewrites before keys"], keep_keys=True)
    build_here(**given, output=tmp_path / "one")
    fineshards.build(
        **given, output=tmp_path / "many", workers=workers, block_bytes=900, memory_bytes=2000
    )
    folders = ("test", "train", *(f"metadata/{kind}" for kind in ("documents", "keys")))
    assert files_in(tmp_path / "many", folders) == files_in(tmp_path / "one", folders)
    assert decisions_in(tmp_path / "many", 3) == decisions_in(tmp_path / "one", 3)


def made_up_texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices("abcdefgh", k=12)) for _ in range(count)]


def write_texts(path: Path, texts: Sequence[str]) -> Path:
    return write_rows(path, [{"text": text} for text in texts])


@pytest.mark.parametrize("curate_test", [False, True])
def test_both_splits_may_grow(tmp_path: Path, curate_test: bool) -> None:
    texts = made_up_texts(1, 60)
    test, train = [*texts[:5], texts[0]], [*texts[1:2], *texts[5:30], texts[6]]
    # Of train before, of test before, of both new files, and twice in the new test file.
    new_test = [texts[7], texts[2], *texts[30:34], texts[30]]
    new_train = [texts[8], texts[3], texts[31], *texts[34:50]]
    files = {"test": test, "train": train, "new_test": new_test, "new_train": new_train}
    paths = {name: write_texts(tmp_path / f"{name}.jsonl", of) for name, of in files.items()}
    output = tmp_path / "out"
    build_here(
        input=paths["train"],
        test_input=paths["test"],
        output=output,
        dedup="exact",
        keep_keys=True,
        curate_test=curate_test,
        shard_tokens=SHARD_TOKENS,
    )
    added = {"input": paths["new_train"], "test_input": paths["new_test"]}
    manifest = build_here(**added, output=output, append=True)
    train_before = train[1:-1]
    if curate_test:
        test, new_test = test[:-1], [texts[7], *texts[30:34]]
    expected = {
        "test": [*test, *new_test],
        "train": [*train_before, *(text for text in new_train if text in texts[34:50])],
    }
    streams = streams_of(shards_of(expected["test"], expected["train"]))
    assert streams_of(shards_in(output)) == streams
    # What train had already is never dropped from test, and is counted.
    assert [manifest.leaks.test_documents, manifest.leaks.train_documents] == [1, 1]
    assert fineshards.verify(output, sample="100%").problems == []
    only_test = write_texts(tmp_path / "more.jsonl", texts[50:])
    build_here(test_input=only_test, output=output, append=True)
    streams = streams_of(shards_of([*expected["test"], *texts[50:]], expected["train"]))
    assert streams_of(shards_in(output)) == streams
    message = refused(lambda: build_here(input=paths["new_test"], output=output, append=True))
    assert "is in the dataset already, in test" in message


def test_documents_of_test_have_no_scores(tmp_path: Path) -> None:
    texts = made_up_texts(2, 20)
    output = tmp_path / "out"
    build_here(
        input=write_texts(tmp_path / "train.jsonl", texts[5:]),
        test_input=write_texts(tmp_path / "test.jsonl", texts[:5]),
        recipe=write_recipe(tmp_path / "r.toml", [("score", {"name": "n", "by": "characters"})]),
        output=output,
        shard_tokens=SHARD_TOKENS,
    )
    (counts,) = (fineshards.stats(output, where="n > 0").satisfied,)
    assert (counts.documents, counts.of) == (15, 20)
    scores = pq.read_table(output / "metadata/scores/00000.parquet")
    assert scores.to_pylist() == [{"row": row, "n": None} for row in range(5)]
    assert fineshards.verify(output, sample="100%").problems == []


def test_a_limit_is_of_each_split(tmp_path: Path) -> None:
    texts = made_up_texts(3, 40)
    names = {"test": texts[:10], "train": texts[10:20], "train2": texts[20:]}
    for name, of in names.items():
        write_texts(tmp_path / f"in/{name}.jsonl", of)
    manifest = build_here(
        input=tmp_path / "in/train*",
        test_input=tmp_path / "in/test.jsonl",
        output=tmp_path / "out",
        limit=12,
    )
    assert [manifest.splits[split]["documents"] for split in ("test", "train")] == [10, 12]


def dataset_folder(folder: Path) -> dict[str, list[str]]:
    """A dataset with three splits."""
    texts = made_up_texts(4, 30)
    splits = {"train": texts[:20], "validation": texts[20:26], "test": texts[26:]}
    for split, of in splits.items():
        write_texts(folder / f"data/{split}-00000.jsonl", of)
    return splits


def test_a_split_of_a_dataset_is_the_test_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    splits = dataset_folder(tmp_path / "mine")
    given = ["build", "--dataset=mine", f"--shard_tokens={SHARD_TOKENS}"]
    assert main([*given, "--output=out", "--dataset_test_split=validation"]) == 0
    assert "not read" not in capsys.readouterr().err
    assert shards_in(tmp_path / "out") == shards_of(splits["validation"], splits["train"])
    assert main([*given, "--output=without"]) == 0
    line = "not read of --dataset mine: validation, test. See --dataset_test_split"
    assert line in capsys.readouterr().err.replace("\n", " ")
    test = made_up_texts(5, 4)
    write_texts(tmp_path / "test.jsonl", test)
    assert main([*given, "--output=with_file", "--test_input=test.jsonl"]) == 0
    assert shards_in(tmp_path / "with_file") == shards_of(test, splits["train"])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"dataset_test_split": "dev"},
            "has no files in split 'dev'. Choose one with --dataset_te",
        ),
        ({"dataset_test_split": "test[:9]"}, "--dataset_test_split test[:9]: slices and"),
        ({"dataset_test_split": "train"}, "are both 'train'. Name two splits."),
        ({"dataset_test_split": "test", "test_fraction": 0.1}, "exclude each other"),
        ({"test_input": "mine/data/train-00000.jsonl"}, "would be in test and in train. Name it"),
        ({"curate_test": True}, "--curate_test goes with a recipe, and with --test_input or"),
    ],
)
def test_splits_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset_folder(tmp_path / "mine")
    assert reason in refused(lambda: build_here(dataset="mine", output="out", **given))


def test_a_dataset_without_test_files_takes_none(tmp_path: Path) -> None:
    first, second, third = (
        write_texts(tmp_path / f"{n}.jsonl", made_up_texts(n, 30)) for n in range(3)
    )
    build_here(input=first, output=tmp_path / "out")
    given = {"input": second, "test_input": third, "output": tmp_path / "out"}
    message = refused(lambda: build_here(**given, append=True))
    assert "out was built with --test_fraction 0.01" in message
    message = refused(lambda: build_here(**given))
    assert "split: was --test_fraction 0.01 --split_key text, now --test_input; " in message
