"""A build with a recipe resumes wherever it was killed; damaged checkpoints are made again."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.curated import Steps, curate, made_up_files, write_files, write_recipe
from support.damage import cut, flip_middle, zeroed
from support.kills import crashes_of, kill
from support.oracle import files_in, shards_in

from fineshards.cli.cli import main

Damage = Callable[[Path], object]

STEPS: Steps = [
    ("score", {"name": "length", "by": "characters"}),
    ("exact", {}),
    ("symbol_lines", {}),
    ("lines", {"min_doc_words": 4}),
    ("score", {"name": "words", "by": "words"}),
    ("minhash", {"n_grams": 2, "buckets": 20, "hashes_per_bucket": 1, "threshold": 0.6}),
    ("where", {"sql": "length > 30 AND words < 90"}),
    ("score", {"name": "left", "by": "bytes"}),
]
FILES = made_up_files(6, (16, 12))


def prepare(folder: Path) -> list[str]:
    """Writes sources and a recipe; returns the flags of their build."""
    write_files(folder / "in", FILES)
    recipe = write_recipe(folder / "recipe.toml", STEPS)
    flags = ["--shard_tokens=300", "--test_fraction=0.2", "--block_bytes=1", "--keep_keys"]
    return [f"--input={folder}/in/*", f"--recipe={recipe}", "--memory_bytes=500", *flags]


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return prepare(tmp_path_factory.mktemp("curated-restart"))


@pytest.fixture(scope="module")
def finished(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished build with its checkpoints. Read-only."""
    output = tmp_path_factory.mktemp("finished") / "out"
    assert main(["build", f"--output={output}", *flags, "--keep_checkpoints"]) == 0
    assert shards_in(output) == curate(FILES, STEPS).shards(300, "0.2")
    return output


def dataset_in(folder: Path) -> dict[str, bytes]:
    files = files_in(folder)
    return {name: files[name] for name in files if not name.startswith("checkpoints/")}


def unfinished(finished: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of a dataset with nothing but its checkpoints up to token blocks; and these."""
    output = Path(shutil.copytree(finished, tmp_path / "out"))
    (output / "metadata/manifest.json").unlink()
    for name in ("documents", "decisions", "keys", "scores"):
        shutil.rmtree(output / "metadata" / name)
    for name in ("test", "train"):
        shutil.rmtree(output / name)
    (kept,) = (path for path in (output / "checkpoints").iterdir() if len(path.name) == 64)
    shutil.rmtree(kept / "shards")
    return output, kept


def written(folder: Path) -> dict[str, int]:
    """The inodes of all checkpoints of stages and blocks: what is written again has another."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_ino
        for kind in ("judged", "marks", "marked", "blocks")
        for path in sorted((folder / kind).rglob("*"))
        if path.is_file()
    }


@pytest.mark.curation
def test_finished_work_of_all_stages_is_found_again(
    finished: Path, flags: list[str], tmp_path: Path
) -> None:
    output, kept = unfinished(finished, tmp_path)
    before = written(kept)
    assert {name.split("/")[0] for name in before} == {"judged", "marks", "marked", "blocks"}
    assert main(["build", f"--output={output}", *flags, "--keep_checkpoints"]) == 0
    assert dataset_in(output) == dataset_in(finished)
    assert written(kept) == before


def kind_of(path: Path) -> str:
    """What marks are, such as sets; empty for those of a range of keys."""
    return next((kind for kind in ("sets", "compared") if f"-{kind}" in path.stem), "")


@pytest.mark.curation
@pytest.mark.parametrize("damage", [cut, flip_middle, zeroed, Path.unlink])
def test_what_a_power_cut_damaged_is_made_again(
    finished: Path, flags: list[str], tmp_path: Path, damage: Damage
) -> None:
    """The largest file of each kind and stage, as those that a power cut has not written."""
    output, kept = unfinished(finished, tmp_path)
    before = written(kept)
    victims: dict[tuple[str, str, str], Path] = {}
    for path in sorted(kept.rglob("*.*"), key=lambda path: (path.stat().st_size, path)):
        kind, *number = path.relative_to(kept).parts[:-1] or ("",)
        if kind in ("judged", "marks", "marked"):
            victims[kind + number[0], kind_of(path), path.suffix] = path
    assert {kind for _, kind, _ in victims} == {"", "sets", "compared"}
    assert len(victims) == 20
    for path in victims.values():
        damage(path)
    assert main(["build", f"--output={output}", *flags, "--keep_checkpoints"]) == 0
    assert dataset_in(output) == dataset_in(finished)
    after = written(kept)
    again = {name for name, inode in before.items() if after[name] != inode}
    damaged = {path.relative_to(kept).as_posix() for path in victims.values()}
    assert damaged <= again

    def stem(name: str) -> str:
        """Of a block, or of a range of keys or a file, whose marks are made together."""
        return re.sub(r"-(sets|compared)$", "", Path(name).name.partition(".")[0])

    assert set(map(stem, again)) <= set(map(stem, damaged))


@pytest.mark.curation
def test_damage_found_as_late_as_the_decisions_is_made_again(
    finished: Path, flags: list[str], tmp_path: Path
) -> None:
    """A build that has everything but its manifest."""
    output = Path(shutil.copytree(finished, tmp_path / "out"))
    (output / "metadata/manifest.json").unlink()
    for folder in ("decisions", "keys", "scores"):
        for path in output.glob(f"metadata/{folder}/*"):
            flip_middle(path)
    assert main(["build", f"--output={output}", *flags]) == 0
    assert dataset_in(output) == dataset_in(finished)


@pytest.mark.kills
@pytest.mark.parametrize("part", range(2))
def test_restart_after_a_kill_before_a_file_operation_of_a_recipe(
    tmp_path: Path, part: int
) -> None:
    """Every sixth state that a crash can leave on disk, one after the other."""
    flags = prepare(tmp_path)
    expected = curate(FILES, STEPS)
    assert main(["build", f"--output={tmp_path}/whole", *flags]) == 0
    crashes = crashes_of(tmp_path, ["build", "--output=OUT", *flags], 6 * part, 12)
    assert len(crashes) > 5
    documents = sum(expected.counts(file)["documents"] for file in range(len(FILES)))
    for crash in crashes:
        assert dataset_in(Path(crash["folder"])) == dataset_in(tmp_path / "whole"), crash
        assert (crash["status"], crash["rewritten"], crash["changed"]) == (0, [], []), crash
        assert crash["documents_encoded"] == documents - crash["documents_finished"], crash


@pytest.mark.curation
@pytest.mark.parametrize("package", [False, True], ids=["folder", "package"])
def test_a_helper_of_a_function_that_changed_is_refused_by_name(
    tmp_path: Path, package: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill with workers, at an append, and where dropped documents are judged again."""
    inner = tmp_path / "own" if package else tmp_path
    inner.mkdir(exist_ok=True)
    (inner / "my_steps.py").write_text(
        "def judge(document):\n"
        f"    from {'.' if package else ''}helper import LEAST\n"
        "    return len(document['text']) > LEAST\n"
    )
    helper, use = inner / "helper.py", f"{'own.' * package}my_steps:judge"
    helper.write_text("LEAST = 20\n")
    write_files(tmp_path / "in", FILES)
    recipe = write_recipe(tmp_path / "recipe.toml", [(use, {}), ("exact", {})])
    output = tmp_path / "out"
    flags = ["--shard_tokens=300", "--test_fraction=0.2", "--block_bytes=1", "--keep_keys"]
    command = [f"--output={output}", f"--input={tmp_path}/in/*", f"--recipe={recipe}", *flags]
    monkeypatch.chdir(tmp_path)
    kill("replace:30", "build", *command, "--workers=2", workers=True)

    def run(name: str, *given: object) -> tuple[int, str]:
        started = [sys.executable, "-m", "fineshards", name, *map(str, given)]
        done = subprocess.run(started, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr + done.stdout

    def refused(name: str, *given: object) -> None:
        code, said = run(name, *given)
        assert code != 0, said
        assert f"pin {use} in {'own/' * package}helper.py of step 1 {use}: was" in said, said
        assert "put that file back" in said

    helper.write_text("LEAST = 60\n")
    refused("build", *command, "--workers=2")
    helper.write_text("LEAST = 20\n")
    assert run("build", *command, "--workers=2")[0] == 0
    whole = run("verify", output, "--sample=100%")
    assert whole[0] == 0, whole
    helper.write_text("LEAST = 60\n")
    write_files(tmp_path / "more", made_up_files(7, (5,)))
    refused("append", output, f"--input={tmp_path}/more/*")
    refused("verify", output, "--sample=100%")
    next((output / "train").iterdir()).unlink()
    refused("repair", output)
    helper.write_text("LEAST = 20\n")
    assert run("repair", output)[0] == 0
    assert run("append", output, f"--input={tmp_path}/more/*")[0] == 0
