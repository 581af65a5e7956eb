"""The example package of plug-ins, installed as pip would: then commands know what it has."""

import gzip
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.checkout import ROOT

from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

EXAMPLE = ROOT / "examples/plugin"
EXAMPLE_MODULE = "fineshards_example"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def python(tmp_path: Path) -> Run:
    """Runs Python in a folder, with the package installed."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "installed" / f"{EXAMPLE_MODULE}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    heads = (f"{name}: {project[name.lower()]}\n" for name in ("Name", "Version"))
    (info / "METADATA").write_text("".join(heads))
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
        for group, named in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(points))
    path = os.pathsep.join(map(str, (info.parent, EXAMPLE)))

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
        )

    return python


@pytest.fixture
def run(python: Run) -> Run:
    return lambda *arguments: python("-m", "fineshards", *arguments)


@pytest.mark.long
def test_a_build_a_recipe_and_errors_know_the_format(run: Run, tmp_path: Path) -> None:
    sequences = b">s1 the first\nMKV\nLAA\n>s2\n>s3 the \xff\nMEE\n>s4 a fourth\r\nMQQ\r\n"
    (tmp_path / "a.fa.gz").write_bytes(gzip.compress(sequences))
    build = ["build", "--input=a.fa.gz", "--max_bad_rows=2"]
    refused = run(*build, "--output=none", "--id_column=name")
    assert "a.fa.gz has no column 'name'; its columns are text, id, desc" in refused.stderr
    flags = ["--output=out", "--test_fraction=0", "--where", "description <> 'a fourth'"]
    built = run(*build, *flags)
    assert built.returncode == 0, built.stderr
    shown = run("inspect", "out", "--shard=train/0", "--document=0").stdout
    assert "MKVLAA" in shown
    assert "s1" in shown
    (rejected,) = (tmp_path / "out/metadata/rejected").rglob("*.jsonl")
    assert [json.loads(each)["reason"] for each in rejected.read_text().splitlines()] == [
        "it has no sequence",
        "its 'description' is not valid UTF-8",
    ]
    (info,) = (tmp_path / "installed").iterdir()
    (info / "METADATA").write_text("Name: fineshards-example\nVersion: 1.1\n")
    assert (
        "'fasta', one of the formats, is of the package fineshards-example 1.0; installed is"
        in (run("verify", "out", "--sample=100%").stdout)
    )


@pytest.mark.long
def test_commands_and_pages_know_the_step_and_the_export(run: Run, tmp_path: Path) -> None:
    assert "text-jsonl, torchtitan, lines." in " ".join(run("help", "export").stdout.split())
    assert "torchtitan lines)" in run("completion", "bash").stdout
    assert "ascii" in run("recipe", "steps").stdout
    assert "min_share: a number; default 0.9" in run("recipe", "steps", "ascii").stdout
    (tmp_path / "r.toml").write_text('[[steps]]\nuse = "ascii"\nmin_share = 0.5\n')
    (tmp_path / "a.jsonl").write_text('{"text": "a b"}\n{"text": "中文"}\n{"text": "c"}\n')
    flags = ["--output=out", "--recipe=r.toml", "--test_fraction=0"]
    built = run("build", "--input=a.jsonl", *flags)
    assert built.returncode == 0, built.stderr
    assert "1 ascii" in run("stats", "out").stdout
    (step,) = Manifest.load(open_storage(tmp_path / "out")).settings.recipe.steps
    assert step.pins == {"package": "fineshards-example 1.0"}
    done = run("export", "out", "--to=lines", "--output=lines")
    assert "line.split() for line in open" in done.stdout
    assert (tmp_path / "lines/train-00000.txt").read_text() == "64 293 100257\n66 100257\n"
    record = json.loads((tmp_path / "lines/export.json").read_text())
    assert record["options"]["package"] == "fineshards-example 1.0"
    # A recipe is resumed, read and verified with the same version of the package alone.
    (info,) = (tmp_path / "installed").iterdir()
    (info / "METADATA").write_text("Name: fineshards-example\nVersion: 1.1\n")
    again = run("verify", "out", "--sample=100%")
    assert again.returncode != 0
    assert "was 'fineshards-example 1.0', now 'fineshards-example 1.1'" in again.stdout


AUTHORS_TESTS = """
from pathlib import Path
import fineshards
from fineshards.curation.steps import Exact, MinHash
from fineshards.plugins import Outcome, testing
from fineshards_example.ascii import Ascii
from fineshards_example.fasta import Fasta
from fineshards_example.lines import Lines

Path("a.fa").write_bytes(b">1\\nMK\\nV\\n>2\\n>3\\nMEE\\n")
rows = testing.check_format("a.fa")
assert rows == [(0, "MKV"), (1, "", "it has no sequence"), (2, "MEE")], rows
decided = testing.check_step(Ascii(min_share=0.5), ["a", "\u4e2d"])
assert decided == [(None, "a"), ("ascii", None)], decided
for step in (Exact(), MinHash()):
    testing.check_step(step)
fineshards.build(input="a.fa", output="out", max_bad_rows=1, shard_tokens=2, test_fraction=0)
files = testing.check_export("out", "lines", "lines")
assert [*files] == ["train-00000.txt", "train-00001.txt"], files
for name in ("gigatoken", "tiktoken"):
    testing.check_encoder(name)

def refuses(check, *given):
    try:
        check(*given)
    except AssertionError as error:
        print(error)
    else:
        raise SystemExit(f"{check.__name__} found nothing")

read, calls = Fasta.read, iter(range(10**6))
def other_text(self, *given):
    for batch in read(self, *given):
        yield batch if next(calls) else batch._replace(bad=[])
Fasta.read = other_text
refuses(testing.check_format, "a.fa")
Ascii.apply = lambda self, batch: Outcome([None if len(batch) > 1 else "ascii"] * len(batch))
refuses(testing.check_step, Ascii())
write = Lines.write
def numbered(self, reader, settings, target):
    target.write(f"{reader.part.index}.txt", str(next(calls)).encode())
    return write(self, reader, settings, target)
Lines.write = numbered
refuses(testing.check_export, "out", "others", "lines")
"""


@pytest.mark.long
def test_the_checks_for_authors_pass_and_can_fail(python: Run) -> None:
    done = python("-c", AUTHORS_TESTS)
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "rows in blocks of 1 bytes",
        "documents alone",
        "files written by four threads",
    ]
