"""Publish: what describes a dataset to others, as their own tools read it."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlcroissant
import numpy as np
import pyarrow.parquet as pq
import pytest
from google.protobuf import json_format
from huggingface_hub import DatasetCard
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from support.chats import build_chats
from support.checkout import ROOT
from support.described import NAMES, SAID, check_sums, described, problems
from support.oracle import files_in

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.publishing import facts
from fineshards.publishing.file_names import CARD_NAME, CROISSANT_NAME, PROVENANCE_NAME, SUMS_NAME
from fineshards.shards.job.generations import Generation
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

# Of the libraries that read what is published.
pytestmark = [
    pytest.mark.filterwarnings("ignore:ConjunctiveGraph:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
]
PAGE = (ROOT / "docs/formats.md").read_text().partition("\n## Publish\n")[2]


@pytest.fixture
def dataset(unpublished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(unpublished, tmp_path / "out")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_it_writes_four_files_and_changes_no_other(unpublished: Path, published: Path) -> None:
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


def test_the_hub_reads_the_card(published: Path) -> None:
    card = DatasetCard((published / CARD_NAME).read_text())
    data = card.data.to_dict()
    assert data["license"] == "cc-by-sa-4.0"
    assert data["pretty_name"] == SAID["name"]
    assert data["size_categories"] == ["n<1K"]
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
    assert "\U0001f600 ist" in (published / CARD_NAME).read_text().splitlines()[2]
    assert mlcroissant.Dataset(published / CROISSANT_NAME).metadata.name == name
    assert problems(published) == []


def run_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Runs the code of a card in its folder; returns its names."""
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", (folder / CARD_NAME).read_text(), re.DOTALL)
    assert len(snippets) == 3
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", folder.parent / "cache")
    for snippet in snippets:
        exec(compile(snippet, CARD_NAME, "exec"), names)
    return names


def test_the_code_of_the_card_runs(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_card(published, monkeypatch)
    assert np.array_equal(names["tokens"], np.load("train/train_0000.npy"))
    assert names["batch"].shape[1] == 1025
    assert names["batch"].dtype == names["tokens"].dtype == np.uint32
    assert names["documents"]["shard"][:] == shards_of_rows(published)
    assert "Shard 0 of train is `train/train_0000.npy`." in (published / CARD_NAME).read_text()


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
    assert names["documents"]["shard"][:] == [0]


def test_the_provenance_is_an_in_toto_statement(unpublished: Path, published: Path) -> None:
    content = (published / PROVENANCE_NAME).read_text()
    statement = json_format.Parse(content, statement_pb2.Statement())
    Statement.copy_from_pb(statement).validate()
    subjects = {each.name: each.digest["sha256"] for each in statement.subject}
    assert subjects == {name: sha256(unpublished / name) for name in files_in(unpublished)}
    found = json_format.ParseDict(json.loads(content)["predicate"], provenance_pb2.Provenance())
    settings = json.loads((unpublished / "metadata/manifest.json").read_text())["settings"]
    parameters = json_format.MessageToDict(found.build_definition.external_parameters)
    assert parameters["settings"]["shard_tokens"] == settings["shard_tokens"] == 20_000
    *_, source, tokenizer = found.build_definition.resolved_dependencies
    assert source.uri == (unpublished.parent / "help.parquet").as_uri()
    assert tokenizer.digest["sha256"] == sha256(unpublished / "metadata/vocabulary.tiktoken")
    assert found.run_details.builder.version["numpy"] == np.__version__


def test_the_page_names_all_files_with_names_of_local_folders(
    tmp_path: Path, in_process: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    secret, out = tmp_path / "secret-folder", tmp_path / "out"
    secret.mkdir()
    for command, name in (("build", "a"), ("append", "b")):
        (secret / f"{name}.jsonl").write_text('{"id": "1", "text": "A text."}\n{\n')
        flags = [f"--input={secret}/{name}.jsonl", "--max_bad_rows=1"]
        flags += [f"--output={out}", "--test_fraction=0"] if command == "build" else [str(out)]
        assert in_process(command, *flags).returncode == 0
    done = fineshards.publish(out, **SAID)
    listed = PAGE.partition("Names of local folders are published")[2].partition("\n### ")[0]
    patterns = re.findall(r"`(metadata/[^`]+)`", listed)
    named = {path for pattern in patterns for path in out.glob(pattern)}
    assert all(list(out.glob(pattern)) for pattern in patterns)
    found = {out / name for name, content in files_in(out).items() if b"secret-folder" in content}
    assert found == named == {path for each in done.with_folders for path in out.glob(each)}
    provenance = out / PROVENANCE_NAME
    for no_paths in (True, None):
        done = fineshards.publish(out, no_paths=no_paths)
        assert {path for each in done.with_folders for path in out.glob(each)} == named - {
            provenance
        }
        assert b"secret-folder" not in provenance.read_bytes()
        assert problems(out) == []
    dependencies = json.loads(provenance.read_bytes())["predicate"]["buildDefinition"][
        "resolvedDependencies"
    ]
    assert [each["uri"] for each in dependencies[:-1]] == [
        f"urn:fineshards:source:folder-1/{name}.jsonl" for name in "ab"
    ]
    fineshards.publish(out, no_paths=False)
    assert b"secret-folder" in provenance.read_bytes()


@pytest.mark.parametrize("flag", ["--dataset={}", "--input=local://{}/a.jsonl"])
def test_however_a_local_folder_is_given_the_same_files_have_its_name(
    tmp_path: Path, in_process: Callable[..., subprocess.CompletedProcess[str]], flag: str
) -> None:
    secret, out = tmp_path / "secret-folder", tmp_path / "out"
    secret.mkdir()
    (secret / "a.jsonl").write_text('{"id": "1", "text": "A text."}\n')
    flags = [flag.format(secret), f"--output={out}", "--test_fraction=0"]
    assert in_process("build", *flags).returncode == 0
    done = fineshards.publish(out, no_paths=True)
    found = {out / name for name, content in files_in(out).items() if b"secret-folder" in content}
    assert found == {path for each in done.with_folders for path in out.glob(each)}
    assert PROVENANCE_NAME not in done.with_folders
    assert "Input: `a.jsonl`." in (out / CARD_NAME).read_text()
    assert problems(out) == []


def test_a_link_keeps_the_name_of_a_folder_out_of_all_files(
    tmp_path: Path, in_process: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    secret = tmp_path / "secret-folder"
    secret.mkdir()
    (secret / "a.jsonl").write_text('{"id": "1", "text": "A text."}\n')
    (tmp_path / "link").symlink_to(secret)
    for folder, name in ((secret, "named"), (tmp_path / "link", "linked")):
        flags = [f"--input={folder}/a.jsonl", f"--output={tmp_path}/{name}", "--test_fraction=0"]
        assert in_process("build", *flags).returncode == 0
    fineshards.publish(tmp_path / "linked")
    contents = files_in(tmp_path / "linked")
    assert not [name for name, content in contents.items() if b"secret-folder" in content]
    shards = [sha256(tmp_path / name / "train/train_0000.npy") for name in ("named", "linked")]
    assert shards[0] == shards[1]


def test_no_folder_of_a_recipe_is_in_the_provenance(
    tmp_path: Path, in_process: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    folder, out = tmp_path / "secret-folder", tmp_path / "out"
    for place in ("one", "two"):
        (folder / place).mkdir(parents=True)
        (folder / place / "a.jsonl").write_text(f'{{"text": "{place} {place} {place}"}}\n')
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f"""steps = [{{use = "where", sql = "text <> 'a/b'"}},
        {{use = "seen_in", files = ["{folder}/two/a.jsonl"]}},
        {{use = "decontaminate", files = ["{folder}/two/*.jsonl"], ngram = 3}}]"""
    )
    flags = [f"--input={folder}/one/a.jsonl", f"--recipe={recipe}", "--test_fraction=0"]
    assert in_process("build", *flags, f"--output={out}").returncode == 0
    assert main(["publish", str(out), "--no_paths"]) == 0
    content = (out / PROVENANCE_NAME).read_bytes()
    assert b"secret-folder" not in content
    where, seen_in, decontaminate = json.loads(content)["predicate"]["buildDefinition"][
        "externalParameters"
    ]["settings"]["recipe"]["steps"]
    assert where["parameters"]["sql"] == "text <> 'a/b'"
    assert seen_in["parameters"]["files"] == ["folder-2/a.jsonl"]
    assert decontaminate["parameters"]["files"] == ["folder-2/*.jsonl"]
    assert "folder-2/a.jsonl" in decontaminate["pins"]
    assert problems(out) == []


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


def test_an_owners_lines_of_the_card_are_kept(published: Path) -> None:
    card = published / CARD_NAME
    text = card.read_text()
    edited = text.replace("\n---\n", "\ntags_of_mine: [a]\n---\nMine.\n", 1) + "Mine, too: Ä.\n"
    card.write_text(edited)
    assert problems(published) == []
    (problem,) = problems(published, sha256=True)
    assert problem.startswith(f"{CARD_NAME} is another one than {SUMS_NAME} lists")
    assert check_sums(published) == 1
    fineshards.publish(published, name="Another")
    assert problems(published, sha256=True) == []
    assert check_sums(published) == 0
    now = card.read_text()
    assert now == edited.replace(SAID["name"], "Another")
    card.write_text(now.replace("| train |", "| training |"))
    (problem,) = problems(published)
    assert problem.startswith(f"the generated part of {CARD_NAME} is not what follows")
    fineshards.publish(published)
    assert card.read_text() == now


def test_a_card_keeps_the_ends_of_its_lines(published: Path) -> None:
    card = published / CARD_NAME
    windows = card.read_bytes().replace(b"\n", b"\r\n")
    card.write_bytes(windows)
    assert problems(published) == []
    fineshards.publish(published, name="Another")
    assert card.read_bytes() == windows.replace(SAID["name"].encode(), b"Another")
    card.write_bytes(windows.replace(b"| train |", b"| training |"))
    assert "generated part" in problems(published)[0]


def test_a_card_that_is_missing_is_written_again(published: Path) -> None:
    content = (published / CARD_NAME).read_bytes()
    (published / CARD_NAME).unlink()
    (problem,) = problems(published)
    assert problem.startswith(f"{CARD_NAME} is missing, and {SUMS_NAME} lists it")
    fineshards.publish(published)
    assert (published / CARD_NAME).read_bytes() == content


def test_a_card_of_someones_own_is_left_alone(dataset: Path) -> None:
    (dataset / CARD_NAME).write_bytes(b"# Mine \xe4\n")
    assert problems(dataset) == []
    assert fineshards.publish(dataset).own_card
    assert (dataset / CARD_NAME).read_bytes() == b"# Mine \xe4\n"
    assert problems(dataset, sha256=True) == []


def test_overwrite_deletes_what_is_published_but_no_ones_own_lines(
    published: Path, unpublished: Path
) -> None:
    build = ["build", f"--input={unpublished.parent}/help.parquet", f"--output={published}"]
    (published / "metadata/provenance.json.sig").touch()
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
    lines = card.read_text().splitlines()
    assert [line for line in lines if line not in ("---", "")] == [
        "# Generated by fineshards publish:",
        "# End of what is generated.",
        "<!-- Generated by fineshards publish: -->",
        "<!-- End of what is generated. -->",
        "Mine.",
    ]
    card.write_text(full)  # of the dataset that is no more
    (problem,) = problems(published)
    assert f"{CROISSANT_NAME} is missing" in problem
    card.write_text("\n".join([*lines, ""]))
    fineshards.publish(published)
    assert problems(published) == []
    assert card.read_text().endswith("Mine.\n")


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


def test_a_folder_in_the_place_of_a_published_file_is_named(dataset: Path) -> None:
    (dataset / CARD_NAME).mkdir()
    sentence = f"{dataset / CARD_NAME} is a folder, not a file. Move it away, and publish again."
    with pytest.raises(OutputError, match=re.escape(sentence)):
        fineshards.publish(dataset)


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
        ("--description=<!-- End of what is generated. -->", "begins a comment"),
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
    (dataset / "metadata/generations").mkdir()
    shutil.copy(dataset / "metadata/job.json", dataset / "metadata/generations/0002.job.json")
    with pytest.raises(OutputError, match="generation 2 is being made"):
        fineshards.publish(dataset)


def test_the_page_runs_as_written(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its commands in order, but for those of the hub; then its programs."""
    text = re.sub(r"```python\n.*?```", "", PAGE, flags=re.DOTALL).replace("\\\n", "")
    lines = re.findall(r"^    ((?!hf ).+)$", text, re.MULTILINE)
    assert len(lines) == 9
    monkeypatch.chdir(tmp_path)
    for line in lines:
        command, *arguments = shlex.split(line)
        if command == "fineshards":
            assert main(arguments) == 0, line
        else:
            done = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
            assert done.returncode == 0, (line, done.stderr)
    statement = dataset / PROVENANCE_NAME
    statement.write_bytes(statement.read_bytes() + b" ")
    (check,) = (line for line in lines if "-Y verify" in line)
    assert subprocess.run(["bash", "-c", check], capture_output=True, check=False).returncode != 0
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    names: dict[str, object] = {}
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, "formats.md", "exec"), names)
    rows = [pq.read_table(table).num_rows for table in dataset.glob("metadata/documents/train*")]
    assert names["documents"].num_rows == sum(rows)
    assert names["documents"]["shard"][:] == shards_of_rows(dataset)


def shards_of_rows(dataset: Path) -> list[int]:
    """The number of the shard of each row of the tables of train."""
    tables = sorted(dataset.glob("metadata/documents/train_*.parquet"))
    numbers = [
        [int(table.stem.partition("_")[2])] * pq.read_table(table).num_rows for table in tables
    ]
    assert len(numbers) > 1
    return [number for each in numbers for number in each]


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


def test_a_dataset_of_the_hub_is_named_with_its_commit(unpublished: Path) -> None:
    manifest = Manifest.load_finished(open_storage(str(unpublished)))
    names = ("dataset", "config", "split", "commit")
    origin = dict(zip(names, ("Owner/web", "10BT", "train", "c0ffee"), strict=True))
    later = {f"{name} of generation 2": value for name, value in origin.items()}
    later["commit of generation 2"] = "decaf"
    first = replace(manifest.files[0], path="hf://datasets/Owner/web@c0ffee/a.parquet")
    more = replace(first, index=1, path="hf://datasets/Owner/web@decaf/a.parquet")
    grown = replace(
        manifest,
        origin=(*origin.items(), *later.items()),
        files=(first, more),
        generations=(Generation(1), Generation(1)),
    )
    assert facts.default_name(grown) == "web-10BT-cl100k_base"
    assert facts.inputs(grown) == [
        "Owner/web, config 10BT, split train, commit c0ffee",
        "Owner/web, config 10BT, split train, commit decaf",
    ]
