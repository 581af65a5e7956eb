"""Verify on datasets with a recipe: decisions are checked, and made again from the sources."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.damage import (
    checksum,
    edit_decisions,
    edit_manifest,
    edit_metadata,
    load,
    save_consistently,
)

from fineshards.cli.cli import main

# A filter, a step that cuts, a rewrite, and two that compare whole documents.
RECIPE = """
[[steps]]
use = "length"
min_chars = 20

[[steps]]
use = "lines"
min_doc_words = 4

[[steps]]
use = "pii"
email_replacement = "someone@example.org"

[[steps]]
use = "exact"

[[steps]]
use = "minhash"
rule = "components"
n_grams = 2
"""
LENGTH, LINES, PII, EXACT, MINHASH = range(5)
MENU = "Home, news, archive and contact of this site"
Decisions = list[dict[str, Any]]


def words(number: int, count: int = 12) -> str:
    """A text of its own, without digits, which near duplicates may differ in."""
    letters = [chr(97 + number % 26), chr(97 + number // 26)]
    return " ".join(f"word{letters[0]}{chr(97 + place)}{letters[1]}" for place in range(count))


def first_file() -> list[str | None]:
    own = [f"{words(n)}, mail me{n}@debian.org about {words(n + 200, 5)}." for n in range(60)]
    own[5] = "too short"
    own[7] = f"{MENU}\n{own[7]}"
    return [*own, None]


def second_file() -> list[str | None]:
    first = first_file()
    texts = [f"{words(n + 400)} and nothing else at all." for n in range(40)]
    texts[3] = "short"
    texts[10] = f"{MENU}\n{texts[10]}"
    texts[11] = f"{MENU}\nThree words left"
    # The same text once the addresses are replaced, and nearly the same.
    texts[20] = str(first[20]).replace("me20@debian.org", "other@debian.org")
    texts[21] = str(first[21]).replace("about", "on")
    return texts


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curated")
    for name, texts in (("a.jsonl", first_file()), ("b.jsonl", second_file())):
        lines = [json.dumps({"text": text, "id": f"{name}{n}"}) for n, text in enumerate(texts)]
        (folder / name).write_text("\n".join(lines))
    (folder / "recipe.toml").write_text(RECIPE)
    given = [f"--input={folder}/*.jsonl", f"--output={folder / 'out'}", "--shard_tokens=1000"]
    assert main(["build", *given, f"--recipe={folder / 'recipe.toml'}"]) == 0
    return folder


@pytest.fixture
def dataset(built: Path, tmp_path: Path) -> Path:
    """A copy to damage; its sources are shared by all tests."""
    return Path(shutil.copytree(built / "out", tmp_path / "out"))


def check(capsys: pytest.CaptureFixture[str], folder: Path, *flags: str) -> dict[str, Any]:
    capsys.readouterr()
    code = main(["verify", str(folder), "--json", *flags])
    verdict: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (1 if verdict["problems"] else 0)
    return verdict


def decisions_of(folder: Path, file: int) -> Decisions:
    found: Decisions = []
    edit_decisions(folder, file, found.extend)
    return found


def one(decisions: Decisions, step: int, cut: bool = False) -> dict[str, Any]:
    """The first decision of a step."""
    return next(d for d in decisions if d["step"] == step and (d["span"] is not None) == cut)


def test_the_recipe_of_these_tests_decides_in_every_way(dataset: Path) -> None:
    found = [(d["row"], d["step"], d["reason"], d["span"]) for d in decisions_of(dataset, 1)]
    assert found == [
        (3, LENGTH, "min_chars", None),
        (10, LINES, "lines", 0),
        (11, LINES, "lines", 0),
        (11, LINES, "too_few_words", None),
        (20, EXACT, "exact_text", None),
        (21, MINHASH, "minhash", None),
    ]


def test_a_dataset_with_a_recipe_is_verified_and_judged_again(dataset: Path, capsys) -> None:
    assert check(capsys, dataset)["ok"]
    verdict = check(capsys, dataset, "--sample=100%")
    assert (verdict["ok"], verdict["problems"]) == (True, [])
    # Dropped: 1 of the first file, 4 of the second; cut and kept: 1.
    assert (verdict["sampled"], verdict["judged"]) == (verdict["documents"], 6)
    assert check(capsys, dataset, "--sample=0.001%")["judged"] == 1


def rows_beyond(decisions: Decisions) -> None:
    decisions[-1]["row"] = 999


def unknown_step(decisions: Decisions) -> None:
    decisions[0]["step"] = 9


def dropped_twice(decisions: Decisions) -> None:
    decisions.insert(1, decisions[0] | {"step": EXACT, "witness_file": 0, "witness_row": 0})


def later_witness(decisions: Decisions) -> None:
    one(decisions, MINHASH).update(witness_file=1, witness_row=30)


def witness_of_itself(decisions: Decisions) -> None:
    one(decisions, EXACT).update(witness_file=1, witness_row=20)


def witness_beyond(decisions: Decisions) -> None:
    one(decisions, EXACT).update(witness_row=1000)


def one_less(decisions: Decisions) -> None:
    decisions.remove(one(decisions, LENGTH))


def another_row(decisions: Decisions) -> None:
    one(decisions, LENGTH).update(row=4)


@pytest.mark.parametrize(
    ("damage", "step", "found", "said"),
    [(unknown_step, 10, 1, 0), (dropped_twice, 4, 2, 1), (one_less, 1, 0, 1)],
)
def test_other_numbers_of_decisions_are_found_without_the_sources(
    dataset: Path, capsys, damage: Callable[[Decisions], None], step: int, found: int, said: int
) -> None:
    edit_decisions(dataset, 1, damage)
    sentence = f"dropped by step {step} in the decisions is {found}; the manifest says {said}"
    problems = check(capsys, dataset)["problems"]
    assert any(sentence in problem for problem in problems), problems


def test_decisions_that_are_missing_are_found(dataset: Path, capsys) -> None:
    (dataset / "metadata/decisions/00000.parquet").unlink()
    (problem,) = check(capsys, dataset)["problems"]
    assert problem == "metadata/decisions/00000.parquet is missing"

    def forget(manifest: dict[str, Any]) -> None:
        manifest["metadata"] = [
            e for e in manifest["metadata"] if "decisions/00000" not in e["name"]
        ]

    edit_manifest(dataset, forget)
    (problem,) = check(capsys, dataset)["problems"]
    assert problem.endswith("dropped by step 1 in the decisions is 0; the manifest says 1")


def test_a_damaged_file_of_decisions_is_one_sentence(dataset: Path, capsys) -> None:
    path = dataset / "metadata/decisions/00001.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    (problem,) = check(capsys, dataset)["problems"]
    assert problem.startswith("metadata/decisions/00001.parquet has ")


def test_decisions_that_are_no_table_are_one_sentence(dataset: Path, capsys) -> None:
    """The manifest has the size and the checksum of something else."""
    name = "metadata/decisions/00001.parquet"
    (dataset / name).write_bytes(b"{}" * 99)

    def record(manifest: dict[str, Any]) -> None:
        (entry,) = (entry for entry in manifest["metadata"] if entry["name"] == name)
        entry.update(bytes=198, crc32c=checksum(b"{}" * 99))

    edit_manifest(dataset, record)
    (problem,) = check(capsys, dataset)["problems"]
    assert problem.startswith(f"{dataset / name} is damaged: ")


def wrong_witness(decisions: Decisions) -> None:
    one(decisions, EXACT).update(witness_row=30)


def witness_that_was_dropped(decisions: Decisions) -> None:
    one(decisions, EXACT).update(witness_row=5)


def witness_without_text(decisions: Decisions) -> None:
    one(decisions, EXACT).update(witness_row=60)


def wrong_witness_of_a_line(decisions: Decisions) -> None:
    one(decisions, LINES, cut=True).update(witness_row=8)


def another_span(decisions: Decisions) -> None:
    one(decisions, LINES, cut=True).update(span=1)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (rows_beyond, "row 999 is not a document"),
        (another_row, "row 4 was dropped by step 1 length (min_chars); judged again, it is kept"),
        (later_witness, "row 30 of {}/b.jsonl, is not earlier"),
        (witness_of_itself, "row 20 of {}/b.jsonl, is not earlier"),
        (witness_beyond, "row 1000 of {}/a.jsonl, is not a document"),
        (wrong_witness, "row 20: its witness of step 4 exact, row 30 of"),
        (witness_that_was_dropped, "was dropped by an earlier step"),
        (witness_without_text, "is not a document"),
        (wrong_witness_of_a_line, "row 10, span 0: its witness of step 2 lines, row 8 of"),
        (another_span, "its tokens differ"),
    ],
)
def test_other_decisions_than_the_sources_give_are_found_with_a_sample(
    built: Path, dataset: Path, capsys, damage: Callable[[Decisions], None], sentence: str
) -> None:
    edit_decisions(dataset, 1, damage)
    assert check(capsys, dataset)["ok"]
    problems = check(capsys, dataset, "--sample=100%")["problems"]
    assert any(sentence.format(built) in problem for problem in problems), problems


def count_another(dataset: Path, step: int, reason: str, now: tuple[int, str]) -> None:
    """Lets the statistics count one document that a step dropped under another step and reason."""

    def change(rows: list[dict[str, Any]]) -> None:
        dropped = [row for row in rows if row["what"] == "dropped"]
        (was,) = (row for row in dropped if (row["step"], row["value"]) == (step, reason))
        there = [row for row in dropped if (row["step"], row["value"]) == now]
        if not there:
            there = [{**was, "step": now[0], "value": now[1], "documents": 0}]
            rows += there
        there[0]["documents"] += 1
        was["documents"] -= 1
        if not was["documents"]:
            rows.remove(was)

    edit_metadata(dataset, "metadata/statistics/00001.parquet", change)


def test_statistics_that_contradict_the_manifest_are_found(dataset: Path, capsys) -> None:
    count_another(dataset, EXACT, "exact_text", (MINHASH, "minhash"))
    first, second = check(capsys, dataset)["problems"]
    dropped = "b.jsonl: the number of documents dropped by step"
    assert f"{dropped} 4 in the statistics is 0; the manifest says 1" in first
    assert f"{dropped} 5 in the statistics is 2; the manifest says 1" in second

    def longer(rows: list[dict[str, Any]]) -> None:
        (total,) = (row for row in rows if row["what"] == "dataset")
        total["tokens"] += 1

    edit_metadata(dataset, "metadata/statistics/00001.parquet", longer)
    problems = check(capsys, dataset)["problems"]
    assert any("b.jsonl: the number of tokens in the statistics is " in each for each in problems)


def test_a_witness_of_a_component_must_have_been_kept_by_the_step(dataset: Path, capsys) -> None:
    # Two drops of the same step, the second with the first as its witness: it is not the smallest.
    def chain(decisions: Decisions) -> None:
        one(decisions, EXACT).update(step=MINHASH, reason="minhash")
        decisions[-1].update(witness_file=1, witness_row=20)

    def as_many(manifest: dict[str, Any]) -> None:
        dropped = manifest["reports"][1]["counts"]["dropped"]
        (exact,) = (each for each in dropped if each["reason"] == "exact_text")
        dropped.remove(exact)
        dropped[-1]["documents"] += 1

    edit_decisions(dataset, 1, chain)
    edit_manifest(dataset, as_many)
    count_another(dataset, EXACT, "exact_text", (MINHASH, "minhash"))
    assert check(capsys, dataset)["ok"]
    problems = check(capsys, dataset, "--sample=100%")["problems"]
    assert any("was dropped by this step itself" in problem for problem in problems), problems


def test_a_wrong_reason_is_found_with_a_sample(dataset: Path, capsys) -> None:
    def renamed(manifest: dict[str, Any]) -> None:
        manifest["reports"][1]["counts"]["dropped"][0]["reason"] = "max_chars"

    edit_decisions(dataset, 1, lambda found: one(found, LENGTH).update(reason="max_chars"))
    edit_manifest(dataset, renamed)
    count_another(dataset, 0, "min_chars", (0, "max_chars"))
    assert check(capsys, dataset)["ok"]
    problems = check(capsys, dataset, "--sample=100%")["problems"]
    expected = (
        "row 3 was dropped by step 1 length (max_chars); judged again, it is dropped by step 1 "
        "length (min_chars)"
    )
    assert any(expected in problem for problem in problems), problems


def test_other_counts_of_dropped_text_are_found_with_a_sample(dataset: Path, capsys) -> None:
    def more(manifest: dict[str, Any]) -> None:
        manifest["reports"][1]["counts"]["dropped"][0]["text_bytes"] += 1
        manifest["reports"][1]["counts"]["dropped_dumps"] = [
            {"step": 0, "dump": "X", "documents": 1}
        ]

    edit_manifest(dataset, more)
    of_reasons, of_dumps = check(capsys, dataset, "--sample=1%")["problems"]
    assert of_reasons.endswith(
        "b.jsonl: the number of bytes dropped by step 1 (min_chars) is 5; the manifest says 6"
    )
    assert of_dumps.endswith("documents of X dropped by step 1 is 0; the manifest says 1")


def test_other_tokens_after_a_rewrite_are_found(dataset: Path, capsys) -> None:
    tokens = load(dataset, "train/train_0000.npy")
    tokens[1:3] = tokens[2:0:-1]
    save_consistently(dataset, "train/train_0000.npy", tokens)
    (problem,) = check(capsys, dataset, "--sample=100%")["problems"]
    assert ": its tokens differ from those of" in problem
    assert problem.endswith("a.jsonl, row 0")


def test_a_changed_source_is_a_sentence_for_judging_too(built: Path, dataset: Path, capsys) -> None:
    path = built / "b.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'{"', b'{ "', 1))
    try:
        problems = check(capsys, dataset, "--sample=100%")["problems"]
    finally:
        path.write_bytes(whole)
    assert len(problems) == 1
    assert "b.jsonl changed since the dataset was built: it had" in problems[0]
