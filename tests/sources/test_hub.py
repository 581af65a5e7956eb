"""Datasets by name, resolved and read over HTTP from a hub server on this machine."""

import gzip
import hashlib
import json
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fresh_interpreter import run_program
from support.hub_client import (
    ROOT,
    find,
    fineshards,
    read_column,
    read_digest,
    read_texts,
    resolve,
    run,
)
from support.hub_server import HubServer, Repository
from support.oracle import oracle, shards_in

README = """---
configs:
- config_name: sample
  data_files:
  - split: train
    path: sample/*.parquet
  - split: test
    path: held_out/*.parquet
- config_name: full
  data_files:
  - split: train
    path:
    - full/2024-10/*.parquet
    - full/2013-20/*.parquet
---
# Text
"""
FULL = [
    "full/2024-10/000_00000.parquet",
    "full/2024-10/000_00001.parquet",
    "full/2013-20/000_00000.parquet",
]


@pytest.fixture(scope="module")
def documents() -> pa.Table:
    return pq.read_table(ROOT / "samples/debian_text.parquet")


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, documents: pa.Table) -> Path:
    """A dataset with several configs, whose files all have different documents."""
    folder = tmp_path / "repository"
    paths = ["sample/a.parquet", "sample/b.parquet", "held_out/a.parquet", *FULL]
    for index, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(documents.slice(index * 10, 10), folder / path)
    (folder / "README.md").write_text(README)
    return folder


def describe(url: str, path: Path, index: int) -> dict[str, object]:
    content = path.read_bytes()
    return {
        "index": index,
        "name": url,
        "size": len(content),
        "identity": f"etag:{hashlib.sha256(content).hexdigest()}",
        "format": "parquet",
        "compression": "none",
    }


def test_files_of_a_config_keep_its_order_with_size_and_hash(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    commit = hub.push("acme/text", folder)
    full, held_out = run(
        hub.url,
        tmp_path,
        resolve("acme/text", "full"),
        resolve("acme/text", "sample", split="test"),
    )
    at_commit = f"hf://datasets/acme/text@{commit}"
    assert full == {
        "files": [describe(f"{at_commit}/{p}", folder / p, i) for i, p in enumerate(FULL)],
        "config": "full",
        "commit": commit,
        "splits": ["train"],
        "warning": "",
    }
    assert [file["name"] for file in held_out["files"]] == [f"{at_commit}/held_out/a.parquet"]


def test_a_split_on_the_hub_is_the_test_split(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    commit, output = hub.push("acme/text", folder), tmp_path / "out"
    command = ["build", "--dataset=acme/text", "--dataset_config=sample", f"--output={output}"]
    done = fineshards(hub.url, tmp_path, *command, "--dataset_test_split=test")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((output / "metadata/manifest.json").read_text())
    assert (manifest["origin"]["commit"], manifest["origin"]["test_split"]) == (commit, "test")
    root, of_commit = manifest["generations"][0]["root"], f"@{commit}/"
    names = [(root + file["name"]).partition(of_commit)[2] for file in manifest["files"]]
    assert names == ["held_out/a.parquet", "sample/a.parquet", "sample/b.parquet"]
    assert [file.get("test", False) for file in manifest["files"]] == [True, False, False]
    assert manifest["splits"]["test"]["documents"] == 10


def test_only_the_endpoint_is_contacted_and_no_data_file_is_downloaded(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    hub.push("acme/text", folder)
    run(hub.url, tmp_path, resolve("acme/text", "full"))
    assert hub.paths("CONNECT", "") == []
    assert [path for path in hub.paths("GET", "") if not path.startswith("/")] == []
    assert hub.paths("GET", ".parquet") == hub.paths("HEAD", ".parquet") == []


def test_a_branch_is_pinned_to_its_commit(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    hub.push("acme/text", folder)
    commit = hub.push("acme/text", folder / "full", branch="refs/convert/parquet")
    (answer,) = run(hub.url, tmp_path, resolve("acme/text", revision="refs/convert/parquet"))
    assert (answer["config"], answer["commit"]) == ("default", commit)
    assert all(f"@{commit}/" in file["name"] for file in answer["files"])


def test_requests_do_not_grow_with_the_number_of_files(hub: HubServer, tmp_path: Path) -> None:
    for name, count in [("acme/few", 2), ("acme/many", 700)]:
        folder = tmp_path / "trees" / name / "data"
        folder.mkdir(parents=True)
        for index in range(count):
            (folder / f"{index:04}.jsonl").write_text(f'{{"text": "{index}"}}\n')
        hub.push(name, folder.parent)
    few, many = run(hub.url, tmp_path, resolve("acme/few"), resolve("acme/many"))
    assert (len(few["files"]), len(many["files"])) == (2, 700)
    assert [file["index"] for file in many["files"]] == list(range(700))
    for_many = len([r for r in hub.requests if "acme/many" in r.path])
    assert for_many == len([r for r in hub.requests if "acme/few" in r.path])


def test_a_listing_in_several_pages_is_complete(tmp_path: Path, folder: Path) -> None:
    with HubServer(page_size=2) as hub:
        commit = hub.push("acme/text", folder / "full")
        (answer,) = run(hub.url, tmp_path, resolve("acme/text"))
    assert [file["name"] for file in answer["files"]] == [
        f"hf://datasets/acme/text@{commit}/{path.removeprefix('full/')}" for path in sorted(FULL)
    ]


def test_one_column_of_one_row_group_is_read_by_ranges(
    hub: HubServer, tmp_path: Path, documents: pa.Table
) -> None:
    path = tmp_path / "large" / "text.parquet"
    path.parent.mkdir()
    big = pa.concat_tables([documents] * 3)
    pq.write_table(big, path, row_group_size=100, use_dictionary=False)
    commit = hub.push("acme/large", path.parent)
    (answer,) = run(hub.url, tmp_path, resolve("acme/large"))
    hub.requests.clear()
    (text,) = run(hub.url, tmp_path, read_column(answer["files"][0], 5, "text"))

    assert text == big["text"][500:600].to_pylist()
    served = [request for request in hub.requests if request.path.startswith("/lfs/")]
    metadata = pq.ParquetFile(path).metadata
    chunk = metadata.row_group(5).column(0).total_compressed_size
    assert all(request.range and request.status == 206 for request in served)
    # The last 64 KiB as a guess at the footer, the footer, one column chunk.
    expected = [1 << 16, metadata.serialized_size, chunk]
    assert [request.sent for request in served] == expected
    assert sum(expected) < path.stat().st_size / 10
    assert all(commit in path for path in hub.paths("GET", "/resolve/"))


def test_an_outage_that_the_library_gives_up_on_is_survived(hub: HubServer, tmp_path: Path) -> None:
    """The library makes six attempts, in half a minute. The hub fails longer, then comes back."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.jsonl").write_bytes(b'{"text": "a"}\n' * 1000)
    hub.push("acme/text", tmp_path / "text")
    (files,) = run(hub.url, tmp_path, find("hf://datasets/acme/text/a.jsonl"))
    hub.outage = 20
    (texts,) = run(hub.url, tmp_path, read_texts(files[0]), HURRY="100")
    assert hub.outage == 0
    assert texts == ["a"] * 1000


def test_an_outage_that_stays_is_not_called_damage(hub: HubServer, tmp_path: Path) -> None:
    texts = tmp_path / "text"
    texts.mkdir()
    (texts / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 1000))
    pq.write_table(pa.table({"text": ["a"] * 1000}), texts / "a.parquet")
    hub.push("acme/text", texts)
    (files,) = run(hub.url, tmp_path, find("hf://datasets/acme/text/*"))
    hub.outage = 10_000
    steps = [read_texts(file) for file in files]
    for answer in run(hub.url, tmp_path, *steps, HURRY="100", PATIENCE="1"):
        assert answer["error"] == "UnavailableError"
        assert "cannot be read: the server answered 503. Run the same command" in answer["message"]


@pytest.mark.long
def test_compressed_lines_are_read_ahead_in_few_requests(hub: HubServer, tmp_path: Path) -> None:
    path = tmp_path / "lines" / "part [1] é.jsonl.gz"
    path.parent.mkdir()
    lines = "".join(json.dumps({"text": str(n) * n}) + "\n" for n in range(900))
    content = gzip.compress(lines.encode(), compresslevel=0)
    path.write_bytes(content)
    hub.push("acme/lines", path.parent)
    (answer,) = run(hub.url, tmp_path, resolve("acme/lines"))
    hub.requests.clear()
    (digest,) = run(hub.url, tmp_path, read_digest(answer["files"][0]))
    assert digest == hashlib.sha256(content).hexdigest()
    assert len(hub.paths("GET", "/lfs/")) == 1 < len(content) >> 16


def test_a_local_folder_resolves_to_the_same_files_as_the_hub(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    hub.push("acme/text", folder)
    remote, local, relative = run(
        hub.url,
        tmp_path,
        resolve("acme/text", "full"),
        resolve(str(folder), "full"),
        resolve("repository", "full"),
    )
    assert [file["name"] for file in local["files"]] == [str(folder / path) for path in FULL]
    assert [file["size"] for file in local["files"]] == [f["size"] for f in remote["files"]]
    assert all(file["identity"].startswith("mtime:") for file in local["files"])
    assert (local["config"], local["commit"]) == ("full", None)
    assert relative == local


def test_a_folder_named_like_a_format_is_still_a_folder(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "sample", tmp_path / "parquet")
    (answer,) = run(hub.url, tmp_path, resolve("parquet"))
    assert [Path(file["name"]).name for file in answer["files"]] == ["a.parquet", "b.parquet"]


@pytest.mark.long
def test_config_and_split_errors_list_the_choices(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    hub.push("acme/text", folder)
    for name in ("acme/text", str(folder)):
        unknown, several, split, sliced = run(
            hub.url,
            tmp_path,
            resolve(name, "tiny"),
            resolve(name),
            resolve(name, "sample", split="validation"),
            resolve(name, "sample", split="train[:10%]"),
        )
        assert unknown["error"] == several["error"] == split["error"] == sliced["error"]
        assert sliced["error"] == "UsageError"
        for answer, said in [(unknown, "'tiny' not found"), (several, "Config name is missing")]:
            assert said in answer["message"]
            assert "['sample', 'full']" in answer["message"]
            assert "Choose another one with --dataset_config" in answer["message"]
        assert "no files in split 'validation'" in split["message"]
        assert "--dataset_split: train, test." in split["message"]
        assert "train[:10%]: slices and combinations of splits are not" in sliced["message"]


@pytest.mark.long
def test_repositories_without_read_access(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    hub.push("acme/text", folder)
    for name, gated in [("acme/gated", True), ("acme/private", False)]:
        hub.repositories[name] = Repository(token="hf_right", gated=gated)
        hub.push(name, folder)
    hub.repositories["acme/broken"] = Repository(broken=True)
    steps = [
        resolve("acme/gated", "full"),
        resolve("acme/private", "full"),
        resolve("acme/unknown", "full"),
        resolve("acme/text", "full", revision="v9"),
        resolve("acme/broken"),
        resolve("ac me/text"),
    ]
    gated, private, unknown, revision, broken, misnamed = run(hub.url, tmp_path, *steps)
    assert (
        "--dataset acme/gated: the hub refuses access. If the dataset is gated, accept its terms"
        in gated["message"]
    )
    for answer, name in [(private, "acme/private"), (unknown, "acme/unknown")]:
        assert answer["error"] == "UsageError"
        assert f"--dataset {name}: {hub.url} has no such dataset" in answer["message"]
        assert "HF_TOKEN" in answer["message"]
    assert "--dataset_revision v9: no such revision" in revision["message"]
    assert broken["error"] == "InputError"
    assert f"{hub.url} answered 500" in broken["message"]
    assert "not a valid name on the hub" in misnamed["message"]

    # A wrong token gets the same answers, the right one gets access.
    gated, unknown = run(hub.url, tmp_path, steps[0], steps[2], HF_TOKEN="hf_wrong")
    assert "the hub refuses access" in gated["message"]
    assert "has no such dataset" in unknown["message"]
    for answer in run(hub.url, tmp_path, *steps[:2], HF_TOKEN="hf_right"):
        assert len(answer["files"]) == len(FULL)


@pytest.mark.long
def test_an_unreachable_hub_is_named(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        (answer,) = run(url, tmp_path, resolve("acme/text"))
        assert answer["error"] == "InputError"
        assert f"{url} cannot be reached" in answer["message"]
        (answer,) = run(url, tmp_path, resolve("acme/text"), HF_HUB_OFFLINE="1")
        assert answer["error"] == "UsageError"
        assert "HF_HUB_OFFLINE is set" in answer["message"]
        file = {"index": 0, "name": f"hf://datasets/a/b@{'0' * 40}/c.parquet", "size": 9}
        file |= {"identity": "etag:0", "format": "parquet", "compression": "none"}
        (answer,) = run(url, tmp_path, read_digest(file), PATIENCE="0.1")
        assert answer["error"] == "InputError"
        assert "c.parquet cannot be read: ConnectionRefusedError: " in answer["message"]


@pytest.mark.long
def test_datasets_without_readable_files_are_explained(hub: HubServer, tmp_path: Path) -> None:
    contents = {
        "empty": {"notes.bin": ""},
        "tables": {"train.xml": "text\na\n"},
        "scripted": {"scripted.py": "", "README.md": README},
        "missing": {"README.md": README},
        "garbled": {"README.md": "---\nconfigs: [\n---\n", "a.jsonl": "{}\n"},
        "doubled": {
            "a.jsonl": "{}\n",
            "README.md": "---\nconfigs:\n- config_name: c\n  data_files: ['a*', a.jsonl]\n---\n",
        },
    }
    expected = {
        "empty": "found no data files",
        "tables": "cannot read a file named 'train.xml'",
        "scripted": "Dataset scripts are no longer supported",
        "missing": "found no data files",
        "garbled": "cannot be listed",
        "doubled": "a.jsonl more than once",
    }
    for name, files in contents.items():
        for path, text in files.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / path).write_text(text)
        hub.push(f"acme/{name}", tmp_path / name)
    for parent in ("acme", str(tmp_path)):
        steps = [resolve(f"{parent}/{name}", None) for name in contents]
        for name, answer in zip(contents, run(hub.url, tmp_path, *steps), strict=True):
            assert expected[name] in answer["message"]
            assert "\n" not in answer["message"]
            assert name in answer["message"]


@pytest.mark.long
def test_files_of_another_commit_are_refused(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    url = f"hf://datasets/acme/text@{hub.push('acme/text', folder)}/**/*.parquet"
    (tmp_path / "next").mkdir()
    (tmp_path / "next/README.md").write_text(
        f"---\nconfigs:\n- config_name: c\n  data_files: {url}\n---\n"
    )
    hub.push("acme/text", tmp_path / "next")
    (answer,) = run(hub.url, tmp_path, resolve("acme/text"))
    assert answer["error"] == "InputError"
    assert "is not a file of this commit" in answer["message"]


@pytest.mark.long
def test_names_of_missing_folders_are_explained(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    names = ["data", "/no/such/folder", "./data", "../data", "a/b/c", "repository/README.md"]
    *missing, file = run(hub.url, tmp_path, *[resolve(name) for name in names])
    for name, answer in zip(names, missing, strict=False):
        assert answer["error"] == "UsageError"
        assert f"--dataset {name}: expected a folder or OWNER/NAME" in answer["message"]
        assert "no such folder exists" in answer["message"]
    assert "this is a file; use --input" in file["message"]
    (answer,) = run(hub.url, tmp_path, resolve("repository", "full", revision="main"))
    assert "has no revisions" in answer["message"]
    assert hub.paths("GET", "/api/datasets") == []


@pytest.mark.long
def test_a_job_reads_the_hub_by_its_pinned_commit(
    hub: HubServer, folder: Path, tmp_path: Path, documents: pa.Table
) -> None:
    commit = hub.push("acme/text", folder)
    output = tmp_path / "out"
    command = ["build", "--dataset=acme/text", "--dataset_config=full", f"--output={output}"]
    command += ["--shard_tokens=2000", "--test_shards=1"]
    done = fineshards(hub.url, tmp_path, *command)
    assert done.returncode == 0, done.stderr
    texts = [text for path in FULL for text in pq.read_table(folder / path)["text"].to_pylist()]
    assert shards_in(output) == oracle(texts, 2000, test_shards=1)
    manifest = json.loads((output / "metadata/manifest.json").read_text())
    assert manifest["origin"] == {
        "dataset": "acme/text",
        "config": "full",
        "split": "train",
        "commit": commit,
    }
    urls = [f"hf://datasets/acme/text@{commit}/{path}" for path in FULL]
    root = manifest["generations"][0]["root"]
    assert [root + file["name"] for file in manifest["files"]] == urls

    # After a push, verify still compares with the old files, and the same command is another job.
    newer = Path(shutil.copytree(folder, tmp_path / "newer"))
    pq.write_table(documents.slice(500, 5), newer / FULL[0])
    hub.push("acme/text", newer)
    done = fineshards(hub.url, tmp_path, "verify", str(output), "--sample=100%")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "; 30 of 30 documents (100 %) compared with their sources" in done.stdout
    done = fineshards(hub.url, tmp_path, *command)
    assert done.returncode == 2
    assert re.search(rf"holds another job: .*{FULL[0]} changed: it had \d+ bytes", done.stderr)
    done = fineshards(hub.url, tmp_path, *command, f"--dataset_revision={commit}")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "already finished" in done.stdout


def test_importing_the_module_imports_no_hub_library() -> None:
    done = run_program(
        "import sys, fineshards.sources.places.hub\n"
        "print({'datasets', 'huggingface_hub'} & set(sys.modules))"
    )
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


@pytest.mark.long
def test_files_that_a_layout_leaves_out_are_named(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    content = (folder / "sample/a.parquet").read_bytes()
    lines = gzip.compress(b'{"text": "a"}\n')
    layouts = {
        "kinds": ["a.parquet", "b.parquet", "more/c.jsonl.gz"],
        "splits": ["train.parquet", "more.parquet"],
    }
    for name, paths in layouts.items():
        for path in [*paths, "README.md", ".gitattributes"]:
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_bytes(
                b"" if "." in path[:1] or "README" in path else lines if "gz" in path else content
            )
    steps = [resolve(name) for name in layouts]
    kinds, splits = run(hub.url, tmp_path, *steps)
    said = "the datasets library leaves out {}, and so does the job"
    assert said.format("kinds/more/c.jsonl.gz") in kinds["warning"]
    assert said.format("splits/more.parquet") in splits["warning"]
    assert (len(kinds["files"]), len(splits["files"])) == (2, 1)
    hub.push("acme/kinds", tmp_path / "kinds")
    done = fineshards(hub.url, tmp_path, "build", "--dataset=acme/kinds", "--output=out")
    assert done.returncode == 0, done.stderr
    assert f"--dataset acme/kinds: {said.format('more/c.jsonl.gz')}" in done.stderr
    # Files of other configs are expected to be left out.
    configs = "".join(
        f"- config_name: {path[0]}\n  data_files: {path}\n" for path in layouts["kinds"][:2]
    )
    (tmp_path / "kinds/README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    (one,) = run(hub.url, tmp_path, resolve("kinds", config="a"))
    assert (len(one["files"]), one["warning"]) == (1, "")
