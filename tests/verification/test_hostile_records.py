"""Records of a dataset with any field changed: every command ends with a sentence."""

import json
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
from support.growing import append, build, made_up_rows, write_parts
from support.hostile_records import VALUES, mutant, sealed

from fineshards import TokenDataset
from fineshards.cli.cli import main
from fineshards.errors import FineshardsError
from fineshards.maintenance.redact import redact

pytestmark = pytest.mark.growing

COMMANDS = (
    ["inspect", "--document", "0"],
    ["report", "--output", "REPORT"],
    ["verify"],
    ["status"],
    ["inspect", "--find", "--id", "id5-4"],
    ["stats"],
    ["explain", "--document", "2", "--sequence_length", "32"],
    ["redact", "--documents", "5"],
)
MANIFEST = Path("metadata/manifest.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that was built, appended to and redacted."""
    folder = tmp_path_factory.mktemp("hostile")
    files = write_parts(folder, made_up_rows(5, 30), 15)
    build(folder / "out", files[0], "--shard_tokens=900", "--test_fraction=0.3", "--statistics")
    append(folder / "out", files[1])
    redact(str(folder / "out"), documents=[3])
    return folder / "out"


def check(
    folder: Path, name: Path, content: bytes, what: str, caught: pytest.CaptureFixture[str]
) -> None:
    """Runs all commands and the loader on a dataset one of whose records is another."""
    (folder / name).write_bytes(content)
    for command in COMMANDS:
        given = [word.replace("REPORT", f"{folder}.html") for word in command]
        code = main([given[0], str(folder), *given[1:]])
        said = caught.readouterr().err
        assert code in (0, 1, 2), (name, what, command)
        assert "Traceback" not in said, (name, what, command, said)
        assert "unexpected" not in said, (name, what, command, said)
    try:
        dataset = TokenDataset(folder, sequence_length=32)
        dataset.within_redacted(np.arange(2))
        dataset.documents(0)
        dataset.gather(np.arange(min(len(dataset), 5)))
    except FineshardsError:
        pass


@pytest.mark.parametrize("seed", range(6))
def test_a_record_with_a_changed_field_ends_in_a_sentence(
    finished: Path, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    random = Random(seed)
    for path in sorted((finished / "metadata").rglob("*.json")):
        folder = Path(shutil.copytree(finished, tmp_path / f"{path.name}-out"))
        what, content = mutant(json.loads(path.read_bytes()), random)
        check(folder, path.relative_to(finished), content, what, capsys)


@pytest.mark.parametrize(
    "place", [("special_tokens", 0, 0), ("special_tokens", 0, 1), ("pattern",)]
)
@pytest.mark.parametrize("value", [VALUES[3], VALUES[10], "(", "[", []], ids=repr)
def test_a_tokenizer_that_is_described_wrongly_is_one_sentence(
    finished: Path,
    tmp_path: Path,
    place: tuple[str | int, ...],
    value: object,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "out"))
    content = json.loads((finished / MANIFEST).read_bytes())
    parent = content["settings"]["tokenizer"]
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    check(folder, MANIFEST, sealed(content), f"{place} = {value!r:.20}", capsys)


@pytest.mark.parametrize("place", ["documents", "ranges"])
def test_a_redaction_beyond_all_numbers_is_one_sentence(
    finished: Path, tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "out"))
    name = Path("metadata/generations/0003.job.json")
    content = json.loads((finished / name).read_bytes())
    content["redaction"][place][0][1] = float("inf")
    check(folder, name, sealed(content), place, capsys)
