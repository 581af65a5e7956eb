"""What a recipe drops, before a build (`recipe check`) and after it (`inspect --dropped`)."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fineshards.cli.cli import main

RECIPE = '[[steps]]\nuse = "length"\nmin_chars = 20\n[[steps]]\nuse = "exact"\n'
TEXTS = [f"Document {number} with a text of its own." for number in range(30)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files: the second repeats every third text of the first."""
    folder = tmp_path_factory.mktemp("dropped")
    for name, texts in (("a", [*TEXTS, "short"]), ("b", TEXTS[::3])):
        lines = [json.dumps({"text": text, "id": f"{name}{n}"}) for n, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    (folder / "recipe.toml").write_text(RECIPE)
    given = [f"--input={folder}/*.jsonl", f"--output={folder}/out"]
    assert main(["build", *given, f"--recipe={folder}/recipe.toml"]) == 0
    return folder


def test_a_build_counts_what_it_drops_for_programs_too(built: Path, capsys) -> None:
    given = [f"--input={built}/*.jsonl", f"--output={built}/out"]
    totals = run(capsys, "build", *given, f"--recipe={built}/recipe.toml")["totals"]
    assert (totals["rows"], totals["documents"], totals["dropped"]) == (41, 30, 11)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_check_finds_what_the_build_drops_and_writes_nothing(built: Path, capsys) -> None:
    before = sorted(built.rglob("*"))
    arguments = ["recipe", "check", f"{built}/recipe.toml", f"--input={built}/*.jsonl"]
    check = run(capsys, *arguments, "--examples=100")
    again = run(capsys, *arguments, "--examples=100")
    assert sorted(built.rglob("*")) == before
    manifest = json.loads((built / "out/metadata/manifest.json").read_text())
    dropped = [each for file in manifest["files"] for each in file["dropped"]]
    for number, step in enumerate(check["steps"]):
        expected = sum(each["documents"] for each in dropped if each["step"] == number)
        assert step["documents"] - step["kept"] == sum(step["dropped"].values()) == expected
        assert step["examples"] == again["steps"][number]["examples"]
        assert len(step["examples"]) == expected
    assert (check["whole"], check["files"], check["documents"]) == (True, 2, 41)
    for example in check["steps"][1]["examples"]:
        document, witness = example["document"], example["witness"]
        assert document["file"].endswith("b.jsonl")
        assert witness["file"].endswith("a.jsonl")
        assert witness["row"] == 3 * document["row"]
        assert witness["text"] == document["text"]


def test_a_check_shows_texts_as_they_are_what_was_measured_and_what_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text(
        "\n".join(
            json.dumps({"text": text})
            for text in ("short\nof \u0935", f"{'A line. ' * 40}\n|\nThe end of it.")
        )
    )
    (tmp_path / "r.toml").write_text(
        '[[steps]]\nuse = "length"\nmin_chars = 20\n[[steps]]\nuse = "symbol_lines"\n'
    )
    arguments = ["recipe", "check", f"{tmp_path}/r.toml", f"--input={tmp_path}/a.jsonl"]
    assert main(arguments) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    start = lines.index("1 length, for example:")
    shown = ("A line. " * 40)[-50:]
    assert lines[start:] == [
        "1 length, for example:",
        f"min_chars: {tmp_path}/a.jsonl, row 0",
        "  found    10 characters, below 20: min_chars",
        "  text     short",
        "           of \u0935",
        "",
        "2 symbol_lines, for example:",
        f"changed: {tmp_path}/a.jsonl, row 1",
        f"  text     ...{shown[1:].rstrip()}",
        "           |",
        "           The end of it.",
        f"  after    ...{shown[1:].rstrip()}",
        "           The end of it.",
    ]
    steps = run(capsys, *arguments)["steps"]
    assert [step["examples"][0]["measured"] for step in steps] == [
        "10 characters, below 20: min_chars",
        None,
    ]


def test_dropped_documents_are_shown_beside_their_witnesses(built: Path, capsys) -> None:
    found = run(capsys, "inspect", f"{built}/out", "--dropped", "--step=2", "--count=4")
    assert found == run(capsys, "inspect", f"{built}/out", "--dropped", "--step=2", "--count=4")
    assert (found["documents"], len(found["shown"])) == (10, 4)
    for each in found["shown"]:
        assert (each["step"], each["reason"]) == ("2 exact", "exact_text")
        row = each["document"]["row"]
        assert each["document"]["id"] == f"b{row}"
        assert each["witness"]["row"] == 3 * row
        assert each["document"]["text"] == each["witness"]["text"] == TEXTS[3 * row]
    (one,) = run(capsys, "inspect", f"{built}/out", "--dropped", "--document=a.jsonl:30")["shown"]
    assert (one["step"], one["document"]["text"]) == ("1 length", "short")
    kept = run(capsys, "inspect", f"{built}/out", "--dropped", "--document=0:0")
    assert kept["shown"] == []


def test_a_witness_that_was_dropped_itself_is_told(tmp_path: Path, capsys) -> None:
    words = ["".join(letters) for letters in product("abcdefghij", repeat=3)]  # no number counts
    texts = [" ".join(words[start : start + 300]) for start in range(0, 600, 20)]
    texts += ["two words", "two words"]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (tmp_path / "recipe.toml").write_text(
        '[[steps]]\nuse = "minhash"\n[[steps]]\nuse = "length"\nmin_chars = 20\n'
    )
    out = f"{tmp_path}/out"
    given = [f"--input={tmp_path}/a.jsonl", f"--output={out}"]
    assert main(["build", *given, f"--recipe={tmp_path}/recipe.toml"]) == 0
    shown = run(capsys, "inspect", out, "--dropped", "--count=100")["shown"]
    by = {each["document"]["row"]: each["step"] for each in shown}
    near = [each for each in shown if each["step"] == "1 minhash"]
    assert [each["witness_dropped"] for each in near] == [
        by.get(each["witness"]["row"]) for each in near
    ]
    assert {each["witness_dropped"] for each in near} == {None, "1 minhash", "2 length"}
    assert main(["inspect", out, "--dropped", f"--document=0:{len(texts) - 1}"]) == 0
    expected = f"row {len(texts) - 2}, is 100 % the same, and was itself dropped by 2 length"
    assert expected in capsys.readouterr().out
    assert main(["report", out, f"--output={tmp_path}/report.html"]) == 0
    page = (tmp_path / "report.html").read_text()
    page = " ".join(page.split())
    assert "The earlier document that is 87 % the same, dropped by 1 minhash<" in page
    assert "How alike dropped documents are to the earlier one" in page
    assert "85 % to 90 %" in page


def test_a_decision_is_shown_without_its_source(built: Path, capsys) -> None:
    source = built / "a.jsonl"
    moved = source.rename(built / "moved")
    try:
        found = run(capsys, "inspect", f"{built}/out", "--dropped", "--document=b.jsonl:4")
    finally:
        moved.rename(source)
    (one,) = found["shown"]
    assert one["document"]["text"] == TEXTS[12]
    assert (one["witness"]["row"], one["witness"]["text"]) == (12, None)
    assert "a.jsonl cannot be read: No such file" in one["witness"]["problem"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--dropped", "--reason=exact"], "The reasons are exact_text, min_chars. Did you mean ex"),
        (["--dropped", "--step=3"], "the steps are 1 length, 2 exact."),
        (["--dropped", "--document=5"], "with --dropped give FILE:ROW"),
        (["--dropped", "--document=c.jsonl:5"], "the input has no files c.jsonl"),
        (["--dropped", "--shard=train/0"], "leave out --shard"),
        (["--dropped", "--id=7"], "leave out --id"),
        (["--step=3"], "--step goes with --dropped."),
        (["--document=0:3"], "FILE:ROW goes with --dropped."),
    ],
)
def test_a_mistake_is_one_sentence(
    built: Path, capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    assert main(["inspect", f"{built}/out", *flags]) == 2
    assert sentence in capsys.readouterr().err
