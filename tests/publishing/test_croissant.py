"""The Croissant file, as mlcroissant reads it."""

import logging
from pathlib import Path

import mlcroissant
import pyarrow.parquet as pq
import pytest
from support.chats import build_chats
from support.described import SAID, sha256

from fineshards.cli.cli import main
from fineshards.publishing.sums import CROISSANT_NAME, SUMS_NAME

# Of the libraries that read what is published.
pytestmark = [
    pytest.mark.filterwarnings("ignore:ConjunctiveGraph:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
]


def test_mlcroissant_finds_nothing_to_say(
    published: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = mlcroissant.Dataset(published / CROISSANT_NAME).metadata
    assert caplog.messages == []
    assert (found.ctx.issues.errors, found.ctx.issues.warnings) == (set(), set())
    assert found.ctx.conforms_to.value == "http://mlcommons.org/croissant/1.1"
    assert (found.name, found.version) == (SAID["name"], "1.0.0")
    assert found.description.startswith(SAID["description"])
    assert found.license == ["https://spdx.org/licenses/CC-BY-SA-4.0"]
    assert [creator.name for creator in found.creators] == ["Ada Lovelace"]
    assert (found.url, found.cite_as) == (SAID["url"], SAID["citation"])
    assert f"{found.date_published:%Y-%m-%d}" == SAID["date_published"]
    assert {"de", "en"} < set(found.in_language)
    shards = [*(published / "test").iterdir(), *(published / "train").iterdir()]
    more = ["metadata/manifest.json", "metadata/vocabulary.tiktoken", SUMS_NAME]
    files = {(published / "metadata" / f.content_url).resolve(): f for f in found.file_objects}
    assert set(files) == {path.resolve() for path in [*shards, *map(published.joinpath, more)]}
    for path, file in files.items():
        assert file.sha256 == sha256(path)
        assert file.content_size == f"{path.stat().st_size} B"


def test_mlcroissant_reads_the_documents(published: Path) -> None:
    dataset = mlcroissant.Dataset(published / CROISSANT_NAME)
    records = list(dataset.records("documents"))
    tables = sorted((published / "metadata/documents").iterdir())
    assert len(tables) > 3
    expected = [
        {"split": table.name.partition("_")[0], "shard": table.stem, **row}
        for table in tables
        for row in pq.read_table(table).to_pylist()
    ]
    assert [
        {
            name.removeprefix("documents/"): value.decode() if isinstance(value, bytes) else value
            for name, value in record.items()
        }
        for record in records
    ] == expected
    splits = [record["splits/name"] for record in dataset.records("splits")]
    assert splits == ["test", "train"]


def test_mlcroissant_reads_what_is_learned_of_conversations(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = build_chats(tmp_path, 20)
    assert main(["publish", str(folder), "--creator=Debian"]) == 0
    with caplog.at_level(logging.WARNING):
        dataset = mlcroissant.Dataset(folder / CROISSANT_NAME)
    assert dataset.metadata.ctx.issues.errors == set()
    expected = [
        row["learned"]
        for table in sorted((folder / "metadata/documents").iterdir())
        for row in pq.read_table(table).to_pylist()
    ]
    records = dataset.records("documents")
    assert [[*record["documents/learned"]] for record in records] == expected
    about = {each.name: each.description for each in dataset.metadata.file_objects}
    assert [*about.values()].count("") == 0
    masks = [each for each in about.values() if each.startswith("The loss mask of train/")]
    assert len(masks) == len([*(folder / "train").iterdir()])
