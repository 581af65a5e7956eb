"""Publish: what describes a dataset to others, as their own tools read it."""

import json
import logging
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import mlcroissant
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard
from support.checkout import ROOT
from support.described import NAMES, SAID, check_sums, described, problems, shards_of_rows
from support.oracle import files_in

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.publishing.sums import CARD_NAME, CROISSANT_NAME, SUMS_NAME
from fineshards.shards.record import sealed
from fineshards.storage.open import open_storage

# Of the libraries that read what is published.
pytestmark = [
    pytest.mark.filterwarnings("ignore:ConjunctiveGraph:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
]
PAGE = (ROOT / "docs/formats.md").read_text().partition("\n## Publish\n")[2]


def test_it_writes_three_files_and_changes_no_other(unpublished: Path, published: Path) -> None:
    found = files_in(published)
    new = found.keys() - files_in(unpublished).keys()
    assert new == NAMES
    assert {name: found[name] for name in found.keys() - new} == files_in(unpublished)
    assert [path.name for path in published.iterdir() if path.name == "checkpoints"] == []
    assert problems(published) == problems(published, sha256=True) == []


def test_sha256sum_checks_every_file_of_the_dataset(unpublished: Path, published: Path) -> None:
    assert check_sums(published) == 0
    listed = [line.split("  ")[1] for line in (published / SUMS_NAME).read_text().splitlines()]
    assert listed == sorted([CARD_NAME, *files_in(unpublished)])
    shard = published / "train/train_0000.npy"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert check_sums(published) == 1


def test_what_no_one_said_is_named(
    dataset: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["publish", str(dataset), "--creator=Debian", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["missing"] == ["license", "url", "date_published"]
    assert main(["publish", str(dataset)]) == 0
    assert capsys.readouterr().out.endswith("can say: --license, --url, --date_published\n")
    with caplog.at_level(logging.WARNING):
        found = mlcroissant.Dataset(dataset / CROISSANT_NAME).metadata
    assert [type(creator).__name__ for creator in found.creators] == ["Organization"]
    warned = re.findall(r"https://schema.org/(\w+)|/(citeAs)", "".join(found.ctx.issues.warnings))
    assert {"".join(names) for names in warned} <= {"citeAs", "datePublished", "license"}
    assert found.ctx.issues.errors == set()
    assert problems(dataset) == []


def test_the_same_call_writes_the_same_bytes(
    published: Path, tmp_path: Path, unpublished: Path
) -> None:
    first = described(published)
    fineshards.publish(published)
    assert described(published) == first
    elsewhere = shutil.copytree(unpublished, tmp_path / "another/place")
    fineshards.publish(elsewhere, **SAID)
    assert described(elsewhere) == first


def test_what_was_said_is_remembered_and_can_be_taken_back(published: Path) -> None:
    before = described(published)
    fineshards.publish(published, license="", name="Other", description="")
    now = json.loads((published / CROISSANT_NAME).read_text())
    assert "license" not in now
    assert (now["name"], now["creator"]["name"]) == ("Other", "Ada Lovelace")
    assert "license" not in DatasetCard((published / CARD_NAME).read_text()).data.to_dict()
    assert problems(published) == []
    changed = {name: SAID[name] for name in ("license", "name", "description")}
    fineshards.publish(published, **changed)
    assert described(published) == before


def test_a_file_without_the_owners_words_gives_its_fields(published: Path) -> None:
    before = described(published)
    path = published / CROISSANT_NAME
    fields = json.loads(path.read_text())
    del fields["ownerSays"], fields["crc32c"]
    path.write_bytes(sealed(json.dumps(fields).encode()) + b"\n")
    fineshards.publish(published)
    assert described(published) == before


def test_overwrite_deletes_what_is_published_but_no_ones_own_card(
    published: Path, unpublished: Path
) -> None:
    build = ["build", f"--input={unpublished.parent}/help.parquet", f"--output={published}"]
    assert main([*build, "--test_shards=0", "--shuffle_seed=3", "--overwrite"]) == 0
    assert files_in(published).keys().isdisjoint(NAMES)
    fineshards.publish(published)
    dataset = mlcroissant.Dataset(published / CROISSANT_NAME)
    hashes = {record["documents/text_hash"] for record in dataset.records("documents")}
    (table,) = (published / "metadata/documents").iterdir()
    assert hashes == {*pq.read_table(table)["text_hash"].to_pylist()}
    assert [record["splits/name"] for record in dataset.records("splits")] == ["train"]
    card = published / CARD_NAME
    full = card.read_text()
    assert "- The documents are shuffled with the seed 3.\n" in full
    card.write_text(full + "Mine.\n")
    assert main([*build, "--shard_tokens=40k", "--overwrite"]) == 0
    assert problems(published) == []
    assert card.read_text() == full + "Mine.\n"
    card.write_text(full)  # of the dataset that is no more
    (problem,) = problems(published)
    assert f"{CROISSANT_NAME} is missing" in problem
    fineshards.publish(published)
    assert problems(published) == []


def test_what_a_killed_process_has_left_is_deleted(published: Path) -> None:
    left = published / "checkpoints/unfinished/README.md.0123456789abcdef"
    for command in (["publish", str(published)], ["repair", str(published)]):
        left.parent.mkdir(parents=True)
        left.write_text("half")
        if command[0] == "repair":
            (published / "train/train_0001.npy").unlink()
        assert main(command) == 0
        assert not (published / "checkpoints").exists()
    # Checkpoints that --keep_checkpoints has kept stay.
    kept = published / "checkpoints" / ("0" * 64) / "plan.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    left.parent.mkdir()
    left.write_text("half")
    fineshards.publish(published)
    assert kept.exists()
    assert not left.exists()


def test_a_damaged_dataset_is_not_published(dataset: Path) -> None:
    table = dataset / "metadata/documents/train_0000.parquet"
    content = bytearray(table.read_bytes())
    content[100] ^= 1
    table.write_bytes(content)
    with pytest.raises(OutputError, match=r"train_0000\.parquet is not what the manifest says"):
        fineshards.publish(dataset)
    table.unlink()
    with pytest.raises(OutputError, match=r"is missing\. Make it again with fineshards repair\.$"):
        fineshards.publish(dataset)
    assert not (dataset / SUMS_NAME).exists()


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--license=CC-BY-5.0", "not an SPDX identifier"),
        ("--license=MIT OR Apache-2.0", "not an SPDX identifier"),
        ("--license=LicenseRef-Own", "not an SPDX identifier"),
        ("--license=MIT+", "not an SPDX identifier"),
        ("--name=bad\udcff", "--name: it is not valid UTF-8"),
        ("--citation=\ud83d", "--citation: it is not valid UTF-8"),
        ("--url=example.org", "not the URL of a page"),
        ('--url=https://a>b"<script>', "not the URL of a page"),
        ("--date_published=30.11.2026", "not a day"),
        ("--date_published=2026-02-30", "not a day"),
        ("--creator=person:", "no name"),
        ("--name=a\nb", "one line"),
        ("--description=<!-- End. -->", "begins a comment"),
    ],
)
def test_what_cannot_be_published_is_refused(
    dataset: Path, capsys: pytest.CaptureFixture[str], flag: str, says: str
) -> None:
    assert main(["publish", str(dataset), flag]) == 2
    message = capsys.readouterr().err
    assert says in message
    assert len(message.strip().splitlines()) == 1
    assert not (dataset / CROISSANT_NAME).exists()


def test_only_a_finished_dataset_is_published(dataset: Path, tmp_path: Path) -> None:
    for command in (fineshards.publish, lambda folder: fineshards.verify(folder, sha256=True)):
        with pytest.raises(OutputError, match="holds no finished dataset"):
            command(tmp_path)
    shutil.copy(dataset / "metadata/job.json", dataset / "metadata/generations/0002.job.json")
    with pytest.raises(OutputError, match="generation 2 is being made"):
        fineshards.publish(dataset)


def test_the_page_runs_as_written(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its commands in order, but for those of the hub; then its programs."""
    text = re.sub(r"```python\n.*?```", "", PAGE, flags=re.DOTALL).replace("\\\n", "")
    lines = re.findall(r"^    ((?!hf ).+)$", text, re.MULTILINE)
    assert len(lines) == 4
    monkeypatch.chdir(tmp_path)
    for line in lines:
        command, *arguments = shlex.split(line)
        if command == "fineshards":
            assert main(arguments) == 0, line
        else:
            done = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
            assert done.returncode == 0, (line, done.stderr)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    names: dict[str, object] = {}
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, "formats.md", "exec"), names)
    rows = [pq.read_table(table).num_rows for table in dataset.glob("metadata/documents/train*")]
    assert names["documents"].num_rows == sum(rows)
    assert names["documents"]["shard"][:] == shards_of_rows(dataset)


@pytest.mark.cloud
def test_stores_hold_what_a_disk_holds(either, published: Path, unpublished: Path) -> None:
    storage = open_storage(f"{either.scheme}://data/out")
    for name, content in files_in(unpublished).items():
        storage.write(name, content)
    for _ in range(2):
        fineshards.publish(storage.root, **SAID)
        assert {name: storage.read(name) for name in described(published)} == described(published)
    fineshards.publish(storage.root, name="Another")
    assert fineshards.verify(storage.root, sha256=True).problems == []
