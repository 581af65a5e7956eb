"""The rooms of the house: imports run only downward, and what is cheap stays cheap to import."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fresh_interpreter import run_program

ROOT = Path(__file__).parent.parent

# From the top down; a room imports from rooms below it only.
ROOMS = ["benchmarks", "pipeline", "transforms", "loader", "sources", "encoders", "shards"]
# Rooms of the repository that are not installed with the package.
NOT_SHIPPED = {"benchmarks"}
# The loader is of the training machines: it knows the files on disk and nothing else.
FORBIDDEN = {"loader": {"sources", "encoders"}}
# Imported only by the adapter to each, which nothing else imports.
TRAINERS = {"torch", "torchdata", "jax", "grain"}

WITHOUT_BEAM = [room for room in ROOMS[ROOMS.index("transforms") + 1 :] if (ROOT / room).is_dir()]
MODULES = sorted(
    path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")
)


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}, line {node.lineno}: a relative import"
            assert node.module is not None
            yield node.module


def test_all_rooms_are_found() -> None:
    present = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert present <= set(ROOMS)
    assert {"pipeline", "transforms", "sources", "encoders", "shards"} <= present
    packages = re.search(r"packages=(\[.*?\])", (ROOT / "setup.py").read_text())
    assert packages is not None
    assert set(ast.literal_eval(packages[1])) == present - NOT_SHIPPED


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_only_downward(module: str) -> None:
    room = module.split("/")[0]
    above = set(ROOMS[: ROOMS.index(room)]) | FORBIDDEN.get(room, set())
    wrong = [name for name in imported(ROOT / module) if name.split(".")[0] in above]
    assert wrong == []


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_short_and_have_one_idea(module: str) -> None:
    assert len((ROOT / module).read_text().splitlines()) <= 400
    assert Path(module).stem not in {"utils", "util", "helpers", "common", "misc"}


def modules_after(program: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded when a program has run."""
    listing = "\nimport sys, json; print('\\n' + json.dumps(sorted(sys.modules)))"
    done = run_program(program + listing)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("room", WITHOUT_BEAM)
def test_a_room_without_beam_does_not_import_it_by_any_way(room: str) -> None:
    names = [
        path.with_suffix("").relative_to(ROOT).as_posix().replace("/", ".")
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py") and not TRAINERS & set(imported(path))
    ]
    loaded = modules_after("".join(f"import {name}\n" for name in names))
    assert room in loaded
    assert loaded.isdisjoint({"apache_beam", "pipeline", "transforms", *TRAINERS})


def test_a_training_machine_reads_a_local_dataset_with_numpy_alone() -> None:
    names = [path.stem for path in (ROOT / "loader").glob("*.py")]
    program = "".join(f"import loader.{name}\n" for name in names if name != "torch_batches")
    loaded = modules_after(program)
    assert "numpy" in loaded
    assert loaded.isdisjoint({"apache_beam", "pyarrow", "google_crc32c", "rich", *TRAINERS})


@pytest.mark.parametrize(
    "arguments", [["--help"], ["build", "--help"], ["verify", "--help"], ["tune", "--help"]]
)
def test_help_imports_nothing_slow(arguments: list[str]) -> None:
    loaded = modules_after(
        "from fineshards.pipeline.cli import main\n"
        f"try: main({arguments})\n"
        "except SystemExit as end: assert end.code in (0, None)\n"
    )
    assert "pipeline" in loaded
    assert loaded.isdisjoint({"apache_beam", "pyarrow", "tiktoken", "datasets", "huggingface_hub"})


@pytest.mark.parametrize("flag", ["--shard_tokens=0", "--test_fraction=2", "--dataset=x"])
def test_a_mistake_is_reported_without_importing_anything_slow(flag: str) -> None:
    loaded = modules_after(
        "from fineshards.pipeline.cli import main\n"
        f"code = main(['build', '--input=x', '--output=y', {flag!r}])\n"
        "assert code == 2, code\n"
    )
    assert loaded.isdisjoint({"apache_beam", "pyarrow", "tiktoken"})


def test_a_head_start_does_not_wait_for_beam() -> None:
    loaded = modules_after(
        "import fineshards.pipeline.main\nimport fineshards.pipeline.launch\n"
        "import fineshards.transforms.head_start\n"
    )
    assert "transforms" in loaded
    assert "apache_beam" not in loaded


def test_a_manifest_is_read_without_importing_more_than_numpy() -> None:
    loaded = modules_after("import fineshards.shards.manifest\n")
    assert loaded.isdisjoint({"apache_beam", "pyarrow", "tiktoken", "google_crc32c"})
