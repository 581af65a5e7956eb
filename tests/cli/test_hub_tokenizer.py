"""A tokenizer that is named by its repository on a hub."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hub_client import fineshards as with_hub
from support.hub_server import HubServer, Repository
from support.oracle import shards_in
from support.tokenizer_files import path_of


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    """A hub whose repository mine/tokenizer has a tokenizer, and whose mine/empty has none."""
    with HubServer() as server:
        for name in ("one", "two", "empty"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text("{}")
        shutil.copy(path_of("gpt2"), tmp_path / "one/tokenizer.json")
        differing = {"do_lower_case": True, "extra_special_tokens": {"image": "<image>"}}
        (tmp_path / "one/tokenizer_config.json").write_text(json.dumps(differing))
        shutil.copy(path_of("qwen2"), tmp_path / "two/tokenizer.json")
        server.push("mine/tokenizer", tmp_path / "one", branch="old")
        server.push("mine/tokenizer", tmp_path / "two")
        server.push("mine/empty", tmp_path / "empty")
        (tmp_path / "tekken").mkdir()
        (tmp_path / "tekken/tekken.json").write_text("{}")
        server.push("mine/tekken", tmp_path / "tekken")
        server.repositories["mine/gated"] = Repository(token="secret", gated=True)
        server.repositories["mine/gated"].branches["main"] = "0" * 40
        server.repositories["mine/gated"].commits["0" * 40] = tmp_path / "one"
        yield server


@pytest.mark.long
def test_a_tokenizer_of_the_hub_is_that_of_its_file(
    hub: HubServer, data: Path, tmp_path: Path
) -> None:
    differ = "files beside it say the token '<image>', do_lower_case true, which is not obeyed"

    def build(tokenizer: str, output: str, endpoint: str = hub.url) -> str:
        given = [f"--input={data}/0.parquet", f"--output={output}", "--shard_tokens=2k"]
        done = with_hub(endpoint, tmp_path, "build", *given, f"--tokenizer={tokenizer}", "--json")
        assert done.returncode == 0, done.stderr
        assert (differ in done.stderr) == (output != "new")
        return json.loads(done.stdout)["fingerprint"]

    new, old = build("mine/tokenizer", "new"), build("mine/tokenizer@old", "old")
    assert new != old
    assert old == build("one", "folder") == build(str(tmp_path / "one/tokenizer.json"), "file")
    assert shards_in(tmp_path / "old") == shards_in(tmp_path / "folder")
    # Once downloaded, it needs no hub.
    assert build("mine/tokenizer@old", "again", "http://127.0.0.1:1") == old
    assert len(hub.paths("GET", "/mine/tokenizer/resolve/")) == 3  # each file once
    # Nor does it if other tools have filled the cache, which do not note what does not exist.
    shutil.rmtree(tmp_path / "huggingface/hub/models--mine--tokenizer/.no_exist")
    assert build("mine/tokenizer@old", "last", "http://127.0.0.1:1") == old


@pytest.mark.long
@pytest.mark.parametrize(
    ("tokenizer", "code", "sentence"),
    [
        ("mine/missing", 2, "has no such model, or it is private."),
        ("mine/tokenizer@never", 2, "no such revision. Give a branch, a tag or a full commit hash"),
        (
            "mine/empty",
            2,
            "mine/empty (no file or folder here): the repository has no tokenizer.json. Choose",
        ),
        ("mine/tekken", 2, "no tokenizer.json. Give its tekken.json, which is now here: --token"),
        ("mine/gated", 2, "If the model is gated, accept its terms"),
        ("empty", 2, "--tokenizer empty: the folder has no tokenizer.json."),
    ],
)
def test_a_tokenizer_that_cannot_be_had_is_one_sentence(
    hub: HubServer, data: Path, tmp_path: Path, tokenizer: str, code: int, sentence: str
) -> None:
    given = [f"--input={data}/0.parquet", "--output=out", f"--tokenizer={tokenizer}"]
    done = with_hub(hub.url, tmp_path, "build", *given)
    assert done.returncode == code
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.long
def test_a_hub_out_of_reach_is_one_sentence(data: Path, tmp_path: Path) -> None:
    given = [f"--input={data}/0.parquet", "--output=out", "--tokenizer=mine/tokenizer"]
    done = with_hub("http://127.0.0.1:1", tmp_path, "build", *given)
    assert done.returncode == 1
    assert "tokenizer.json is not in the local cache, and cannot be fetched" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
