"""One digit of an unfinished job's files changes between a kill and the resume."""

import re
import shutil
from pathlib import Path

import pytest
from support.curated import Steps, write_recipe
from support.growing import append, build, made_up_rows, write_rows
from support.kills import kill
from support.oracle import files_in

from fineshards.cli.cli import main

STEPS: Steps = [
    ("score", {"name": "length", "by": "characters"}),
    ("exact", {}),
    ("minhash", {"n_grams": 2, "buckets": 20, "hashes_per_bucket": 1, "threshold": 0.6}),
]
FLAGS = ["--shard_tokens=400", "--block_bytes=1", "--test_fraction=0.3"]
SHUFFLE = ["--shuffle_seed=5", "--memory_bytes=900"]
MARKS = ("of-", "compared", "index", "sets")
# By build: its flags, and the kinds of its files.
BUILDS = {
    "plain": (
        [],
        {
            *("blocks/-.json", "blocks/-.train.parquet", "files/.json", "plan.json"),
            *("shards/test_.json", "shards/train_.json"),
        },
    ),
    "shuffle": (
        SHUFFLE,
        {
            *("blocks/-.json", "blocks/-.tokens", "blocks/-.documents"),
            *("buckets/-.json", "buckets/-.test.tokens", "buckets/-.train.parquet"),
        },
    ),
    "append": ([], {"blocks/-.json", "files/.json", "shards/train_.json"}),
    "recipe": (
        ["--statistics", "--keep_keys"],
        {
            *("judged/-.json", "judged/-.keys", "marked/.json", "statistics/-.json"),
            *(f"marks/-{kind}{ending}" for kind in MARKS for ending in (".json", ".marks")),
        },
    ),
}


def kind_of(path: Path) -> str:
    """What a checkpoint is: its folder, and its name without numbers."""
    parts = path.parts[path.parts.index("checkpoints") + 2 :]
    return "/".join(dict.fromkeys((parts[0], re.sub("[0-9]", "", path.name))))


def with_another_digit(content: bytes) -> bytes:
    """Content with another digit in the middle, or another byte where it has none."""
    found = [match.start() for match in re.finditer(rb"[0-9]", content)] or [*range(len(content))]
    changed = bytearray(content)
    changed[found[len(found) // 2]] ^= 1
    return bytes(changed)


@pytest.mark.kills
@pytest.mark.parametrize("kind", BUILDS)
def test_a_changed_digit_is_named_and_the_work_is_done_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    flags, expected = BUILDS[kind]
    files = [write_rows(tmp_path / f"in/{n}.parquet", made_up_rows(n + 5, 22)) for n in range(3)]
    whole, stopped, output = tmp_path / "whole", tmp_path / "stopped", tmp_path / "out"
    flags = [*FLAGS, *flags, "--workers=2"]
    if kind == "recipe":
        steps = [*STEPS, ("seen_in", {"files": [str(files[2])]})]
        flags.append(f"--recipe={write_recipe(tmp_path / 'recipe.toml', steps)}")
    command = ["build", f"--input={tmp_path}/in/[01]*", f"--output={output}", *flags]
    if kind == "append":
        build(output, files[0], *flags)
        command = ["append", str(output), "--input", str(files[1]), "--workers=2"]
        shutil.copytree(output, whole)
        append(whole, files[1])
    else:
        build(whole, *files[:2], *flags)
    kill("replace:manifest.json", *command, workers=True)
    output.rename(stopped)
    undisturbed = files_in(whole)
    victims = {}
    for path in sorted(stopped.glob("checkpoints/[0-9a-f]*/**/*.*")):
        if path.is_file() and path.stat().st_size:
            victims[kind_of(path)] = path
    assert expected <= victims.keys()
    if kind != "append":
        victims["job.json"] = stopped / "metadata/job.json"
    for number, (name, path) in enumerate(victims.items()):
        folder = Path(shutil.copytree(stopped, tmp_path / f"out-{number}"))
        victim = folder / path.relative_to(stopped)
        victim.write_bytes(with_another_digit(victim.read_bytes()))
        capfd.readouterr()
        assert main([word.replace(str(output), str(folder)) for word in command]) == 0, name
        said = capfd.readouterr().err
        assert victim.name in said, (name, said)
        assert not re.search("bug|report|cannot be shown", said), said
        found = files_in(folder)
        assert {n: found[n] for n in found if "checkpoints" not in n} == undisturbed, name
        shutil.rmtree(folder)
    if kind not in ("plain", "append"):
        return
    # Full shards, which have the same size; those of an append are the last ones.
    first, second = sorted(stopped.glob("train/*.npy"))[-3:-1]
    assert first.stat().st_size == second.stat().st_size
    first.rename(tmp_path / "first")
    second.rename(first)
    (tmp_path / "first").rename(second)
    assert main([word.replace(str(output), str(stopped)) for word in command]) == 0
    assert files_in(stopped) == undisturbed
