"""Which published files have names of local folders, and how they are kept out."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.described import SAID, problems, sha256
from support.oracle import files_in

import fineshards
from fineshards.cli.cli import main
from fineshards.publishing.file_names import CARD_NAME, PROVENANCE_NAME

PAGE = (ROOT / "docs/formats.md").read_text().partition("\n## Publish\n")[2]


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
