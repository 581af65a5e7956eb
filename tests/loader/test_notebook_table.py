"""What a notebook shows of the loader's objects."""

from __future__ import annotations

from pathlib import Path

import pytest
from IPython.core.formatters import HTMLFormatter
from lxml import html
from support.build_here import build_here
from support.checkout import ROOT

from fineshards import BatchLoader, Mixture, Packing, TokenDataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in a folder whose name attacks."""
    folder = tmp_path_factory.mktemp("notebook") / "<b>out"
    build_here(input=ROOT / "samples/debian_text.parquet", output=folder, limit=100)
    return folder


def test_a_notebook_shows_objects_as_tables(folder: Path) -> None:
    dataset = TokenDataset(folder, sequence_length=128)
    mixture = Mixture({"<i>": (dataset, 1), "b": (dataset, 3)}, seed=1)
    loader = BatchLoader(dataset, 4, seed=7)
    shown = {}
    for value in (dataset, loader, mixture, Packing(rows=64)):
        table = html.fromstring(HTMLFormatter()(value))
        assert {each.tag for each in table.iter()} == {"table", "caption", "tr", "th", "td"}
        cells = [[each.text_content() for each in row] for row in table.iter("tr")]
        shown[table.findtext("caption")] = dict(cells)
    loader.close()
    assert shown["TokenDataset"]["folder"] == str(folder)
    assert shown["TokenDataset"]["tokens"] == f"{dataset.tokens:,}"
    assert shown["BatchLoader"]["order"] == "shuffled by seed 7"
    assert shown["Mixture"]["<i>"].startswith("0.25 of the draws")
    assert shown["Packing"]["rows"] == "64"
