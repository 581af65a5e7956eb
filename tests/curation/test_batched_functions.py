"""Functions of the user that judge a batch of documents: as if they had judged each by itself."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from support.build_here import build_here
from support.curated import decisions_in, write_recipe
from support.growing import append, made_up_rows, write_rows
from support.oracle import shards_in

import fineshards
from fineshards.curation.batch import Batch
from fineshards.curation.recipe import load_steps, make_step, parameters_of
from fineshards.curation.steps import Score, UserFunction
from fineshards.curation.steps.user_function import _function
from fineshards.errors import FineshardsError, InputError, UsageError

SOURCE = """
import functools, os

SIZES, SEEN = [], []

def alone(document, least=5):
    text = document["text"]
    if document["group"] == 5:
        return False, "group"
    if "beta" in text:
        return text.replace("beta", "BETA")
    return (len(text) % 7 < least, "remainder")

def together(documents, least=5):
    SIZES.append(len(documents))
    SEEN.extend(documents)
    return [alone(document, least) for document in documents]

def short(documents):
    return [True] * (len(documents) - 1)

def mapping(documents):
    return {number: True for number in range(len(documents))}

def odd(documents):
    return [document["row"] < 5 or 1 for document in documents]

def broken(documents):
    return [1 / 0 for document in documents]

def leaves(documents):
    raise SystemExit

def by_the_longest(documents):
    longest = max(len(document["text"]) for document in documents)
    return [2 * len(document["text"]) > longest for document in documents]

def lengths(documents):
    assert len(documents) <= 7
    return [len(document["text"]) for document in documents]

@functools.cache
def model(folder):
    with open(f"{folder}/loaded", "a") as file:
        file.write(f"{os.getpid()}\\n")
    return 7

def with_model(documents, folder):
    return [len(document["text"]) % model(folder) > 2 for document in documents]

class Model:
    def __init__(self, folder):
        self.size = model(folder)

    def judge(self, texts):
        return [len(text) % self.size > 2 for text in texts]

@functools.cache
def shared(folder):
    from apache_beam.utils.multi_process_shared import MultiProcessShared
    return MultiProcessShared(lambda: Model(folder), tag="model", path=folder).acquire()

def with_shared_model(documents, folder):
    return shared(folder).judge([document["text"] for document in documents])
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder, which is not on the import path."""
    (tmp_path / "my_batches.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield "my_batches"
    sys.modules.pop("my_batches", None)
    _function.cache_clear()


def batch_of(count: int) -> Batch:
    texts = [("text ", "a beta ", "longer text ")[n % 3] * (1 + n) for n in range(count)]
    groups = {"group": pa.array(np.arange(count) % 6)}
    return Batch(4, np.arange(count) * 5, pa.array(texts, pa.large_string()), groups)


@pytest.mark.parametrize("size", [1, 3, 7, 8])
def test_a_list_of_at_most_so_many_documents_is_judged_as_each_is(module: str, size: int) -> None:
    columns, parameters, documents = ("group",), {"least": 3}, batch_of(7)
    step = UserFunction(f"{module}:together", columns, parameters, batch=size)
    expected = UserFunction(f"{module}:alone", columns, parameters).apply(documents)
    assert step.apply(documents) == expected
    assert set(expected.reasons or ()) == {"remainder", "group", None}
    assert expected.texts is not None
    functions = import_module(module)
    sizes: list[int] = functions.SIZES
    assert sizes == [size] * (7 // size) + [7 % size] * (7 % size > 0)
    assert functions.SEEN[0] == {"group": 0, "text": "text ", "file": 4, "row": 0}
    assert [each["row"] for each in functions.SEEN] == documents.rows.tolist()
    sizes.clear()
    assert step.apply_again(documents.only(6)).reasons == [(expected.reasons or ())[6]]
    assert sizes == [1]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            "short",
            "short failed with TypeError: it returned a list of 2, expected a list of 3 verd",
        ),
        ("mapping", "failed with TypeError: it returned dict {0: True, 1: True, 2: True}, expec"),
        ("odd", "input, row 5: my_batches:odd failed with TypeError: it returned 1, expected True"),
        ("broken", "row 0 to row 10: my_batches:broken failed with ZeroDivisionError: division"),
        ("leaves", "row 0 to row 10: my_batches:leaves failed with SystemExit"),
    ],
)
def test_a_function_that_fails_is_named_with_its_rows(
    module: str, function: str, said: str
) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        UserFunction(f"{module}:{function}", batch=3).apply(batch_of(7))


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "8"])
def test_other_sizes_are_refused(size: Any) -> None:
    with pytest.raises(UsageError, match=r"a:b: batch is .*, expected a whole number from 1"):
        UserFunction("a:b", batch=size)


def test_the_record_has_the_size_only_where_there_is_one(module: str) -> None:
    assert parameters_of(UserFunction("a:b", ("c",), {"d": 1})) == {"columns": ["c"], "d": 1}
    named = make_step(f"{module}:together", {"batch": 64, "least": 2}, "recipe, step 1")
    assert named.record().parameters == {"columns": [], "batch": 64, "least": 2}
    assert named.step == UserFunction(f"{module}:together", (), {"least": 2}, batch=64)
    assert [each.step for each in load_steps([named.record()])] == [named.step]


VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("alone", "parquet", {}),
    ("together", "parquet", {"batch": 4}),
    ("together", "jsonl", {"batch": 50}),
]
FLAGS: dict[str, Any] = {"shard_tokens": 400, "test_fraction": "0.2", "block_bytes": 1}


@pytest.mark.curation
def test_the_dataset_does_not_depend_on_batches(module: str, tmp_path: Path) -> None:
    """Neither on their size, nor on record batches, nor on the stages of the recipe."""
    rows = made_up_rows(3, 120)
    found = []
    for number, (name, ending, size) in enumerate(VARIANTS):
        parts = [
            write_rows(tmp_path / f"{number}-{part}.{ending}", rows[start : start + 70])
            for part, start in enumerate((0, 70))
        ]
        step = f"{module}:{name}", {"columns": ["group"]} | size
        recipe = write_recipe(tmp_path / f"{number}.toml", [step, ("exact", {})])
        output = tmp_path / f"out-{number}"
        build_here(input=parts[0], output=output, recipe=recipe, keep_keys=True, **FLAGS)
        append(output, parts[1])
        assert fineshards.verify(output, sample=100).problems == []
        found.append((shards_in(output), decisions_in(output, 2)))
    assert found[1] == found[2] == found[0]
    assert sum(map(len, found[0][1])) > 20


@pytest.mark.curation
def test_a_function_that_looks_at_its_batch_is_found(module: str, tmp_path: Path) -> None:
    lines = [json.dumps({"text": "word " * (1 + number % 50)}) for number in range(5000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    recipe = write_recipe(tmp_path / "recipe.toml", [(f"{module}:by_the_longest", {"batch": 32})])
    said = r"row \d+: step 1 my_batches:by_the_longest dropped .* and kept it when it was judged "
    said += r"again\. .*my_batches:by_the_longest depends on the other documents in its batch"
    with pytest.raises(FineshardsError, match=said):
        build_here(input=tmp_path / "a.jsonl", output=tmp_path / "out", recipe=recipe)


@pytest.mark.curation
def test_a_process_or_a_machine_loads_a_model_once(
    module: str, tmp_path: Path, fineshards: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """A machine if Beam's MultiProcessShared has it, as docs/curation.md says."""
    for number in range(6):
        write_rows(tmp_path / f"in/{number}.jsonl", made_up_rows(number, 60))
    found = []
    for name in ("with_model", "with_shared_model"):
        (tmp_path / name).mkdir()
        parameters = {"batch": 8, "folder": str(tmp_path / name)}
        recipe = write_recipe(tmp_path / f"{name}.toml", [(f"{module}:{name}", parameters)])
        given = [f"--input={tmp_path}/in", f"--output={tmp_path}/{name}/out", f"--recipe={recipe}"]
        done = fineshards(
            "build", *given, "--workers=2", env=os.environ | {"PYTHONPATH": str(tmp_path)}
        )
        assert done.returncode == 0, done.stderr
        processes = (tmp_path / name / "loaded").read_text().split()
        assert len(set(processes)) == len(processes)
        found.append((len(processes), shards_in(tmp_path / name / "out")))
    assert found[0] in [(1, found[1][1]), (2, found[1][1])]
    assert found[1][0] == 1


def test_a_score_is_given_in_batches(module: str, tmp_path: Path) -> None:
    parameters = {"name": "size", "type": "number", "batch": 7}
    steps = [("score", parameters | {"by": f"{module}:lengths"})]
    rows = write_rows(tmp_path / "rows.parquet", made_up_rows(3, 60))
    recipe = write_recipe(tmp_path / "recipe.toml", steps)
    build_here(input=rows, output=tmp_path / "out", recipe=str(recipe))
    scores = pa.parquet.read_table(tmp_path / "out/metadata/scores/00000.parquet").to_pylist()
    texts = [row["text"] for row in made_up_rows(3, 60)]
    assert scores == [
        {"row": row, "size": float(len(text))} for row, text in enumerate(texts) if text is not None
    ]
    with pytest.raises(UsageError, match=r"batch .*only a function takes it"):
        Score("size", by="characters", batch=3)
