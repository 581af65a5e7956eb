"""Repairs of datasets with recipes: rewritten, cut, shuffled; and what cannot be repaired."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.curated import Steps, made_up_files, write_files, write_recipe
from support.damage import cut, flip_middle
from support.oracle import files_in

import fineshards
from fineshards.cli.cli import main

pytestmark = pytest.mark.curation

STEPS: Steps = [
    ("length", {"min_chars": 6}),
    ("symbol_lines", {}),
    ("exact", {}),
    ("lines", {"min_doc_words": 3}),
    ("pii", {}),
]


@pytest.fixture(scope="module", params=["--test_fraction=0.2", "--shuffle_seed=4"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sources, and a dataset of them in `out/`."""
    folder = tmp_path_factory.mktemp("curated-repair")
    files = made_up_files(9, (40, 30, 30))
    files[1].insert(4, None)
    write_files(folder / "in", files)
    recipe = write_recipe(folder / "recipe.toml", STEPS)
    flags = ["--shard_tokens=700", "--max_bad_rows=1", "--keep_keys", "--block_bytes=1"]
    given = [f"--input={folder}/in/*", f"--recipe={recipe}", *flags, request.param]
    assert main(["build", f"--output={folder}/out", *given]) == 0
    return folder


def test_shards_and_tables_are_made_again_and_redacted_again(built: Path, tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(built / "out", tmp_path / "out"))
    listed = tmp_path / "ids"
    tables = sorted((dataset / "metadata/documents").iterdir())
    ids = sorted({id_ for table in tables for id_ in pq.read_table(table)["id"].to_pylist()})
    listed.write_text("".join(f"{id_}\n" for id_ in ids[::6]))
    assert main(["redact", str(dataset), f"--ids={listed}"]) == 0
    assert fineshards.verify(dataset, sample=100).problems == []
    whole = files_in(dataset)
    damages = [cut, flip_middle, Path.unlink]
    names = [name for name in whole if name.startswith(("test/", "train/", "metadata/documents/"))]
    names.append("metadata/rejected/00001-00000.jsonl")
    for number, name in enumerate(sorted(names)):
        if number % 3 != 2:
            damages[number % len(damages)](dataset / name)
    assert main(["repair", str(dataset)]) == 0
    assert files_in(dataset) == whole


@pytest.mark.parametrize("name", ["decisions/00001.parquet", "keys/00002-00002.keys"])
@pytest.mark.parametrize("damage", [flip_middle, Path.unlink])
def test_what_follows_from_all_documents_is_not_made_again(
    built: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    damage: Callable[[Path], object],
) -> None:
    dataset = Path(shutil.copytree(built / "out", tmp_path / "out"))
    damage(dataset / "metadata" / name)
    (dataset / "train/train_0000.npy").unlink()
    before = files_in(dataset)
    capsys.readouterr()
    assert main(["repair", str(dataset)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fineshards: {dataset}/metadata/{name} is damaged")
    assert "Nothing was repaired." in line
    assert files_in(dataset) == before
    assert any(name in problem for problem in fineshards.verify(dataset).problems)


@pytest.mark.parametrize("flags", [["--shuffle_seed=4"], ["--test_shards=1"]])
def test_what_follows_from_one_source_is_made_again(
    built: Path, tmp_path: Path, flags: list[str]
) -> None:
    """Decisions, scores and statistics of steps that judge each document by itself."""
    scored: Steps = [*STEPS[:2], ("score", {"name": "size", "by": "characters"}), STEPS[-1]]
    recipe = write_recipe(tmp_path / "recipe.toml", scored)
    given = [f"--input={built}/in/*", f"--recipe={recipe}", "--max_bad_rows=1", "--statistics"]
    dataset = tmp_path / "out"
    assert main(["build", f"--output={dataset}", *given, "--shard_tokens=700", *flags]) == 0
    whole = files_in(dataset)
    damages = [cut, flip_middle, Path.unlink]
    names = [name for name in whole if "/0000" in name]
    assert {name.split("/")[1] for name in names} >= {"decisions", "scores", "statistics"}
    for number, name in enumerate([*names, "train/train_0000.npy"]):
        damages[number % len(damages)](dataset / name)
    assert fineshards.repair(dataset).left == []
    assert files_in(dataset) == whole


def test_a_source_whose_counts_have_changed_is_refused(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = Path(shutil.copytree(built / "out", tmp_path / "out"))
    source = built / "in/1.jsonl"
    content = source.read_bytes()
    for shard in (dataset / "train").iterdir():
        shard.unlink()
    try:
        # As many bytes, but other lines are cut, and other tokens made.
        source.write_bytes(content.replace(b"house", b"hou e"))
        assert main(["repair", str(dataset)]) == 1
        line = capsys.readouterr().err.splitlines()[-1]
        assert "othing was repaired" in line
    finally:
        source.write_bytes(content)
