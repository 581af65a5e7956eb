"""Builds whose recipe scores documents: the scores of one document at a time."""

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.curated import (
    Expected,
    Row,
    Steps,
    curate,
    decisions_in,
    made_up_files,
    write_files,
    write_recipe,
)
from support.damage import edit_metadata
from support.oracle import files_in, shards_in
from support.tiny_model import probabilities, write_model

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import FineshardsError, OutputError, UsageError

pytestmark = pytest.mark.curation

SHARD_TOKENS = 500
FUNCTIONS = '''
def first_word(document):
    """Of a text; None for one that begins with a menu."""
    word = document["text"].split(" ")[0].strip()[:9]
    return None if word == "Home" else f"{document['dump']} {word}"
'''


def steps_with(model: Path) -> Steps:
    """Scores of every kind, in three stages, and conditions on them in the same and later ones."""
    return [
        ("score", {"name": "length", "by": "characters"}),
        ("where", {"sql": "length > 5"}),
        ("symbol_lines", {}),
        ("lines", {"min_doc_words": 3}),
        ("score", {"name": "kind", "by": "fasttext", "model": str(model)}),
        ("score", {"name": "odd", "by": "fasttext_score", "model": str(model), "label": "odd"}),
        (
            "score",
            {
                "name": "word",
                "by": "functions_of_a_scored_build:first_word",
                "type": "text",
                "columns": ["dump"],
            },
        ),
        ("where", {"sql": "word IS NULL OR NOT ends_with(word, '12')"}),
        ("exact", {"within": "column:dump"}),
        ("where", {"sql": "Kind <> 'plain' AND LENGTH < 850 AND odd > 0.2 AND \"group\" < 38"}),
        ("score", {"name": "words", "by": "words"}),
        ("where", {"sql": "words > 8"}),
    ]


def made_up(seed: int) -> list[list[Row]]:
    files = made_up_files(seed, (60, 50, 45, 0))
    files[1].insert(5, None)
    return files


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with sources, a model, functions, a recipe and their dataset. Read-only."""
    folder = tmp_path_factory.mktemp("scored")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "functions_of_a_scored_build.py").write_text(FUNCTIONS)
        write_files(folder / "in", made_up(1))
        write_recipe(folder / "r.toml", steps_with(write_model(folder / "m.bin")))
        assert build(folder, folder / "out") == 0
        yield folder


def build(folder: Path, output: Path, *flags: str) -> int:
    given = [f"--input={folder}/in/*", f"--recipe={folder}/r.toml", "--max_bad_rows=2"]
    given += [f"--shard_tokens={SHARD_TOKENS}", "--test_fraction=0.2"]
    return main(["build", f"--output={output}", *given, *flags])


@pytest.fixture(scope="module")
def expected(built: Path) -> Expected:
    return curate(made_up(1), steps_with(built / "m.bin"))


def scores_in(output: Path, file: int) -> list[dict[str, Any]]:
    path = output / f"metadata/scores/{file:05d}.parquet"
    return pq.read_table(path).to_pylist() if path.exists() else []


def check(output: Path, expected: Expected) -> None:
    for file in range(len(expected.files)):
        assert scores_in(output, file) == expected.score_rows(file)
    assert decisions_in(output, len(expected.files)) == expected.decisions
    assert shards_in(output) == expected.shards(SHARD_TOKENS, "0.2")


def test_scores_are_those_of_one_document_at_a_time(built: Path, expected: Expected) -> None:
    check(built / "out", expected)
    counts = Counter(step for of_file in expected.decisions for _, step, *_ in of_file)
    assert min(counts[step] for step in (1, 3, 7, 8, 9, 11)) > 0
    schema = pq.read_schema(built / "out/metadata/scores/00000.parquet")
    assert schema.names == ["row", "length", "kind", "odd", "word", "words"]
    assert schema.types == [pa.int64(), *(pa.float64(), pa.string()) * 2, pa.float64()]


def test_scores_are_what_their_names_say(built: Path, expected: Expected) -> None:
    """By plain Python, from the texts of the sources and those that are tokenized."""
    kinds, seen = set(), 0
    for file, rows in enumerate(expected.files):
        found = {row["row"]: row for row in scores_in(built / "out", file)}
        texts = {n: row["text"] for n, row in enumerate(rows) if row and row["text"] is not None}
        assert {n: row["length"] for n, row in found.items()} == {
            n: len(text) for n, text in texts.items()
        }
        for n, text in enumerate(expected.texts[file]):
            if text is None:
                continue
            seen += 1
            labels, row = probabilities(text), found[n]
            assert labels[row["kind"]] == max(labels.values())
            # fastText adds a hundred-thousandth.
            assert math.isclose(row["odd"], labels["odd"], abs_tol=2e-5)
            word = text.split(" ")[0].strip()[:9]
            source = rows[n]
            assert source is not None
            assert row["word"] == (None if word == "Home" else f"{source['dump']} {word}")
            assert row["words"] == len(text.split())
            kinds.add(row["kind"])
    assert seen > 20
    assert kinds == {"good", "odd"}


def dataset_in(folder: Path) -> dict[str, bytes]:
    """All files of a dataset but the records, which say how the work was cut."""
    records = (
        "metadata/manifest.json",
        "metadata/job.json",
        "metadata/blocks.parquet",
        "metadata/generations/",
        "checkpoints/",
    )
    files = files_in(folder)
    return {name: files[name] for name in files if not name.startswith(records)}


@pytest.mark.parametrize(
    "flags",
    [
        ["--block_bytes=1", "--memory_bytes=300", "--workers=1"],
        ["--block_bytes=3000", "--direct_runner_bundle_repeat=2"],
        ["--block_bytes=2000", "--workers=8"],
    ],
    ids=["many blocks", "replayed", "eight workers"],
)
def test_the_work_may_be_cut_and_replayed(built: Path, tmp_path: Path, flags: list[str]) -> None:
    assert build(built, tmp_path / "out", *flags) == 0
    assert dataset_in(tmp_path / "out") == dataset_in(built / "out")


def test_scores_of_shuffled_documents_are_the_same(built: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert build(built, output, "--shuffle_seed=3", "--block_bytes=2000") == 0
    assert [scores_in(output, n) for n in range(4)] == [
        scores_in(built / "out", n) for n in range(4)
    ]
    assert fineshards.verify(output, sample="100%").problems == []


def test_a_recipe_without_scores_leaves_none_behind(built: Path, tmp_path: Path) -> None:
    output = Path(shutil.copytree(built / "out", tmp_path / "out"))
    assert (
        main(["build", f"--output={output}", f"--input={built}/in/0.parquet", "--overwrite"]) == 0
    )
    assert not list(output.glob("metadata/scores/*"))


def test_new_documents_get_scores_too(built: Path, tmp_path: Path) -> None:
    one, rest = (
        f"--input={built}/in/0.parquet",
        [f"{built}/in/{n}" for n in ("1.jsonl", "2.jsonl.gz")],
    )
    flags = [f"--recipe={built}/r.toml", "--shard_tokens=500", "--keep_keys", "--max_bad_rows=2"]
    at_once = [one, *(f"--input={each}" for each in rest)]
    assert main(["build", f"--output={tmp_path}/at-once", *at_once, *flags]) == 0
    assert main(["build", f"--output={tmp_path}/grown", one, *flags]) == 0
    for each in rest:
        assert main(["append", f"{tmp_path}/grown", f"--input={each}", "--max_bad_rows=2"]) == 0
    for file in range(3):
        name = f"metadata/scores/{file:05d}.parquet"
        assert (tmp_path / "grown" / name).read_bytes() == (
            tmp_path / "at-once" / name
        ).read_bytes()
    for generation in (1, 3):
        assert fineshards.verify(tmp_path / "grown", generation=generation).problems == []
    found = fineshards.stats(tmp_path / "grown", where="length > 300")
    assert found.satisfied == fineshards.stats(tmp_path / "at-once", where="length > 300").satisfied
    assert found.satisfied is not None
    earlier = fineshards.stats(tmp_path / "grown", generation=1, where="length > 300").satisfied
    assert earlier is not None
    assert earlier.of < found.satisfied.of


# What verify finds.


def test_another_number_of_scores_is_found(built: Path, tmp_path: Path) -> None:
    output = Path(shutil.copytree(built / "out", tmp_path / "out"))
    edit_metadata(output, "metadata/scores/00000.parquet", lambda rows: rows.pop())
    (problem,) = fineshards.verify(output).problems
    assert ": the number of documents with scores is" in problem


def test_other_scores_than_those_of_the_sources_are_found_with_a_sample(
    built: Path, tmp_path: Path
) -> None:
    output = Path(shutil.copytree(built / "out", tmp_path / "out"))
    row = scores_in(output, 0)[-1]["row"]

    def change(rows: list[dict[str, Any]]) -> None:
        rows[-1]["length"] += 1

    edit_metadata(output, "metadata/scores/00000.parquet", change)
    assert fineshards.verify(output).problems == []
    (problem,) = fineshards.verify(output, sample="100%").problems
    assert f"0.parquet, row {row} has the length " in problem


# Stats.


def kept(expected: Expected) -> list[dict[str, Any]]:
    """The scores of the documents of the dataset."""
    return [
        row
        for file, texts in enumerate(expected.texts)
        for row in expected.score_rows(file)
        if texts[row["row"]] is not None
    ]


@pytest.mark.parametrize(
    ("sql", "holds"),
    [
        ("length > 300", lambda row: row["length"] > 300),
        ("KIND = 'odd' AND odd >= 0.5", lambda row: row["kind"] == "odd" and row["odd"] >= 0.5),
        ("word IS NULL", lambda row: row["word"] is None),
        ("word LIKE '2019%'", lambda row: (row["word"] or "").startswith("2019")),
    ],
)
def test_stats_count_what_a_condition_would_keep(
    built: Path, expected: Expected, capsys, sql: str, holds: Callable[[dict[str, Any]], bool]
) -> None:
    rows = kept(expected)
    number = sum(map(holds, rows))
    assert 0 < number < len(rows)
    found = fineshards.stats(built / "out", where=sql).satisfied
    assert found is not None
    assert (found.documents, found.of) == (number, len(rows))
    assert main(["stats", str(built / "out"), "--where", sql]) == 0
    assert f"{number} of {len(rows)} documents of the dataset (" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("text = 'a' OR length > 3", "asks for text. "),
        ('"group" > 3', "asks for group. "),
        ("length > random()", "which does not depend on the row alone"),
        ("kind > 3", "which DuckDB cannot evaluate"),
    ],
)
def test_a_condition_on_anything_but_scores_is_refused(
    built: Path, sql: str, sentence: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        fineshards.stats(built / "out", where=sql)


# Mistakes.

SCORE = {"name": "edu", "by": "characters"}


def asked(name: str) -> tuple[str, dict[str, Any]]:
    return "where", {"sql": f"{name} > 2"}


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ([("score", SCORE | {"name": "Edu"})], "name is 'Edu', expected lower case"),
        ([("score", SCORE | {"name": "text"})], "name is 'text', expected lower case"),
        ([("score", SCORE | {"by": "beauty"})], "by is 'beauty', expected one of characters,"),
        ([("score", SCORE | {"type": "number"})], "type is 'number', expected none"),
        ([("score", SCORE | {"model": "m.bin"})], "model is 'm.bin', expected none"),
        ([("score", SCORE | {"label": "en"})], "label is 'en', expected none"),
        ([("score", SCORE | {"by": "fasttext"})], "model is None, expected the path of a model"),
        ([("score", SCORE | {"by": "math:sqrt"})], "type is None, expected number or text"),
        ([("score", SCORE), ("score", SCORE)], "name is 'edu', which an earlier step gives"),
        ([asked("EDU"), ("score", SCORE)], "which an earlier step gives, or reads from the input"),
        (
            [("score", SCORE), ("exact", {"by": "column:edu"})],
            "(exact) reads edu, which is a score. Only where, and the",
        ),
        (
            [("score", SCORE), ("builtins:bool", {"columns": ["edu"]})],
            "(builtins:bool) reads edu",
        ),
        (
            [("score", SCORE | {"by": "language_score", "label": "xx"})],
            "has no label 'xx'; its labels are",
        ),
        ([("score", SCORE | {"name": "dump"})], "has a column 'dump', and the recipe gives"),
        (
            [("score", SCORE | {"by": "builtins:len", "type": "text"})],
            "returned 3, expected a text",
        ),
        (
            [("score", SCORE | {"by": "functions_that_fail:nan", "type": "number"})],
            "returned nan, expected a finite number, or None",
        ),
        (
            [("score", SCORE | {"by": "functions_that_fail:long", "type": "text"})],
            "expected a text of at most 100 characters, or None",
        ),
        (
            [("score", SCORE | {"by": "functions_that_fail:counter", "type": "number"})],
            "must be a function of the document alone",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, steps: Steps, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "functions_that_fail.py").write_text(
        "from itertools import count\n"
        "numbers = count()\n"
        "def nan(document): return float('nan')\n"
        "def long(document): return document['text'] * 200\n"
        "def counter(document): return next(numbers)\n"
    )
    rows: list[Row] = [
        {"text": f"text {n}", "id": None, "group": n, "dump": "2020"} for n in range(3000)
    ]
    (path,) = write_files(tmp_path / "in", [rows])
    recipe = write_recipe(tmp_path / "r.toml", steps)
    given = [f"--input={path}", f"--output={tmp_path}/out", f"--recipe={recipe}"]
    assert main(["build", *given]) in (1, 2)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("fineshards: ")
    assert sentence in last


def test_a_recipe_with_scores_is_checked_on_a_sample(built: Path) -> None:
    found = fineshards.recipe_check(input=f"{built}/in/0.parquet", recipe=built / "r.toml")
    decided = Counter(
        step for _, step, _, span, *_ in decisions_in(built / "out", 1)[0] if span is None
    )
    assert [step.documents for step in found.dropped] == [
        decided[number] for number in range(len(found.dropped))
    ]


def test_what_conditions_on_scores_drop_is_shown(built: Path, tmp_path: Path, capsys) -> None:
    assert main(["inspect", f"{built}/out", "--dropped", "--reason=where"]) == 0
    assert "where" in capsys.readouterr().out
    assert main(["report", f"{built}/out", f"--output={tmp_path}/report.html"]) == 0


def test_scores_that_are_missing_are_not_left_out_of_counts(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built / "out", tmp_path / "out")
    (tmp_path / "out/metadata/scores/00000.parquet").unlink()
    with pytest.raises(OutputError, match=r"00000\.parquet is missing"):
        fineshards.stats(tmp_path / "out", where="length > 5")


def test_a_filter_finds_its_tables_by_a_score(tmp_path: Path, capsys) -> None:
    """Also where the score is of an earlier stage."""
    model = write_model(tmp_path / "model.bin")
    tables = [{"label": "odd", "min_chars": 60}, {"label": "good", "max_chars": 150}]
    by_kind = {"language_column": "kind", "min_chars": 3}
    steps: Steps = [
        ("score", {"name": "kind", "by": "fasttext", "model": str(model)}),
        ("exact", {}),
        ("length", by_kind | {"per_language": tables}),
    ]
    paths = write_files(tmp_path / "in", made_up_files(4, (80, 60)))
    flags = ["--shard_tokens=500", "--test_fraction=0.2", "--block_bytes=2000"]
    recipe = write_recipe(tmp_path / "r.toml", steps)
    given = [f"--input={tmp_path}/in", *flags, f"--recipe={recipe}"]
    assert main(["build", *given, f"--output={tmp_path}/out"]) == 0
    lengths = {"odd": (60, 10**9), "good": (3, 150)}
    decided = 0
    for file, path in enumerate(paths):
        rows = (
            pq.read_table(path).to_pylist()
            if path.suffix == ".parquet"
            else [json.loads(line) for line in path.read_text().splitlines()]
        )
        kinds = pq.read_table(tmp_path / f"out/metadata/scores/{file:05d}.parquet").to_pydict()
        kind_of = dict(zip(kinds["row"], kinds["kind"], strict=True))
        dropped = {row: step for row, step, *_ in decisions_in(tmp_path / "out", 2)[file]}
        for number, row in enumerate(rows):
            if row["text"] is not None and dropped.get(number) != 1:
                least, most = lengths.get(kind_of[number], (3, 10**9))
                assert (dropped.get(number) == 2) != (least <= len(row["text"]) <= most)
                decided += number in dropped
    assert decided > 10
    assert main(["inspect", str(tmp_path / "out"), "--dropped", "--step=3"]) == 0
    shown = re.findall(r"found .* characters, (.*)", capsys.readouterr().out)
    assert shown
    assert set(shown) <= {"below 60: min_chars", "above 150: max_chars"}
    rewrite = ("symbol_lines", {"language_column": "kind", "per_language": [{"label": "odd"}]})
    recipe = write_recipe(tmp_path / "rewrite.toml", [*steps[:1], rewrite])
    assert main(["build", *given[:-1], f"--recipe={recipe}", f"--output={tmp_path}/x"]) == 2
    assert "(symbol_lines) reads kind, which is a score" in capsys.readouterr().err


def test_a_function_is_given_as_one() -> None:
    from json import dumps

    from fineshards.curation.steps import Score

    step = Score("shown", by=dumps, type="text")  # type: ignore[arg-type]
    assert step.by == "json:dumps"
    with pytest.raises(FineshardsError, match="workers cannot import"):
        Score("shown", by=lambda document: 1, type="number")  # type: ignore[arg-type]
    assert json.loads(json.dumps(dict(step.pins())))
