"""Mistakes in recipes, and steps that go wrong: one sentence, and nothing taken for finished."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from support.curated import Steps, write_recipe
from support.oracle import files_in

import fineshards
from fineshards.cli.cli import main
from fineshards.curation import curator
from fineshards.curation.batch import Batch
from fineshards.curation.curator import Curator, describe
from fineshards.curation.recipe import make_step
from fineshards.curation.step import Judge, Outcome
from fineshards.curation.steps.length import Length
from fineshards.errors import FineshardsError
from fineshards.shards.tables.decisions import NO_DECISIONS

TEXTS = ["one two three", "four five six", "one two three", "seven eight nine ten", "a"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in/docs.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def build(source: Path, recipe: Path | str, *flags: str) -> int:
    output = source.parent.parent / "out"
    return main(["build", f"--input={source}", f"--output={output}", f"--recipe={recipe}", *flags])


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of stderr, which no traceback precedes."""
    lines = capsys.readouterr().err.splitlines()
    assert not [line for line in lines if "Traceback" in line], lines
    assert lines[-1].startswith("fineshards: ")
    assert "unexpected" not in lines[-1]
    return lines[-1]


@pytest.mark.long
def test_the_output_may_be_in_a_recipe_and_a_flag_wins(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'[build]\noutput = "{tmp_path}/said"\n[[steps]]\nuse = "exact"\n')
    command = ["build", f"--input={source}", f"--recipe={recipe}"]
    assert main(command) == 0
    assert main([*command, f"--output={tmp_path}/given"]) == 0
    assert main(["build", f"--output={tmp_path}/before", *command[1:]]) == 0
    fineshards.build(input=source, recipe=recipe)  # finds it finished
    said, given, before = (files_in(tmp_path / name) for name in ("said", "given", "before"))
    assert said == given == before
    recipe.write_text('[[steps]]\nuse = "exact"\n')
    assert main(command) == 2
    assert "give --output." in sentence(capsys)
    assert main([*command, "--outptu=out"]) == 2
    assert "unknown flag --outptu. Did you mean --output?" in sentence(capsys)


FUNCTIONS = """
import itertools
numbers = itertools.count()

def raises(document):
    return 1 / (document["row"] - 3) < 9

def surrogate(document):
    return document["text"] + ("\\udcff" if document["row"] == 3 else "")

def chance(document):
    return next(numbers) % 3 == 0

def other_text(document):
    return f'{document["text"]} {next(numbers)}'

def number(document):
    return 3

def reason(document):
    return False, "\\ud800"
"""


@pytest.mark.long
@pytest.mark.parametrize("first", [[], [("exact", {})]], ids=["alone", "after a keyed step"])
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("raises", "division by zero"),
        ("surrogate", "not valid Unicode|not UTF-8|surrogate"),
        ("number", "3"),
        ("reason", "surrogate"),
        ("chance", "kept this document and dropped|dropped .* this document and kept"),
        ("other_text", "gave one text this document and gave another text"),
    ],
)
def test_a_function_that_goes_wrong_names_file_and_row(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    first: Steps,
    function: str,
    words: str,
) -> None:
    # A module of another name each time: Python remembers it.
    name = f"wrong_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(curator, "COMPARED_SHARE", 1.0)
    recipe = write_recipe(tmp_path / "r.toml", [*first, (f"{name}:{function}", {})])
    assert build(source, recipe) == 1
    line = sentence(capsys)
    assert str(source) in line
    assert re.search(r"row \d", line)
    assert re.search(words, line), line
    assert not (tmp_path / "out/metadata/manifest.json").exists()


def test_no_function_ends_a_command_as_if_it_had_succeeded(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"mistakes_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("def leaves(document):\n    raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    recipe = write_recipe(tmp_path / "r.toml", [(f"{name}:leaves", {})])
    assert main(["recipe", "check", str(recipe), f"--input={source}"]) == 1
    assert "SystemExit: 0" in sentence(capsys)
    assert build(source, recipe) == 1
    assert "SystemExit: 0" in sentence(capsys)
    assert not (tmp_path / "out/metadata/manifest.json").exists()


@pytest.mark.parametrize(
    ("right", "wrong", "sentence_of_step"),
    [
        ('use = "length", min_chars = 1', 'use = "length"', "(length): length: min_chars is None"),
        ('use = "language"', 'use = "language", model = "no.bin"', "(language): no.bin: there is "),
        (
            'use = "c4_badwords", words = "FOLDER/ascii"',
            'use = "c4_badwords", words = "FOLDER/latin"',
            "(c4_badwords): c4_badwords: ",
        ),
        (
            'use = "builtins:bool"',
            'use = "no_such:function"',
            "(no_such:function): no_such:function",
        ),
        (
            'use = "seen_in", files = ["FOLDER/docs.jsonl"]',
            'use = "seen_in", datasets = ["/no"]',
            "(seen_in): /no holds no finished dataset",
        ),
        (
            'use = "score", name = "a", by = "words"',
            'use = "score", name = "a", by = "bytes"',
            "(score): name is 'a', which an earlier step",
        ),
    ],
)
def test_a_mistake_names_the_recipe_and_the_number_of_the_step(
    right: str, wrong: str, sentence_of_step: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source.parent / "ascii").write_bytes(b"word")
    (source.parent / "latin").write_bytes(b"caf\xe9")
    recipe = source.parent / "r.toml"
    steps = f"steps = [{{{right}}}, {{{wrong}}}]".replace("FOLDER", str(source.parent))
    recipe.write_text(steps)
    assert build(source, recipe) in (1, 2)
    assert f"{recipe}, step 2 {sentence_of_step}" in sentence(capsys)


def test_a_byte_order_mark_before_a_recipe_is_no_part_of_it(source: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "r.toml", [("length", {"min_chars": 2})])
    recipe.write_bytes(b"\xef\xbb\xbf" + recipe.read_bytes())
    assert main(["recipe", "check", str(recipe), f"--input={source}"]) == 0


class _Surrogate(Judge):
    REWRITES = True

    def apply(self, batch: Batch) -> Outcome:
        texts = [text + "\ud800" for text in batch.strings]
        return Outcome([None if "e" in text else "no e" for text in batch.strings], texts)


class _Forgetful(_Surrogate):
    REWRITES = False


def judge(step: Judge, *texts: str) -> None:
    named = replace(make_step("length", {"min_chars": 0}, ""), use="mine", step=step)
    Curator([named]).judge(Batch.of_texts(texts), 0, NO_DECISIONS)


def test_a_rewrite_that_gives_no_text_names_the_row_and_the_place() -> None:
    with pytest.raises(FineshardsError) as caught:
        judge(_Surrogate(), "what", "then")
    assert str(caught.value).startswith(
        "file 0 of the input, row 1: step 1 mine gives it a text with the lone surrogate "
        "'\\ud800' at character 4"
    )
    judge(_Surrogate(), "what")  # which is dropped


def test_a_step_that_does_not_say_that_it_rewrites_is_refused() -> None:
    with pytest.raises(FineshardsError, match="does not say that it rewrites"):
        judge(_Forgetful(), "then")


def test_a_step_that_is_another_one_on_a_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    record = describe([make_step("length", {"min_chars": 3}, "")], False, ())
    Curator.of(record)
    pinned = structs.replace(record.steps[0], pins={"unicode": "3.2"})
    with pytest.raises(FineshardsError, match="pin unicode of step 1 length: was"):
        Curator.of(structs.replace(record, steps=(pinned,)))
    with pytest.raises(FineshardsError, match="what the steps make of the golden documents: was"):
        Curator.of(structs.replace(record, golden_sha256="0" * 64))
    monkeypatch.setattr(Length, "VERSION", 9)
    with pytest.raises(FineshardsError, match="version of step 1 length: was 1, now 9"):
        Curator.of(record)


@pytest.fixture
def unfinished(source: Path, tmp_path: Path) -> Path:
    """A build of `tmp_path/r.toml` without its manifest."""
    recipe = write_recipe(tmp_path / "r.toml", [("length", {"min_chars": 2}), ("exact", {})])
    assert build(source, recipe, "--keep_keys", "--keep_checkpoints", "--test_shards=0") == 0
    (tmp_path / "out/metadata/manifest.json").unlink()
    return tmp_path / "out"


def test_another_recipe_does_not_resume_a_job_and_overwrite_leaves_nothing_of_it(
    source: Path, tmp_path: Path, unfinished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_recipe(tmp_path / "o.toml", [("length", {"min_chars": 1}), ("exact", {})])
    # As a job that was killed before its first token block, and one before its first shard.
    for lost in (["test", "train"], ["checkpoints/*/blocks"], ["checkpoints/*/marks"]):
        for pattern in lost:
            for folder in unfinished.glob(pattern):
                shutil.rmtree(folder)
        before = files_in(unfinished)
        assert build(source, other, "--keep_keys", "--test_shards=0") == 2
        line = sentence(capsys)
        assert "min_chars of step 1 length: was 2, now 1" in line
        assert "--overwrite" in line
        assert files_in(unfinished) == before
    assert build(source, other, "--test_shards=0") == 2
    assert "--keep_keys: was True, now False" in sentence(capsys)
    assert (unfinished / "metadata/keys").exists()
    only = write_recipe(tmp_path / "p.toml", [("length", {"min_chars": 1})])
    assert build(source, only, "--test_shards=0", "--overwrite") == 0
    left = {path.name for path in (unfinished / "metadata").iterdir() if any(path.glob("*"))}
    assert not {"decisions", "keys"} & left
    assert main(["verify", str(unfinished)]) == 0
