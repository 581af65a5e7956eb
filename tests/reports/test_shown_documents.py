"""The documents that a report shows, with their tokens."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from lxml import html
from support import growing
from support.hostile import documents
from support.reported import words_of, written

from fineshards.cli.cli import main
from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import load_reference
from fineshards.reports import report_contents
from fineshards.reports.report_contents import token_spans
from fineshards.shards.dataset_files import Dataset
from fineshards.storage.open import open_storage


def test_a_tokenizer_that_cannot_be_loaded_leaves_the_ids(
    built: Callable[[str], Path], tmp_path: Path
) -> None:
    dataset = shutil.copytree(built("by document"), tmp_path / "out")
    (dataset / "metadata/vocabulary.tiktoken").write_bytes(b"IQ== 0\n")
    page = html.fromstring(written(dataset, tmp_path / "report.html"))
    opened = Dataset.open(open_storage(str(dataset)))
    shown = report_contents.show_documents(opened, report_contents.lengths_of(opened))
    boxes = page.xpath("//div[contains(@class, 'tokens')]")
    assert len(boxes) == len(shown) == 5
    for each, box in zip(shown, boxes, strict=True):
        tokens = each.document.tokens.tolist()
        ids = [str(token) for token in tokens[1 : report_contents.MOST_TOKENS]]
        assert [span.text for span in box.xpath("span")] == ["EOT", *ids]
    assert "cannot be loaded here" in words_of(page, "documents")


@pytest.mark.parametrize("kind", ["by document", "first shards are test", "grown and redacted"])
def test_the_shortest_the_longest_and_three_others_are_shown(
    built: Callable[[str], Path], kind: str
) -> None:
    opened = Dataset.open(open_storage(str(built(kind))))
    every = [opened.document(n).tokens for n in range(opened.manifest.totals["documents"])]
    with_text = [len(tokens) for tokens in every if set(tokens.tolist()) != {tokens[0]}]
    shown = report_contents.show_documents(opened, report_contents.lengths_of(opened))
    assert [each.why for each in shown] == ["shortest", "longest", *["chosen"] * 3]
    assert [len(each.document.tokens) for each in shown[:2]] == [min(with_text), max(with_text)]
    assert len({each.document.number for each in shown}) == 5
    for each in shown:
        tokens = every[each.document.number].tolist()
        ids = [tokens[0], *(token for span in each.spans for token in span.ids)]
        assert ids == tokens[: report_contents.MOST_TOKENS]
        assert each.left_out == len(tokens) - len(ids)


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


def test_redacted_texts_are_not_shown_of_earlier_generations(tmp_path: Path) -> None:
    texts = [f"Grandmother told only her sister {number}." for number in range(2)]
    growing.write_rows(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    dataset = tmp_path / "out"
    growing.build(dataset, tmp_path / "a.jsonl", "--test_fraction=0")
    before = html.fromstring(written(dataset, tmp_path / "report.html"))
    assert texts[0] in words_of(before, "documents")
    assert main(["redact", str(dataset), "--documents", "0"]) == 0
    for generation in (1, 2):
        page = html.fromstring(written(dataset, tmp_path / "report.html", generation=generation))
        assert texts[0] not in words_of(page, "documents")
        said = words_of(page, "exactness")
        assert "the tokens of 1 document were overwritten" in said
