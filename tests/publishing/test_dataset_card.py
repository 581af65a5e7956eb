"""The dataset card: what the hub reads, code that runs, and lines of its owner."""

import json
import re
from pathlib import Path

import mlcroissant
import numpy as np
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard
from support.described import SAID, check_sums, problems
from support.reported import KINDS

import fineshards
from fineshards.cli.cli import main
from fineshards.publishing.facts import loading_snippets
from fineshards.publishing.sums import CARD_NAME, CROISSANT_NAME, SUMS_NAME
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

# Of the libraries that read what is published.
pytestmark = [
    pytest.mark.filterwarnings("ignore:ConjunctiveGraph:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
]


def test_the_hub_reads_the_card(published: Path) -> None:
    card = DatasetCard((published / CARD_NAME).read_text())
    data = card.data.to_dict()
    assert data["license"] == "cc-by-sa-4.0"
    assert data["pretty_name"] == SAID["name"]
    assert data["viewer"] is False
    (config,) = data["configs"]
    for each in config["data_files"]:
        found = {path.name for path in published.glob(each["path"])}
        shards = {path.stem + ".parquet" for path in (published / each["split"]).iterdir()}
        assert found == shards
    assert card.text.count(SAID["description"]) == 1
    totals = json.loads((published / "metadata/manifest.json").read_text())["splits"]
    for split, counts in totals.items():
        numbers = " | ".join(f"{counts[name]:,}" for name in ("shards", "documents", "tokens"))
        assert f"| {split} | {numbers} |" in card.text
    assert str(published) not in card.text


def test_a_name_is_whatever_text_it_is(published: Path) -> None:
    name = 'Hilfe \U0001f600 ist "gut": # \\ä\x07\x7f\x85\x9f\u2028\u2029\ufeff\uffff.'
    fineshards.publish(published, name=name)
    card = DatasetCard((published / CARD_NAME).read_text())
    assert card.data.pretty_name == name
    assert mlcroissant.Dataset(published / CROISSANT_NAME).metadata.name == name
    assert problems(published) == []


def run_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Runs the code of a card in its folder; returns its names."""
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", (folder / CARD_NAME).read_text(), re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        exec(compile(snippet, CARD_NAME, "exec"), names)
    return names


def test_the_code_of_the_card_runs(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_card(published, monkeypatch)
    assert np.array_equal(names["tokens"], np.load("train/train_0000.npy"))
    assert names["batch"].shape[1] == 1025
    assert names["batch"].dtype == np.int64


def test_the_code_of_the_card_of_a_small_dataset_runs(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shorter than 1,024 tokens, and without a train split."""
    pq.write_table(pq.read_table(sample).slice(0, 1), tmp_path / "one.parquet")
    flags = [f"--input={tmp_path}/one.parquet", "--test_fraction=0.9999"]
    assert main(["build", *flags, f"--output={tmp_path}/out"]) == 0
    fineshards.publish(tmp_path / "out")
    names = run_card(tmp_path / "out", monkeypatch)
    assert np.array_equal(names["tokens"], np.load("test/test_0000.npy"))
    assert 1 < names["batch"].shape[1] <= len(names["tokens"]) < 1024


def test_a_card_that_was_changed_is_its_owners(published: Path) -> None:
    card = published / CARD_NAME
    edited = card.read_text() + "Mine, too: Ä.\n"
    card.write_text(edited)
    assert problems(published) == [f"{CARD_NAME} has changed since. Run fineshards publish again."]
    assert check_sums(published) == 1
    assert fineshards.publish(published, name="Another").own_card
    assert card.read_text() == edited
    assert problems(published, sha256=True) == []
    assert check_sums(published) == 0
    card.unlink()
    assert not fineshards.publish(published).own_card
    assert DatasetCard(card.read_text()).data.pretty_name == "Another"
    assert problems(published, sha256=True) == []


def test_a_card_of_someones_own_is_left_alone(dataset: Path) -> None:
    (dataset / CARD_NAME).write_bytes(b"# Mine \xe4\n")
    assert problems(dataset) == []
    assert fineshards.publish(dataset).own_card
    assert (dataset / CARD_NAME).read_bytes() == b"# Mine \xe4\n"
    assert problems(dataset, sha256=True) == []
    assert "README" not in (dataset / SUMS_NAME).read_text()
    fineshards.publish(dataset, license="ODC-By-1.0")
    (dataset / CARD_NAME).unlink()
    fineshards.publish(dataset)
    assert DatasetCard((dataset / CARD_NAME).read_text()).data.license == "odc-by"
    (dataset / CARD_NAME).unlink()
    (problem,) = problems(dataset)
    assert problem.startswith(f"{CARD_NAME} is missing, and {SUMS_NAME} lists it")
    fineshards.publish(dataset, license="https://a.example/terms?of=use")
    data = DatasetCard((dataset / CARD_NAME).read_text()).data
    assert (data.license, data["license_name"]) == ("other", "terms")
    assert data["license_link"] == "https://a.example/terms?of=use"


@pytest.mark.parametrize("kind", ["by document", "first shards are test", "grown and redacted"])
def test_its_code_loads_the_dataset(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    KINDS[kind](tmp_path)
    monkeypatch.chdir(tmp_path / "out")
    latest = Manifest.load_finished(open_storage("."))
    manifests = [
        Manifest.load_finished(open_storage("."), generation)
        for generation in range(1, latest.generation + 1)
    ]
    snippets = [(each, snippet) for each in manifests for snippet in loading_snippets(each).items()]
    capsys.readouterr()  # what a build has printed
    for manifest, (name, code) in snippets:
        found: dict[str, object] = {}
        exec(compile(code, name, "exec"), found)
        if "batch" in found:
            assert found["dataset"].generation == manifest.generation
            dtype, shape = code.partition("# ")[2].partition(";")[0].split(", ", 1)
            assert (str(found["batch"].dtype), f"shape {found['batch'].shape}") == (dtype, shape)
            assert found["inputs"].shape == found["targets"].shape
        else:
            printed = capsys.readouterr().out.strip()
            assert printed == code.rpartition("# ")[2].strip()
