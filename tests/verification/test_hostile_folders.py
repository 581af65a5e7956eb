"""Output folders that someone has changed: nothing outside of them is shown, changed or removed."""

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import damage
from support.growing import append, build, made_up_rows, unfinished_append, write_rows
from support.hostile_records import paths, sealed
from support.kills import kill
from support.oracle import files_in

from fineshards import TokenDataset
from fineshards.cli.cli import main
from fineshards.errors import FineshardsError

pytestmark = pytest.mark.growing

FLAGS = ["--shard_tokens=700", "--block_bytes=1", "--test_fraction=0.3"]
CURATED = ["--dedup=exact", "--keep_keys", "--shuffle_seed=3", "--statistics"]
SECRET = "a canary sings"
MANIFEST = "metadata/manifest.json"
STATES = ("build", "curated", "append", "redact")
# Words that stand for places.
COMMANDS = (
    ("status", "OUT"),
    ("verify", "OUT"),
    ("inspect", "OUT", "--document", "0"),
    ("RESUME",),
    ("append", "OUT", "--input", "SECOND"),
    ("redact", "OUT", "--documents", "2"),
    ("repair", "OUT"),
    ("export", "OUT", "--output", "EXPORT", "--to", "raw"),
)
_opened: list[str] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_watch)


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of unfinished jobs, with everything that a job has written but its manifest."""
    place = tmp_path_factory.mktemp("states")
    for number in range(2):
        write_rows(place / f"in/{number}.parquet", made_up_rows(number, 20))
    first, second = place / "in/0.parquet", place / "in/1.parquet"
    for name, flags in (("build", []), ("curated", CURATED)):
        build(place / name, first, *FLAGS, *flags, "--keep_checkpoints")
        (place / name / MANIFEST).unlink()
        (place / name / "train/train_0000.npy").unlink()
    build(place / "append", first, *FLAGS, *CURATED)
    unfinished_append(place / "append", second)
    build(place / "redact", first, *FLAGS)
    append(place / "redact", second)
    kill("replace:1", "redact", place / "redact", "--documents=3")
    return place


def resume(states: Path, state: str, folder: Path) -> list[str]:
    """The command that goes on with a job."""
    if state == "redact":
        return ["redact", str(folder), "--documents", "3"]
    if state == "append":
        return ["append", str(folder), "--input", f"{states}/in/1.parquet"]
    flags = CURATED if state == "curated" else []
    return ["build", f"--output={folder}", f"--input={states}/in/0.parquet", *FLAGS, *flags]


def use(states: Path, state: str, folder: Path, caught: pytest.CaptureFixture[str]) -> str:
    """Runs all commands and the loader on a folder; returns what they said."""
    export = folder.parent.parent / "export"
    words = {"OUT": folder, "SECOND": states / "in/1.parquet", "EXPORT": export}
    said = ""
    for command in COMMANDS:
        given = [str(words.get(word, word)) for word in command]
        given = resume(states, state, folder) if given == ["RESUME"] else given
        code = main(given)
        shown = "".join(caught.readouterr())
        assert code in (0, 1, 2), (given, shown)
        assert "Traceback" not in shown, (given, shown)
        assert "unexpected" not in shown, (given, shown)
        assert len(shown) < 10_000, (given, shown[:3000])
        said += shown
    try:
        dataset = TokenDataset(folder, sequence_length=8)
        dataset.documents(0)
        dataset.gather(np.arange(min(len(dataset), 5)))
    except FineshardsError as error:
        said += str(error)
    if export.exists():
        assert not any(SECRET.encode() in content for content in files_in(export).values())
        shutil.rmtree(export)
    return said


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with canaries, and another one in it for the output folder."""
    logging.getLogger().handlers.clear()  # of another test, whose output is closed
    for folder in ("", "outside", "jobs", "outside/train"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "canary").write_text(SECRET)
    return tmp_path


def outside(place: Path) -> dict[str, Any]:
    """What lies outside of the output folder: contents and times of files, and folders."""
    found: dict[str, Any] = {}
    for parent, folders, files in os.walk(place):
        if Path(parent) == place / "jobs":
            folders.remove("out")
        for name in (*folders, *files):
            path = Path(parent, name)
            found[str(path)] = path.is_file() and (path.read_bytes(), path.stat().st_mtime_ns)
    return found


def check(
    states: Path, state: str, place: Path, what: object, caught: pytest.CaptureFixture[str]
) -> str:
    """Uses a folder, and looks that nothing outside was opened for it, or is another by now."""
    before = outside(place)
    _opened.clear()
    said = use(states, state, place / "jobs/out", caught)
    assert not [path for path in _opened if "canary" in path], what
    assert outside(place) == before, what
    assert SECRET not in said, (what, said)
    return said


def texts(folder: Path) -> Iterator[tuple[Path, bytes | None, tuple[str | int, ...]]]:
    """The places of all texts in records: file, key in the metadata of Parquet, path."""
    for path in sorted(folder.rglob("*")):
        records: dict[bytes | None, bytes] = {}
        if path.suffix == ".json":
            records = {None: path.read_bytes()}
        elif path.suffix == ".parquet":
            records = pq.read_metadata(path).metadata or {}
        for key, content in records.items():
            try:
                value = json.loads(content)
            except ValueError:
                continue
            for at in paths(value):
                found = value
                for step in at:
                    found = found[step]
                if isinstance(found, str) and at != ("crc32c",):
                    yield path.relative_to(folder), key, at


def change(path: Path, key: bytes | None, at: tuple[str | int, ...], text: str) -> None:
    """Puts another text at a place; a seal is right again."""
    before = path.read_bytes()
    table = None if key is None else pq.read_table(BytesIO(before))
    metadata = {} if table is None else dict(pq.read_metadata(BytesIO(before)).metadata)
    content = deepcopy(json.loads(before if key is None else metadata[key]))
    parent = content
    for step in at[:-1]:
        parent = parent[step]
    if at:
        parent[at[-1]] = text
    else:
        content = text
    if key is not None:
        assert table is not None
        metadata[key] = json.dumps(content).encode()
        pq.write_table(table.replace_schema_metadata(metadata), path)
    elif isinstance(content, dict) and str(content.get("format")).startswith("fineshards manifest"):
        path.write_bytes(sealed(content))
    elif isinstance(content, dict) and content.pop("crc32c", None):
        path.write_bytes(damage.sealed(content) + b"\n" * before.endswith(b"\n"))
    else:
        path.write_text(json.dumps(content))


VALUES = ("../canary", "../../canary", "CANARY", "a/../../../canary", "a\0b", "x" * 1_000_000)


@pytest.mark.parametrize("state", STATES)
def test_unchanged_folders_go_on(states: Path, place: Path, state: str) -> None:
    folder = shutil.copytree(states / state, place / "jobs/out")
    assert main(resume(states, state, folder)) == 0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("state", STATES)
def test_no_text_of_a_record_leads_out(
    states: Path, place: Path, state: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    random = Random(f"{state} {seed}")
    path, key, at = random.choice(list(texts(states / state)))
    value = random.choice(VALUES).replace("CANARY", str(place / "canary"))
    folder = shutil.copytree(states / state, place / "jobs/out")
    change(folder / path, key, at, value)
    check(states, state, place, (path, key, at, value[:20]), capsys)


@pytest.mark.parametrize(
    ("state", "pattern", "key", "at"),
    [
        ("redact", MANIFEST, None, ("files", 1, "path")),
        ("build", "checkpoints/*/blocks/*.json", None, ("record", "counts")),
        ("curated", "checkpoints/*/blocks/*.json", None, ("ranges", 0, "file")),
    ],
)
def test_a_text_that_is_no_name_ends_in_a_sentence_too(
    states: Path,
    place: Path,
    state: str,
    pattern: str,
    key: bytes | None,
    at: tuple[str | int, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = shutil.copytree(states / state, place / "jobs/out")
    change(min(folder.glob(pattern)), key, at, str(place / "canary"))
    check(states, state, place, at, capsys)


@pytest.mark.parametrize(
    ("state", "pattern", "canaries"),
    [
        ("build", "train", False),
        ("build", "checkpoints/unfinished", True),
        ("curated", "checkpoints/*/blocks", True),
        ("append", "checkpoints", False),
        ("append", "metadata/documents", True),
        ("redact", "metadata/documents", False),
    ],
)
def test_nothing_is_written_or_deleted_behind_a_link_to_a_folder(
    states: Path,
    place: Path,
    state: str,
    pattern: str,
    canaries: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """canaries: the link leads to other files; otherwise to those that were in the folder."""
    folder = shutil.copytree(states / state, place / "jobs/out")
    (folder / "checkpoints/unfinished").mkdir(parents=True, exist_ok=True)
    (linked,) = folder.glob(pattern)
    target = place / "outside" / ("train" if canaries else "moved")
    if canaries:
        shutil.rmtree(linked)
    else:
        shutil.move(linked, target)
    linked.symlink_to(target)
    assert "a link leads to" in check(states, state, place, linked, capsys)


@pytest.mark.parametrize("state", STATES)
def test_nothing_is_written_through_a_link_to_a_file(
    states: Path, place: Path, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [path for path in sorted((states / state).rglob("*")) if path.is_file()]
    folder = shutil.copytree(states / state, place / "jobs/out")
    name = folder / Random(state).choice(files).relative_to(states / state)
    name.unlink()
    name.symlink_to(place / "canary")
    check(states, state, place, name, capsys)
