"""Input through fsspec, on its file system in memory: patterns, versions, what is missing."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from support.fresh_interpreter import run_program
from support.oracle import shards_in
from support.patterns import NAMES, matches_as_for_local_files, patterns, write_names
from support.source_files import COLUMNS, texts_of

from fineshards.errors import InputError, UsageError
from fineshards.sources.files import find_files, open_file
from fineshards.sources.places.stores import identity_of
from fineshards.sources.reading import discover_blocks, read_block

LINES = b'{"text": "a"}\n{"text": "b"}\n'


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    memory = fsspec.filesystem("memory")
    yield memory
    memory.rm("/", recursive=True)


@pytest.fixture(scope="module")
def same(store: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same file names in a local folder and in memory."""
    for name in NAMES:
        store.pipe(f"/same/in/{name}", b"")
    return write_names(tmp_path_factory.mktemp("same"))


@settings(max_examples=60)
@given(patterns)
def test_a_pattern_matches_as_for_local_files(same: Path, pattern: str) -> None:
    matches_as_for_local_files("memory://same", same, pattern)


def test_a_file_has_one_identity_however_it_is_found(store: Any) -> None:
    store.pipe("/one/in/a.jsonl", LINES)
    patterns = ("in/a.jsonl", "in/*.jsonl", "in", "**/*.jsonl", "in/[a].jsonl")
    found = [find_files([f"memory://one/{pattern}"]) for pattern in patterns]
    assert all(files == found[0] for files in found)
    (file,) = found[0]
    assert (file.path, file.size) == ("memory://one/in/a.jsonl", len(LINES))
    assert file.identity.startswith("mtime:")
    assert texts_of(file) == ["a", "b"]


def test_a_saved_dataset_is_what_its_state_lists(store: Any) -> None:
    names = [f"data-0000{number}-of-00002.arrow" for number in range(2)]
    state = {"_data_files": [{"filename": name} for name in names]}
    store.pipe("/saved/d/state.json", json.dumps(state).encode())
    for name in (*names, "data-00000-of-00003.arrow"):
        store.pipe(f"/saved/d/{name}", b"")
    for pattern in ("", "/d", "/d/*", "/d/*2.arrow"):
        found = find_files([f"memory://saved{pattern}"])
        assert [file.path for file in found] == [f"memory://saved/d/{name}" for name in names]
    for pattern in ("*.arrow", "data-00000-of-00003.arrow"):
        with pytest.raises(UsageError, match=r"-of-00003\.arrow: not listed by state\.json"):
            find_files([f"memory://saved/d/{pattern}"])
    store.pipe("/saved/dataset_dict.json", b'{"splits": ["d", "e"]}')
    for pattern in ("", "/*", "/*/*2.arrow"):
        with pytest.raises(InputError, match=r"/e/state\.json is not there, although memory://"):
            find_files([f"memory://saved{pattern}"])
    assert len(find_files(["memory://saved/d"])) == 2
    store.rm("/saved/dataset_dict.json")
    store.rm(f"/saved/d/{names[1]}")
    for pattern in ("", "/d", "/d/*", "/d/*2.arrow"):
        with pytest.raises(InputError, match=rf"{names[1]} is not there, although memory://"):
            find_files([f"memory://saved{pattern}"])


def test_a_changed_or_deleted_file_is_noticed(store: Any) -> None:
    store.pipe("/two/a.jsonl", LINES)
    (file,) = find_files(["memory://two/a.jsonl"])
    store.pipe("/two/a.jsonl", LINES.replace(b"b", b"c"))
    with pytest.raises(InputError, match=r"memory://two/a\.jsonl changed since the job was launch"):
        texts_of(file)
    store.rm("/two/a.jsonl")
    with pytest.raises(InputError, match=r"memory://two/a\.jsonl was deleted since the job"):
        texts_of(file)


def test_a_change_while_a_block_is_read_is_noticed(store: Any) -> None:
    store.pipe("/three/a.jsonl", LINES)
    (file,) = find_files(["memory://three/a.jsonl"])
    (block,) = discover_blocks(file, COLUMNS, 1)
    rows = read_block(file, COLUMNS, block)
    next(rows)
    store.pipe("/three/a.jsonl", LINES)
    with pytest.raises(InputError, match="changed since the job was launched"):
        list(rows)


def test_a_short_read_is_not_the_end_of_the_file(store: Any) -> None:
    for read_ahead in (1, 1 << 20):
        store.pipe("/four/a.jsonl", LINES)
        (file,) = find_files(["memory://four/a.jsonl"])
        with open_file(file, read_ahead) as opened:
            store.store["/four/a.jsonl"].truncate(len(LINES) - 14)
            with pytest.raises(InputError, match=r"received \d+ bytes from byte \d+ on, expected"):
                opened.read()


@pytest.mark.parametrize(
    ("info", "identity"),
    [
        ({"etag": '"x1"', "last_modified": 5.0, "size": 3}, "etag:x1"),
        ({"ETag": "x2", "size": 3}, "etag:x2"),
        ({"mtime": 1.5, "size": 3}, "mtime:1.5"),
        ({"etag": None, "modify": "20261122010000", "size": 3}, "mtime:20261122010000"),
        ({"size": 3}, "size:3"),
    ],
)
def test_the_identity_is_the_best_that_a_store_tells(
    info: dict[str, object], identity: str
) -> None:
    assert identity_of(info) == identity


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("foo://a/b.csv", r"--input foo://a/b\.csv: foo:// cannot be read\. Give local paths, fil"),
        ("zip://a.csv::memory://a.zip", r"zip:// cannot be read"),
        ("memory://*/a.csv", r"memory://\*/a\.csv: expected memory://bucket-or-host/f"),
        ("memory://", r"--input memory://: expected memory://bucket-or-host/folder"),
        ("memory://nowhere/*.csv", r"--input memory://nowhere/\*\.csv: no file matches"),
        ("memory://nowhere/a.csv", r"--input memory://nowhere/a\.csv: no file matches"),
    ],
)
def test_what_cannot_be_found_is_one_sentence(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_files([url])


@pytest.mark.cloud
def test_a_build_through_fsspec_has_the_bytes_of_one_without(
    tmp_path: Path, sample: Path, in_process: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """local:// is fsspec's own name for the disk, so it goes the way of all other protocols."""
    shutil.copy(sample, tmp_path / "a.parquet")
    inputs = {"far": f"local://{tmp_path}/*.parquet", "near": str(tmp_path / "a.parquet")}
    for output, pattern in inputs.items():
        flags = [f"--input={pattern}", f"--output={tmp_path}/{output}", "--shard_tokens=200000"]
        done = in_process("build", *flags)
        assert done.returncode == 0, done.stderr
    assert shards_in(tmp_path / "far") == shards_in(tmp_path / "near")
    (tmp_path / "far/train/train_0001.npy").unlink()
    done = in_process("repair", tmp_path / "far")
    assert done.returncode == 0, done.stderr
    assert shards_in(tmp_path / "far") == shards_in(tmp_path / "near")
    (tmp_path / "a.parquet").touch()
    done = in_process("verify", tmp_path / "far", "--sample=5%")
    assert done.returncode == 0, done.stdout


def find_without_packages(url: str) -> subprocess.CompletedProcess[str]:
    """Finds a file where some packages are not installed."""
    done = run_program(
        "import sys\n"
        "for name in ('adlfs', 'paramiko', 'boto3'): sys.modules[name] = None\n"
        "from fineshards.sources.files import find_files\n"
        "from fineshards.errors import FineshardsError\n"
        f"try: find_files([{url!r}])\n"
        "except FineshardsError as error: print(type(error).__name__, error)\n"
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("az://data/a.csv", "adlfs is not installed. Install it with: pip install 'fineshards[az"),
        ("abfs://data/a.csv", "pip install 'fineshards[azure]'"),
        ("sftp://host/a.csv", '"paramiko" to be installed'),
    ],
)
def test_a_missing_package_is_named(url: str, said: str) -> None:
    assert said in find_without_packages(url).stdout
