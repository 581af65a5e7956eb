"""The rooms of the package: imports run one way, and what is cheap stays cheap to import."""

import ast
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.fresh_interpreter import run_program

import fineshards

# From the top down; a room imports from the rooms below it only. `fineshards` is the package's own
# three lines: its public names and its command.
ROOMS = [
    *("benchmarks", "tools", "fineshards", "cli", "plugins", "pipeline", "transforms"),
    *("job_status", "reports", "maintenance", "verification", "inspection", "worker"),
    *("exports", "loader", "curation", "chat", "encoders", "sources", "publishing", "wording"),
    *("shards", "storage", "config"),
    *("flags", "parser", "text_template", "plugin_registry", "extras", "cores"),
    *("parent", "credentials"),
    "errors",
]
# Folders of the checkout that are installed inside the package.
MAPPED = ("pipeline", "transforms")
# A room that imports less than the rooms below it. The loader knows the files on disk alone,
# and the tokenizer where a text is asked for; exports know the sources too, for their columns.
ALLOWED = {
    "exports": {
        "plugin_registry",
        "cores",
        "encoders",
        "sources",
        "shards",
        "storage",
        "flags",
        "errors",
    },
    "loader": {"encoders", "shards", "storage", "extras", "errors"},
    "curation": {"plugin_registry", "shards", "storage", "extras", "errors"},
    "chat": {"encoders", "storage", "errors"},
    "encoders": {"plugin_registry", "shards", "storage", "cores", "errors"},
    "publishing": {"shards", "storage", "cores", "credentials", "errors", "extras"},
    "sources": {
        *("chat", "shards", "storage", "text_template", "plugin_registry", "extras"),
        *("credentials", "errors"),
    },
    "shards": {"storage", "text_template", "errors"},
    "storage": {"credentials", "errors", "extras"},
    "config": {"credentials", "errors", "flags", "text_template"},
    "flags": {"plugin_registry", "credentials", "errors"},
    "credentials": {"errors"},
    "plugin_registry": {"extras", "errors"},
    "extras": {"errors"},
}
WITH_BEAM = {"benchmarks", "pipeline", "transforms"}
# Imported only by the loader's adapter to each.
TRAINERS = {"torch", "torchdata", "jax", "grain"}
# Files of one folder.
MOST_FILES = 25
# Lines of each room, all its files included. They only fall: a feature that needs more names the
# room, and another one in it goes.
MOST_LINES = {
    "chat": 1_191,
    "cli": 1_478,
    "curation": 7_308,
    "encoders": 1_718,
    "exports": 2_619,
    "inspection": 1_601,
    "job_status": 686,
    "loader": 6_652,
    "maintenance": 744,
    "pipeline": 2_880,
    "plugins": 207,
    "publishing": 845,
    "reports": 981,
    "root": 1_530,
    "shards": 6_566,
    "sources": 4_437,
    "storage": 2_054,
    "templates": 462,
    "transforms": 874,
    "verification": 1_106,
    "worker": 1_970,
}


def module_name(path: Path) -> str:
    """The name under which a file of the checkout is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in MAPPED:
        parts = ("fineshards", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_name(path): path
    for folder in ("benchmarks", "tools", "fineshards", *MAPPED)
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def room_of(module: str) -> str | None:
    """The room of a module; None for a library."""
    first, _, rest = module.partition(".")
    if first == "fineshards" and rest not in ("", "__main__"):
        return rest.partition(".")[0]
    return first if first in ("benchmarks", "tools", "fineshards") else None


def modules_of(room: str) -> list[str]:
    return [module for module in FILES if room_of(module) == room]


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}, line {node.lineno}: a relative import"
            assert node.module is not None
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from [name for name in names if name in FILES] or [node.module]


def importers_of(names: set[str]) -> list[str]:
    """The modules that import one of these top-level modules, anywhere in them."""
    return [
        module
        for module, path in FILES.items()
        if not names.isdisjoint(name.partition(".")[0] for name in imported(path))
    ]


def test_every_module_is_in_a_room() -> None:
    assert {room_of(module) for module in FILES} == set(ROOMS)


@pytest.mark.parametrize("module", FILES)
def test_imports_run_one_way(module: str) -> None:
    room = room_of(module)
    assert room is not None
    below = ALLOWED.get(room, set(ROOMS[ROOMS.index(room) + 1 :]))
    rooms = {room_of(name) for name in imported(FILES[module])} - {None, room}
    assert rooms <= below


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Late imports and those for types included."""
    graph = {module: {*imported(path)} & set(FILES) - {module} for module, path in FILES.items()}
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_no_room_hides_a_public_name() -> None:
    """An imported module becomes a name of its package: `fineshards.verify` is a function."""
    assert not set(ROOMS) & set(fineshards.__all__)


def test_mapped_folders_are_imported_by_their_installed_names() -> None:
    assert importers_of(set(MAPPED)) == []


def test_beam_is_imported_in_the_pipeline_and_its_steps_alone() -> None:
    importers = importers_of({"apache_beam"})
    assert importers != []
    assert [module for module in importers if room_of(module) not in WITH_BEAM] == []


def product_files() -> list[Path]:
    """What users install, and the templates: no file of a cache."""
    return [
        path
        for folder in ("fineshards", "pipeline", "transforms", "templates")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]


# A module with its folder, as pages name it. `tools/` may also be that of a trainer.
MODULE = re.compile(
    rf"(?<![\w./])(?:fineshards/)?(?:{'|'.join({*ROOMS} - {'tools'})})/(?:\w+/)*\w+\.py\b"
)


@pytest.mark.parametrize("page", [*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"])
def test_a_module_that_a_page_names_exists(page: Path) -> None:
    named = {found.removeprefix("fineshards/") for found in MODULE.findall(page.read_text())}
    folders = (ROOT, ROOT / "fineshards")
    assert [name for name in named if not any((each / name).is_file() for each in folders)] == []


def test_no_folder_is_too_full_to_find_a_file_in() -> None:
    folders = Counter(path.parent.relative_to(ROOT) for path in product_files())
    assert {str(folder): count for folder, count in folders.items() if count > MOST_FILES} == {}


def test_no_room_grows_larger() -> None:
    lines = Counter[str]()
    for path in product_files():
        if path.parent.name == "templates" and path.suffix == ".jinja":
            continue  # chat templates, which are data
        folder, *below = path.relative_to(ROOT).parts[:-1]
        room = (below or ["root"])[0] if folder == "fineshards" else folder
        lines[room] += path.read_text().count("\n")
    assert {room: count for room, count in lines.items() if count > MOST_LINES[room]} == {}


def test_the_package_has_all_its_folders() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = [
        module
        for module, path in FILES.items()
        if path.name == "__init__.py" and room_of(module) not in ("benchmarks", "tools")
    ]
    assert metadata["packages"] == sorted(packages)
    assert metadata["package-dir"] == {f"fineshards.{folder}": folder for folder in MAPPED}
    # A folder without __init__.py would not be installed.
    for path in FILES.values():
        assert (path.parent / "__init__.py").is_file(), path.parent


@pytest.mark.parametrize("folder", MAPPED)
def test_a_mapped_folder_cannot_be_imported_under_a_second_name(folder: str) -> None:
    done = run_program(f"import {folder}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: this package is fineshards.{folder}; it cannot be imported as {folder}"
    )


def loaded_after(program: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded when a program has run."""
    listing = "\nimport sys, json; print('\\n' + json.dumps(sorted(sys.modules)))"
    done = run_program(program + listing)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def imports(modules: list[str]) -> str:
    return "".join(f"import {module}\n" for module in modules)


def test_the_rooms_below_the_steps_do_not_load_beam_indirectly() -> None:
    below = ROOMS[ROOMS.index("transforms") + 1 :]
    modules = [
        name
        for name, path in FILES.items()
        if room_of(name) in below and not TRAINERS & set(imported(path))
    ]
    loaded = loaded_after(imports(modules))
    assert loaded.issuperset(modules)
    assert {room_of(module) for module in loaded}.isdisjoint(WITH_BEAM)
    assert loaded.isdisjoint({"apache_beam", *TRAINERS})


def test_a_training_machine_reads_a_local_dataset_with_numpy_alone() -> None:
    modules = [name for name in modules_of("loader") if name != "fineshards.loader.torch_batches"]
    loaded = loaded_after(imports(modules))
    assert "numpy" in loaded
    assert loaded.isdisjoint({"apache_beam", "pyarrow", "google_crc32c", "rich", *TRAINERS})


def test_all_names_are_imported_that_a_machine_with_numpy_alone_can_use() -> None:
    loaded = loaded_after(
        "import sys\n"
        "for name in ('pyarrow', 'apache_beam', 'google_crc32c', 'rich', 'jinja2', 'torch'):\n"
        "    sys.modules[name] = None\n"
        "from fineshards import *\n"
        "assert BatchLoader and TokenDataset and Mixture and build\n"
        "assert 'verify' not in globals()\n"
        "try: from fineshards import verify\n"
        "except ImportError as error: assert 'pyarrow is not installed' in str(error), error\n"
        "else: raise AssertionError\n"
    )
    assert "fineshards.loader.token_dataset" in loaded


def test_the_public_names_cost_nothing_until_they_are_used() -> None:
    loaded = loaded_after("import fineshards\nassert 'build' in dir(fineshards)\n")
    assert "fineshards" in loaded
    assert loaded.isdisjoint({"numpy", "pyarrow", "apache_beam", "fineshards.errors"})


def test_help_loads_no_library() -> None:
    loaded = loaded_after(
        "from fineshards.cli.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code in (0, None)\n"
    )
    assert "fineshards.cli.options" in loaded
    assert loaded.isdisjoint({"numpy", "pyarrow", "apache_beam", "rich", "importlib.metadata"})


@pytest.mark.parametrize("flag", ["--shard_tokens=0", "--test_fraction=2", "--dataset=x"])
def test_a_mistake_is_reported_without_importing_anything_slow(flag: str) -> None:
    loaded = loaded_after(
        "from fineshards.cli.cli import main\n"
        f"code = main(['build', '--input=x', '--output=y', {flag!r}])\n"
        "assert code == 2, code\n"
    )
    assert loaded.isdisjoint({"apache_beam", "pyarrow", "tiktoken"})


def test_worker_processes_are_forked_without_beam() -> None:
    loaded = loaded_after(
        "import fineshards.cli.build_command\nimport fineshards.pipeline.launch\n"
        "import fineshards.worker.pool\n"
    )
    assert "fineshards.worker.pool" in loaded
    assert "apache_beam" not in loaded


def test_a_manifest_is_read_without_importing_more_than_numpy() -> None:
    loaded = loaded_after("import fineshards.shards.job.manifest\n")
    assert loaded.isdisjoint({"apache_beam", "pyarrow", "tiktoken", "google_crc32c"})
