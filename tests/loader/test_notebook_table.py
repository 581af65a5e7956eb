"""What a notebook shows of the loader's objects, and the names that it completes."""

from __future__ import annotations

from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.formatters import HTMLFormatter
from IPython.core.interactiveshell import InteractiveShell
from lxml import html
from support.build_here import build_here
from support.checkout import ROOT

from fineshards import (
    BatchLoader,
    ContextParallel,
    Mixture,
    Packing,
    TokenDataset,
    WholeDocuments,
)


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


def test_completion_offers_the_names_that_users_need(folder: Path) -> None:
    dataset = TokenDataset(folder, sequence_length=128)
    objects = {
        "dataset": dataset,
        "loader": BatchLoader(dataset, 4, seed=7),
        "mixture": Mixture({"a": (dataset, 1)}),
        "packing": Packing(),
        "part": ContextParallel(0, 2),
        "whole": WholeDocuments(dataset),
    }
    shell = InteractiveShell(user_ns=dict(objects))
    with provisionalcompleter():
        names = {
            name: [each.text for each in shell.Completer.completions(f"{name}.", len(name) + 1)]
            for name in objects
        }
    assert not [each for of in names.values() for each in of if each.startswith("_")]
    assert names["loader"] == [
        "close", "consumed", "explain", "load_state_dict", "occurrences", "position", "restart",
        "samples", "state_dict", "step",
    ]  # fmt: skip
    assert names["packing"] == ["max_documents", "rows", "shuffle_windows"]
    assert names["part"] == ["layout", "rank", "size"]
    assert {"decode", "document", "tokens"} <= set(names["dataset"])
    assert {"counts", "plan", "names"} <= set(names["mixture"])
    for name, value in objects.items():
        # A helper that is renamed is not forgotten.
        assert all(hasattr(value, helper) for helper in value.HELPERS)
        assert not set(value.HELPERS) & set(names[name])
    objects["loader"].close()
