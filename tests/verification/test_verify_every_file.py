"""Verify: any change of any file of a dataset is a problem that names the file."""

import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.damage import MANIFEST

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import FineshardsError, OutputError
from fineshards.inspection.inspect import show_document, summarize
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage
from fineshards.verification.check_files import check_manifest

FILES = [
    "train/train_0000.npy",
    "metadata/blocks.parquet",
    "metadata/documents/train_0000.parquet",
    "metadata/job.json",
    "metadata/tokenizer.json",
    "metadata/rejected/00000-00000.jsonl",
    MANIFEST,
]
# Bits to flip per file; each takes some milliseconds.
FLIPS = 150


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("every")
    rows = [json.dumps({"text": f"The {n}th text.", "id": f"n{n}"}) for n in range(40)]
    (folder / "in.jsonl").write_text("\n".join([*rows[:20], "no JSON", *rows[20:]]))
    given_ = [f"--input={folder / 'in.jsonl'}", f"--output={folder / 'out'}", "--shard_tokens=250"]
    given_.append("--test_shards=1")
    tokenizer = ROOT / "tests/fixtures/tokenizer.json"
    assert main(["build", *given_, f"--tokenizer={tokenizer}", "--max_bad_rows=1"]) == 0
    verdict = fineshards.verify(folder / "out")
    assert (verdict.problems, verdict.shards) == ([], 2)
    written = {str(path.relative_to(folder / "out")) for path in (folder / "out").rglob("*.*")}
    others = {"test/test_0000.npy", "metadata/documents/test_0000.parquet"}
    others.add("metadata/generations/0001.json")
    assert written == {*FILES, *others}
    return folder / "out"


@pytest.fixture
def dataset(undamaged: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(undamaged, tmp_path / "copy"))


def problems_of(folder: Path) -> list[str]:
    """What verify finds; one sentence if it cannot even begin."""
    try:
        return fineshards.verify(folder).problems
    except OutputError as error:
        return [str(error)]


def flips(content: bytes, count: int, seed: str) -> list[tuple[int, int]]:
    """(Position, bit) of `count` bits, the same in every run."""
    chosen = random.Random(seed).sample(range(8 * len(content)), min(count, 8 * len(content)))
    return [divmod(bit, 8) for bit in chosen]


def flipped(content: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    return bytes(changed)


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found(dataset: Path, name: str) -> None:
    content = (dataset / name).read_bytes()
    for position, bit in flips(content, FLIPS, name):
        (dataset / name).write_bytes(flipped(content, position, bit))
        found = problems_of(dataset)
        assert any(name in problem for problem in found), (position, bit, found)
    (dataset / name).write_bytes(content)
    assert problems_of(dataset) == []


def test_a_flipped_bit_of_the_manifest_is_found_by_the_manifest_alone(undamaged: Path) -> None:
    """More bits than above, among them every bit of the checksum's own line."""
    content = (undamaged / MANIFEST).read_bytes()
    last_line = range(content.index(b' "crc32c": "', len(content) - 40) - 2, len(content))
    chosen = [(position, bit) for position in last_line for bit in range(8)]
    for position, bit in [*chosen, *flips(content, 1000, "manifest")]:
        changed = flipped(content, position, bit)
        try:
            found = list(check_manifest(Manifest.parse(changed, MANIFEST), changed))
        except OutputError as error:
            found = [str(error)]
        assert any(MANIFEST in problem for problem in found), (position, bit, found)


def _socket(path: Path) -> None:
    # The path of a socket may have only about a hundred characters.
    here = os.getcwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
    os.chdir(here)


def _replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(Path.unlink, id="missing"),
        pytest.param(lambda path: os.truncate(path, 0), id="empty"),
        pytest.param(lambda path: os.truncate(path, path.stat().st_size - 1), id="cut short"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes() + b"\n"), id="longer"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes() + b"\0"), id="longer by 0"),
        pytest.param(_replaced(Path.mkdir), id="folder"),
        pytest.param(_replaced(os.mkfifo), id="named pipe"),
        pytest.param(_replaced(_socket), id="socket"),
        pytest.param(_replaced(lambda path: path.symlink_to(path.name)), id="link to itself"),
        pytest.param(_replaced(lambda path: path.symlink_to("nowhere")), id="dangling link"),
        pytest.param(
            lambda path: path.chmod(0),
            id="unreadable",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything"),
        ),
    ],
)
def test_a_file_that_is_something_else_is_named_and_nothing_waits_for_it(
    dataset: Path, name: str, damage: Callable[[Path], object]
) -> None:
    damage(dataset / name)
    found = problems_of(dataset)
    assert any(name in problem for problem in found), found
    for problem in found:
        assert Path(name).stem in problem
        assert "\n" not in problem
    read_with_every_command(dataset)


def read_with_every_command(folder: Path) -> None:
    """Each command ends normally, or with an error that people can read."""
    for read in (
        fineshards.verify,
        fineshards.status,
        lambda path: summarize(Dataset.open(open_storage(str(path)))),
        lambda path: show_document(Dataset.open(open_storage(str(path))), "train/0", None, None),
        lambda path: fineshards.TokenDataset(path, sequence_length=8)[0],
        lambda path: fineshards.TokenDataset(path, sequence_length=8).documents(0),
    ):
        with suppress(FineshardsError):
            read(folder)


@pytest.mark.parametrize("name", [MANIFEST, "metadata/job.json", FILES[4]])
@pytest.mark.parametrize(
    "deep", ["[" * 100_000, '{"format": ' * 100_000, "[" * 9_999 + "]" * 9_999]
)
def test_json_that_is_nested_too_deep_is_named(dataset: Path, name: str, deep: str) -> None:
    (dataset / name).write_text(deep)
    assert any(name in problem for problem in problems_of(dataset))
    read_with_every_command(dataset)
