"""The documents that a report shows, with their tokens."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lxml import html
from support import growing
from support.hostile import documents
from support.reported import words_of, written

from fineshards.cli.cli import main
from fineshards.curation.steps import user_function
from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import load_reference
from fineshards.reports import lengths, report_contents
from fineshards.reports.report_contents import token_spans
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.recipe_record import StepRecord
from fineshards.storage.open import open_storage


def test_a_tokenizer_that_cannot_be_loaded_leaves_the_ids(
    built: Callable[[str], Path], tmp_path: Path
) -> None:
    dataset = shutil.copytree(built("by document"), tmp_path / "out")
    (dataset / "metadata/vocabulary.tiktoken").write_bytes(b"IQ== 0\n")
    page = html.fromstring(written(dataset, tmp_path / "report.html"))
    opened = Dataset.open(open_storage(str(dataset)))
    shown = report_contents.show_documents(opened, lengths.lengths_of(opened))
    boxes = page.xpath("//div[contains(@class, 'tokens')]")
    assert len(boxes) == len(shown) == 5
    for each, box in zip(shown, boxes, strict=True):
        tokens = opened.document(each.number).tokens.tolist()
        ids = [str(token) for token in tokens[1 : report_contents.MOST_TOKENS]]
        assert [span.text for span in box.xpath("span")] == ["EOT", *ids]
    assert "cannot be loaded here" in words_of(page, "documents")


@pytest.mark.parametrize("kind", ["by document", "first shards are test", "grown and redacted"])
def test_the_shortest_the_longest_and_three_others_are_shown(
    built: Callable[[str], Path], kind: str
) -> None:
    opened = Dataset.open(open_storage(str(built(kind))))
    every = [opened.document(n).tokens for n in range(opened.manifest.totals()["documents"])]
    with_text = [len(tokens) for tokens in every if set(tokens.tolist()) != {tokens[0]}]
    shown = report_contents.show_documents(opened, lengths.lengths_of(opened))
    assert [each.why for each in shown] == ["shortest", "longest", *["chosen"] * 3]
    assert [each.tokens for each in shown[:2]] == [min(with_text), max(with_text)]
    assert len({each.number for each in shown}) == 5
    for each in shown:
        tokens = every[each.number].tolist()
        ids = [each.eot, *(token for span in each.spans for token in span.ids)]
        assert ids == tokens[: report_contents.MOST_TOKENS]
        assert each.tokens == len(tokens)


@pytest.mark.parametrize("kind", ["by document", "shuffled uint16"])
def test_tokens_are_shown_with_the_text_that_they_have(
    built: Callable[[str], Path], kind: str
) -> None:
    opened = Dataset.open(open_storage(str(built(kind))))
    encoder: Encoder = load_reference(opened.manifest.settings.tokenizer, opened.storage)
    batch = encoder.encode(documents(seed=3, count=60))
    for number in range(60):
        ids = batch.document(number)[1:].tolist()
        spans = token_spans(encoder, ids)
        assert [token for span in spans for token in span.ids] == ids
        text = "".join(span.text for span in spans)
        assert text == encoder.decode(batch.document(number))


SECRET = "Grandmother hid the spare key below the third flower pot, and told only her sister. " * 4
MENU = "Home and products and contact and about us"


def forget_function() -> None:
    """Forgets that of an earlier folder: a process can make the fixture below twice."""
    sys.modules.pop("mine", None)
    user_function._function.cache_clear()


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose recipe calls a function in its folder, and cuts repeated lines.

    The function writes a line to a file whenever its module is imported, or it is called.
    """
    folder = tmp_path_factory.mktemp("cut")
    (folder / "mine.py").write_text(
        "def keep(document):\n"
        f"    open({str(folder / 'ran')!r}, 'a').write('called\\n')\n"
        "    return 'unwanted' not in document['text']\n"
        f"open({str(folder / 'ran')!r}, 'a').write('imported\\n')\n"
    )
    texts = [f"{MENU}\n{SECRET}", f"{MENU}\nAnother text.", f"{MENU}\nunwanted {SECRET}"]
    growing.write_rows(folder / "a.jsonl", [{"text": text} for text in texts])
    steps = '[[steps]]\nuse = "mine:keep"\n[[steps]]\nuse = "lines"\nmin_doc_words = 1\n'
    (folder / "recipe.toml").write_text(steps)
    forget_function()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        growing.build("out", "a.jsonl", "--recipe=recipe.toml", "--test_fraction=0")
    return folder


def test_a_report_runs_no_code_that_a_recipe_names(
    cut: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(cut)
    (cut / "ran").unlink(
        missing_ok=True
    )  # a worker that had imported the function did not write it
    forget_function()
    page = html.fromstring(written("out", cut / "report.html", verify=True))
    assert not (cut / "ran").exists()
    recipe = words_of(page, "recipe")
    assert "Cut 1 span: lines" in recipe
    assert "Cut out:" not in recipe
    assert "What was cut is not shown: that would load mine:keep" in recipe
    capsys.readouterr()
    assert main(["inspect", "out", "--dropped", "--step=2", "--json"]) == 0
    (decision,) = json.loads(capsys.readouterr().out)["shown"]
    assert decision["cut"] == [MENU]
    assert (cut / "ran").exists()


@pytest.mark.parametrize(
    ("use", "parameters", "is_foreign"),
    [
        ("mine:keep", {}, True),
        ("datatrove:LambdaFilter", {}, True),
        ("fasttext", {"model_url": "model.bin"}, True),
        ("language", {"model": "model.bin"}, True),
        ("language", {"model": None}, False),
        ("language", {"per_language": [{"label": "de", "model": "model.bin"}]}, True),
        ("length", {"language_model": "model.bin"}, True),
        ("length", {"language_model": "ft176"}, False),
        ("regex", {"regex_exp": '"model": "model.bin"'}, False),
        ("lines", {"min_chars": 20}, False),
    ],
)
def test_code_and_models_that_a_recipe_names_are_foreign(
    use: str, parameters: dict[str, object], is_foreign: bool
) -> None:
    assert StepRecord.of(use, parameters, 1, {}, False).is_foreign is is_foreign


def test_redacted_texts_are_not_shown_of_earlier_generations(cut: Path, tmp_path: Path) -> None:
    dataset = shutil.copytree(cut / "out", tmp_path / "out")
    assert b"Grandmother" in written(dataset, tmp_path / "report.html")
    assert main(["redact", str(dataset), "--documents", "0"]) == 0
    for generation in (1, 2):
        found = written(dataset, tmp_path / "report.html", generation=generation)
        assert b"Grandmother" not in found
        page = html.fromstring(found)
        assert "No examples are shown" in words_of(page, "recipe")
        said = words_of(page, "exactness")
        assert "the tokens of 1 document were overwritten" in said
