"""Commands on a dataset that has grown: what they show, and the damage that they find."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.damage import flip_bit
from support.generations import FLAGS, ROWS, make_generations, opened
from support.growing import append, build, unfinished_append, write_parts
from support.oracle import files_in, shards_in

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.job_status.status import StatusReader
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.growing


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_parts(tmp_path_factory.mktemp("parts"), ROWS, 30)


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory, parts: list[Path]) -> list[Path]:
    """Read-only."""
    return make_generations(tmp_path_factory.mktemp("generations"), parts)


def test_inspect_status_and_find_know_generations(
    generations: list[Path], parts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: object) -> str:
        capsys.readouterr()
        assert main(list(map(str, arguments))) == 0
        return capsys.readouterr().out

    last = generations[-1]
    shown = json.loads(printed("inspect", last, "--json"))
    assert [each["number"] for each in shown["generations"]] == [1, 2, 3]
    assert sum(each["tokens"] for each in shown["generations"]) == shown["tokens"]
    assert f"; {parts[2].parent}/" in printed("inspect", last)
    for number, copy in enumerate(generations, 1):
        old = json.loads(printed("inspect", last, f"--generation={number}", "--json"))
        assert old["fingerprint"] == json.loads(printed("inspect", copy, "--json"))["fingerprint"]
        status = json.loads(printed("status", copy, "--json"))
        assert (status["stage"], status["generation"], status["stages"][0]["done"]) == (
            "finished",
            number,
            number,
        )
        # Who begins to follow it now is told what it holds.
        watched = StatusReader(open_storage(str(copy))).read(added=True)
        assert watched == fineshards.status(copy)
    assert printed("status", last).startswith("finished: ")
    assert "; generation 3" in printed("status", last)


def test_find_finds_what_a_generation_has(
    generations: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def found(folder: Path, id_: str, *flags: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = main(["inspect", "--find", str(folder), f"--id={id_}", "--json", *flags])
        return code, json.loads(capsys.readouterr().out)

    last = generations[-1]
    with_id = [row["id"] for row in ROWS if row["id"] and row["text"] is not None]
    for id_ in with_id[::7]:
        for number, copy in enumerate(generations, 1):
            assert found(last, id_, f"--generation={number}") == found(copy, id_)
    assert found(last, with_id[-1])[0] == 0
    assert found(last, with_id[-1], "--generation=1")[0] == 1


def test_the_progress_of_an_append(
    generations: list[Path], parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(generations[0], folder)
    append(folder, parts[1])
    printed = capsys.readouterr()
    tokens = [fineshards.verify(copy).tokens for copy in generations]
    assert f"tokenize: 1 block, {tokens[1] - tokens[0]:,} tokens" in printed.err
    before, after = (shards_in(copy) for copy in generations[:2])
    assert f"write: {len(after.items() - before.items())} shards" in printed.err
    assert "finished generation 2 in " in printed.out
    unfinished_append(folder, parts[2])
    status = fineshards.status(folder)
    assert (status.stage, status.generation, status.of("read").total) == ("writing", 3, 1)
    assert status.of("write").done == status.of("write").total
    capsys.readouterr()
    assert main(["status", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("writing generation 3\n")
    assert fineshards.verify(folder, sample=100).problems == []


def test_the_first_command_again_finds_the_dataset_finished(
    generations: list[Path], parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(generations[2], folder)
    before = files_in(folder)
    build(folder, parts[0], *FLAGS)
    assert "already finished, nothing to do" in capsys.readouterr().out
    assert files_in(folder) == before
    build(folder, parts[0], *FLAGS, "--overwrite")
    old, new = files_in(generations[0]), files_in(folder)
    assert new == old


def test_what_is_left_of_a_dataset_that_had_grown_is_no_unfinished_build(
    generations: list[Path], parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An --overwrite that was interrupted leaves shards that the first build does not have."""
    folder = tmp_path / "out"
    shutil.copytree(generations[1], folder)
    (folder / "metadata/manifest.json").unlink()
    before = files_in(folder)
    command = ["build", f"--output={folder}", f"--input={parts[0]}", *FLAGS]
    assert main(command) == 2
    assert "holds what is left of a dataset that had grown: " in capsys.readouterr().err
    assert files_in(folder) == before
    assert main([*command, "--overwrite"]) == 0
    assert files_in(folder) == files_in(generations[0])


@pytest.mark.parametrize("number", [1, 2])
def test_damage_is_found_in_generations_that_have_the_shard(
    generations: list[Path], tmp_path: Path, number: int
) -> None:
    folder = Path(shutil.copytree(generations[1], tmp_path / "out"))
    name = max(path.name for path in (generations[number - 1] / "train").iterdir())
    flip_bit(folder / "train" / name, -3)
    for generation in (1, 2):
        problems = fineshards.verify(folder, generation=generation).problems
        assert bool(problems) == (generation >= number)
        assert all(f"train/{name}" in problem for problem in problems)


@pytest.mark.parametrize("damage", ["flip", "delete"])
@pytest.mark.parametrize(
    "name", ["0001.json", "0002.job.json", "0002.json", "0003.job.json", "0003.json"]
)
def test_damage_of_the_records_of_generations_is_found(
    generations: list[Path], tmp_path: Path, name: str, damage: str
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(generations[2], folder)
    path = folder / "metadata/generations" / name
    assert {each.name for each in path.parent.iterdir()} >= {name}
    if damage == "flip":
        flip_bit(path, path.stat().st_size // 2)
    else:
        path.unlink()
    for generation in (None, 1, 2, 3):
        problems = fineshards.verify(folder, generation=generation).problems
        assert any(f"metadata/generations/{name}" in problem for problem in problems)


@pytest.mark.parametrize("there", [2, 3])
def test_swapped_manifests_are_refused(
    generations: list[Path], parts: list[Path], tmp_path: Path, there: int
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(generations[there - 1], folder)
    swapped = folder / "metadata/manifest.json", folder / "metadata/generations/0001.json"
    contents = [path.read_bytes() for path in swapped]
    for path, content in zip(swapped, reversed(contents), strict=True):
        path.write_bytes(content)
    sentence = r"manifest.json is the manifest of generation 1, but .*0002.json is there.* repair\."
    with pytest.raises(OutputError, match=sentence):
        fineshards.verify(folder)
    with pytest.raises(OutputError, match=sentence):
        opened(folder)
    with pytest.raises(OutputError, match=sentence):
        fineshards.append(folder, input=parts[2])
    for path, content in zip(swapped, contents, strict=True):
        path.write_bytes(content)
    assert fineshards.verify(folder).problems == []


def test_kept_manifests_in_each_other_s_place_are_refused(
    generations: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(generations[2], folder)
    first, second = (folder / f"metadata/generations/000{number}.json" for number in (1, 2))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert opened(folder).generation == 3
    with pytest.raises(OutputError, match="is the manifest of generation 2, expected"):
        opened(folder, generation=1)
    assert not fineshards.verify(folder).ok
