"""Which published files have names of folders, and how they are kept out."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace
from support.checkout import ROOT
from support.described import NAMES, SAID, problems, sha256
from support.oracle import files_in

import fineshards
from fineshards.publishing import facts
from fineshards.publishing.sums import CARD_NAME
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import Generation
from fineshards.storage.open import open_storage

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
    fineshards.publish(out, **SAID)
    listed = PAGE.partition("Names of local folders are in")[2].partition("\n### ")[0]
    patterns = re.findall(r"`(metadata/[^`]+)`", listed)
    named = {path for pattern in patterns for path in out.glob(pattern)}
    assert all(list(out.glob(pattern)) for pattern in patterns)
    found = {out / name for name, content in files_in(out).items() if b"secret-folder" in content}
    assert found == named
    assert not found & {out / name for name in NAMES}
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
    assert "Input: `a.jsonl`." in (tmp_path / "linked" / CARD_NAME).read_text()


def test_inputs_are_named_as_a_dataset_or_by_the_place_of_their_first_file(
    unpublished: Path,
) -> None:
    manifest = Manifest.load_finished(open_storage(str(unpublished)))
    first, paths = manifest.files[0], ("gs://bucket/folder/a.txt", "s3://bucket/b.txt")
    files = tuple(replace(first, index=n, root="", name=path) for n, path in enumerate(paths))
    reports = tuple(replace(manifest.reports[0], file=n) for n in range(2))
    manifest = replace(manifest, files=files, reports=reports, generations=(Generation(2),))
    assert facts.inputs(manifest) == ["2 files from gs://bucket/folder/a.txt on"]
    names = ("dataset", "config", "split", "commit")
    origin = dict(zip(names, ("Owner/web", "10BT", "train", "c0ffee"), strict=True))
    later = {f"{name} of generation 2": value for name, value in origin.items()}
    later["commit of generation 2"] = "decaf"
    paths = ("hf://datasets/Owner/web@c0ffee/a", "hf://datasets/Owner/web@decaf/a")
    files = tuple(replace(first, index=n, root="", name=path) for n, path in enumerate(paths))
    generations = (Generation(1), Generation(1))
    grown = replace(manifest, origin=origin | later, files=files, generations=generations)
    assert facts.default_name(grown) == "web-10BT-cl100k_base"
    assert facts.inputs(grown) == [
        "Owner/web, config 10BT, split train, commit c0ffee",
        "Owner/web, config 10BT, split train, commit decaf",
    ]
