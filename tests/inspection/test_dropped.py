"""What a recipe drops, before a build (`recipe check`) and after it (`inspect --dropped`)."""

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


def test_a_check_shows_what_stats_and_inspect_show_of_the_build_and_leaves_nothing(
    built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(built.rglob("*"))
    arguments = ["recipe", "check", f"{built}/recipe.toml", f"--input={built}/*.jsonl"]
    check = run(capsys, *arguments, "--examples=100")
    assert sorted(built.rglob("*")) == before
    assert check["sample_share"] == 1
    stats = run(capsys, "stats", f"{built}/out")
    assert check["stats"] == stats | {"folder": "a build of 100.00% of the input"}
    assert check["dropped"] == [
        run(capsys, "inspect", f"{built}/out", "--dropped", f"--step={step}", "--count=100")
        for step in (1, 2)
    ]
    assert main([*arguments, "--examples=3"]) == 0
    printed = capsys.readouterr().out
    assert main(["inspect", f"{built}/out", "--dropped", "--step=2", "--count=3"]) == 0
    assert printed.endswith(capsys.readouterr().out)


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
    expected = f"row {len(texts) - 2}, has a similarity of 1, and was itself dropped by 2 length"
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("verify", ["jaccard", "none"])
def test_a_witness_that_is_linked_through_others_is_not_said_to_be_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verify: str
) -> None:
    words = ["".join(letters) for letters in product("abcdefghij", repeat=3)]
    texts = [" ".join(words[start : start + 300]) for start in range(0, 600, 20)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    recipe = f'[[steps]]\nuse = "minhash"\nrule = "components"\nverify = "{verify}"\n'
    (tmp_path / "recipe.toml").write_text(recipe)
    given = [f"--input={tmp_path}/a.jsonl", "--test_fraction=0", f"--output={tmp_path}/out"]
    assert main(["build", *given, f"--recipe={tmp_path}/recipe.toml"]) == 0
    (last,) = run(capsys, "inspect", f"{tmp_path}/out", "--dropped", "--document=0:29")["shown"]
    assert (last["witness"]["row"], last["linked"], last["similarity"]) == (0, True, None)
    assert not set(texts[0].split()) & set(texts[29].split())
    assert main(["inspect", f"{tmp_path}/out", "--dropped", "--document=0:29"]) == 0
    printed = capsys.readouterr().out
    assert "row 0, is the first of the documents that are linked to it\n" in printed
    assert "has the same key" not in printed


def test_many_cuts_of_a_document_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"Line {''.join(letters)} of a page." for letters in product("abc", repeat=3)]
    texts = ["\n".join(lines[:20]), "\n".join([*lines[:20], *lines[20:]])]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    recipe = '[[steps]]\nuse = "lines"\nmin_chars = 5\nmin_doc_words = 1\n'
    (tmp_path / "recipe.toml").write_text(recipe)
    given = [f"--input={tmp_path}/a.jsonl", "--test_fraction=0", f"--output={tmp_path}/out"]
    assert main(["build", *given, f"--recipe={tmp_path}/recipe.toml"]) == 0
    assert main(["inspect", f"{tmp_path}/out", "--dropped", "--document=0:1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    cuts = [line for line in printed if line.startswith("  cut      ")]
    assert cuts == [*(f"  cut      {line}" for line in lines[:5]), "  cut      … and 15 more"]
    assert any(line.endswith("row 0, has the same key as the first of these") for line in printed)


def test_texts_are_shown_from_the_place_that_decided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A difference, a cut and a passage far behind the beginning of a text."""
    words = " ".join("".join(letters) for letters in product("abcdefgh", repeat=3))
    question = "What is the least number of coins that make up one and a half dollars?"
    again = "Subscribe to our newsletter today."
    texts = [f"{words} first ending", f"{words} second ending", again, f"{words[9:1100]}\n{again}"]
    texts.append(f"{words[:1500].upper()} what is  the least number of coins, that make up ONE")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (tmp_path / "quiz.jsonl").write_text(json.dumps({"question": question}))
    (tmp_path / "recipe.toml").write_text(
        f'steps = [{{use = "decontaminate", files = ["{tmp_path}/quiz.jsonl"], ngram = 9}},'
        '{use = "minhash"}, {use = "lines", min_chars = 9, min_doc_words = 1}]'
    )
    out, given = f"{tmp_path}/out", [f"--input={tmp_path}/a.jsonl", "--test_fraction=0"]
    assert main(["build", *given, f"--output={out}", f"--recipe={tmp_path}/recipe.toml"]) == 0

    def shown(row: int) -> str:
        capsys.readouterr()
        assert main(["inspect", out, "--dropped", f"--document=0:{row}"]) == 0
        return capsys.readouterr().out

    pair, cut, contaminated = shown(1), shown(3), shown(4)
    assert [line[-20:] for line in pair.splitlines() if "  text     … " in line] == [
        " hhf hhg hhh second ending"[-20:],
        " hhf hhg hhh first ending"[-20:],
    ]
    assert f"\n           {again}\n  cut      {again}\n" in cut
    assert cut.endswith("\n0 of 2 dropped documents, and 1 cut document\n")
    assert f"  found    9 words in a row are in line 1 of {tmp_path}/quiz.jsonl\n" in contaminated
    assert contaminated.split("  text     … ")[1].startswith("FA FFB FFC ")


def test_a_cut_passage_is_shown_with_the_earlier_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["".join(letters) for letters in product("abcdefgh", repeat=4)]
    passage = " ".join(words[:60])
    earlier = f"{' '.join(words[100:900])} {passage} {' '.join(words[900:1000])}"
    later = f"{' '.join(words[1100:1700])} {passage} {' '.join(words[1700:1800])}"
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": x}) for x in (earlier, later)))
    (tmp_path / "recipe.toml").write_text('[[steps]]\nuse = "passages"\n')
    out, given = f"{tmp_path}/out", [f"--input={tmp_path}/a.jsonl", "--test_fraction=0"]
    assert main(["build", *given, f"--output={out}", f"--recipe={tmp_path}/recipe.toml"]) == 0
    (shown,) = run(capsys, "inspect", out, "--dropped", "--document=0:1")["shown"]
    (cut,) = shown["cut"]
    assert cut in passage
    assert len(cut.split()) >= 60 - 32
    assert shown["witness"]["row"] == 0
    assert main(["inspect", out, "--dropped", "--document=0:1"]) == 0
    printed = capsys.readouterr().out
    earlier = f"{tmp_path}/a.jsonl, row 0, has the same key as the first of these"
    assert f"\n  cut      {cut}\n  earlier  {earlier}\n" in printed
    assert [cut[:40] in line for line in printed.splitlines() if "  text     … " in line] == [
        True,
        True,
    ]


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
    assert "a.jsonl was deleted since the dataset was built" in one["witness"]["problem"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--dropped", "--reason=exact"], "The reasons are exact_text, min_chars. Did you mean ex"),
        (["--dropped", "--step=3"], "the steps are 1 length, 2 exact."),
        (["--dropped", "--document=5"], "with --dropped give FILE:ROW"),
        (["--dropped", "--document=c.jsonl:5"], "the input has no files c.jsonl"),
        (["--dropped", "--shard=train/0"], "leave out --shard"),
        (["--dropped", "--id=7"], "leave out --id"),
        (["--dropped", "--token=0"], "leave out --token"),
        (["--step=3"], "--step goes with --dropped."),
        (["--document=0:3"], "FILE:ROW goes with --dropped."),
    ],
)
def test_a_mistake_is_one_sentence(
    built: Path, capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    assert main(["inspect", f"{built}/out", *flags]) == 2
    assert sentence in capsys.readouterr().err
