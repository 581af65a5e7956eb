"""Files in datasets on the hub, named by hf:// URLs: pinned to a commit, found as elsewhere."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.hub_client import (
    ROOT,
    environment,
    find,
    fineshards,
    read_column,
    read_texts,
    resolve,
    run,
)
from support.hub_server import HubServer, Repository
from support.oracle import shards_in

from benchmarks.far_hub import COMMIT
from benchmarks.far_server import far_server

NAMES = ["a.parquet", "b.parquet", "in/c.parquet", "in/deep/d.parquet", "in/odd[1].parquet"]


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(page_size=2) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    documents = pq.read_table(ROOT / "samples/debian_text.parquet")
    folder = tmp_path / "repository"
    for index, name in enumerate(NAMES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(documents.slice(index * 10, 10), folder / name)
    (folder / "README.md").write_text("# Text\n")
    return folder


def names(answer: Any) -> list[str] | str:
    if isinstance(answer, dict):
        return str(answer["message"])
    return [file["name"].partition("@")[2].partition("/")[2] for file in answer]


def test_patterns_folders_and_files_are_found(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    commit = hub.push("acme/text", folder)
    url = f"hf://datasets/acme/text@{commit}"
    patterns = ("*.parquet", "in/**/*.parquet", "in/c.parquet", "in", "", "in/odd[1].parquet", "*")
    # A deep listing names folders beside their files.
    patterns += ("**", "in/**", "*/*", "*/deep")
    several, deep, one, below, whole, odd, all_of_it, *deeper = run(
        hub.url, tmp_path, *(find(f"{url}/{pattern}") for pattern in patterns)
    )
    assert names(several) == ["a.parquet", "b.parquet"]
    assert names(deep) == names(below) == NAMES[2:]
    assert names(one) == ["in/c.parquet"]
    assert names(whole) == names(all_of_it) == NAMES
    assert [*map(names, deeper)] == [NAMES, NAMES[2:], NAMES[2:], ["in/deep/d.parquet"]]
    assert names(odd) == ["in/odd[1].parquet"]
    assert [file["name"] for file in one] == [f"{url}/in/c.parquet"]
    assert not any("/lfs/" in request.path for request in hub.requests)


def test_a_revision_is_pinned_to_its_commit(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    first = hub.push("acme/text", folder)
    second = hub.push("acme/text", folder / "in", branch="refs/convert/parquet")
    main, short, branch, quoted = run(
        hub.url,
        tmp_path,
        find("hf://datasets/acme/text@main/a.parquet"),
        find("hf://datasets/acme/text/a.parquet"),
        find("hf://datasets/acme/text@refs/convert/parquet/c.parquet"),
        find("hf://datasets/acme/text@refs%2Fconvert%2Fparquet/c.parquet"),
    )
    assert main == short
    assert main[0]["name"] == f"hf://datasets/acme/text@{first}/a.parquet"
    assert branch == quoted
    assert branch[0]["name"] == f"hf://datasets/acme/text@{second}/c.parquet"


@pytest.mark.long
def test_a_file_is_the_same_as_that_of_the_dataset(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    """Its identity is a hash of its content, and it is read by ranges."""
    hub.push("acme/text", folder / "in/deep")
    (dataset, files) = run(
        hub.url, tmp_path, resolve("acme/text"), find("hf://datasets/acme/text/*.parquet")
    )
    assert files == dataset["files"]
    (texts,) = run(hub.url, tmp_path, read_column(files[0], 0, "text"))
    assert texts == pq.read_table(folder / "in/deep/d.parquet")["text"].to_pylist()


def test_what_cannot_be_found_is_one_sentence(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    hub.push("acme/text", folder)
    hub.push("acme/gated", folder)
    hub.repositories["acme/gated"] = Repository(
        hub.repositories["acme/gated"].commits, {}, token="secret"
    )
    said = {
        "hf://datasets/acme/text/nothing/*.parquet": ": no file matches",
        "hf://datasets/acme/text@v9/a.parquet": "no such revision",
        "hf://datasets/acme/nothing/a.parquet": "no such dataset, or it is private",
        "hf://datasets/acme/gated/a.parquet": "no such dataset, or it is private",
        "hf://datasets/acme/*/a.parquet": "not a valid name",
        "hf://datasets/acme": "expected hf://datasets/OWNER/NAME@REVISION/folder/*.parquet",
        "hf://acme/model/a.parquet": "expected hf://datasets/OWNER/NAME@REVISION/folder/*.parquet",
    }
    answers = run(hub.url, tmp_path, *map(find, said))
    for (url, sentence), answer in zip(said.items(), answers, strict=True):
        assert answer["message"].startswith(f"--input {url}"), answer
        assert sentence in answer["message"], answer


def test_the_hub_is_asked_once_per_file_and_again_when_an_address_has_expired(
    hub: HubServer, tmp_path: Path
) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    documents = pq.read_table(ROOT / "samples/debian_text.parquet").slice(0, 200)
    pq.write_table(documents, folder / "a.parquet", row_group_size=10)
    hub.push("acme/text", folder)
    ((file,),) = run(hub.url, tmp_path, find("hf://datasets/acme/text/a.parquet"))

    def asked() -> list[str]:
        return [r.method for r in hub.requests if "/resolve/" in r.path]

    texts = documents["text"].to_pylist()
    assert run(hub.url, tmp_path, read_texts(file)) == [texts]  # in 20 blocks
    assert asked() == ["GET"]
    assert not [r for r in hub.requests if r.method == "HEAD" and "/lfs/" in r.path]
    hub.requests.clear()
    hub.expires_after = 10
    assert run(hub.url, tmp_path, read_texts(file)) == [texts]
    assert asked() == ["GET", "GET"]


def test_a_reader_waits_as_long_as_the_hub_says(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    hub.push("acme/text", folder / "in/deep")
    ((file,),) = run(hub.url, tmp_path, find("hf://datasets/acme/text/d.parquet"))
    hub.resolves_left = 0
    # 200 s are two here: the hub's time is not the time that failures may take.
    began = time.monotonic()
    (texts,) = run(hub.url, tmp_path, read_texts(file), HURRY="100", PATIENCE="250")
    assert texts == pq.read_table(folder / "in/deep/d.parquet")["text"].to_pylist()
    assert time.monotonic() - began >= 2
    assert [r.status for r in hub.requests if "/resolve/" in r.path] == [429, 302]


@pytest.mark.parametrize(("gated", "offline"), [(True, "0"), (False, "0"), (True, "1")])
def test_a_read_that_is_refused_says_what_to_do(
    hub: HubServer, folder: Path, tmp_path: Path, gated: bool, offline: str
) -> None:
    hub.push("acme/text", folder / "in/deep")
    ((file,),) = run(hub.url, tmp_path, find("hf://datasets/acme/text/d.parquet"))
    hub.repositories["acme/text"].token, hub.repositories["acme/text"].gated = "hf_right", gated
    hub.requests.clear()
    (refused,) = run(hub.url, tmp_path, read_texts(file), HF_HUB_OFFLINE=offline)
    if offline == "1":
        said, requests = f"HF_HUB_OFFLINE is set, so {hub.url} is not contacted. Unset it", 0
    else:
        said, requests = "the hub refuses access. If the dataset is gated, accept its terms", 1
        assert "set HF_TOKEN to a token with read access" in refused["message"]
    assert refused["message"].startswith(f"{file['name']}: {said}"), refused
    assert len(hub.requests) == requests
    assert run(hub.url, tmp_path, read_texts(file), HF_TOKEN="hf_right")[0][0]


def test_a_file_that_is_gone_is_not_called_refused(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    hub.push("acme/text", folder / "in/deep")
    ((file,),) = run(hub.url, tmp_path, find("hf://datasets/acme/text/d.parquet"))
    (folder / "in/deep/d.parquet").unlink()
    (gone,) = run(hub.url, tmp_path, read_texts(file))
    assert gone["message"].startswith(f"{file['name']} cannot be read: there is no such file (404)")


@pytest.mark.cloud
def test_a_build_from_the_hub_has_the_bytes_of_one_from_a_folder(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    hub.push("acme/text", folder)
    inputs = {"far": "hf://datasets/acme/text@main/in", "near": str(folder / "in")}
    for output, pattern in inputs.items():
        flags = [f"--input={pattern}", f"--output={tmp_path}/{output}", "--shard_tokens=5000"]
        done = fineshards(hub.url, tmp_path, "build", *flags)
        assert done.returncode == 0, done.stderr
    assert shards_in(tmp_path / "far") == shards_in(tmp_path / "near")
    (tmp_path / "far/train/train_0000.npy").unlink()
    done = fineshards(hub.url, tmp_path, "repair", str(tmp_path / "far"))
    assert done.returncode == 0, done.stderr
    assert shards_in(tmp_path / "far") == shards_in(tmp_path / "near")


@pytest.mark.cloud
def test_worker_processes_stay_below_the_hubs_limit_together(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(16):
        (tmp_path / f"in/{number}.parquet").write_bytes(b"PAR1")
    command = (
        "from multiprocessing import get_context\n"
        "import huggingface_hub.hf_api\n"
        "from fineshards.shards.job.records import SourceFile\n"
        "from fineshards.sources.files import open_file\n"
        "def ask(number):\n"
        f"    path = f'hf://datasets/bench/text@{COMMIT}/{{number}}.parquet'\n"
        "    file = SourceFile(0, path, 4, '', 'parquet', 'none')\n"
        "    assert open_file(file, 0).read(4) == b'PAR1'\n"
        "workers = [get_context('fork').Process(target=ask, args=(n,)) for n in range(16)]\n"
        "for worker in workers: worker.start()\n"
        "for worker in workers: worker.join()\n"
        "assert not any(worker.exitcode for worker in workers)\n"
    )
    # Two requests in two seconds, each answered late, so that all processes would ask at once.
    with far_server(tmp_path / "in", 0.05, "benchmarks.far_hub", "2", "2") as server:
        variables = environment(server.address, tmp_path)
        subprocess.run([sys.executable, "-c", command], env=variables, cwd=ROOT, check=True)
        counts = server.counts()
    assert counts["resolvers"] - counts["refused"] == 16
    assert counts["refused"] <= 8 * counts["windows"]
