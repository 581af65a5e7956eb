"""Plug-ins are entry points of installed packages: found by name, imported when they are used."""

import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import invalidate_caches
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.fresh_interpreter import run_program

from fineshards.curation.step import Judge
from fineshards.encoders.loading import encoder_of_vocabulary
from fineshards.encoders.vocabulary import resolve_vocabulary
from fineshards.errors import MissingLibraryError, UsageError
from fineshards.plugin_registry import Plugins

GROUPS = ("formats", "places", "steps", "encoders", "exports")
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package, by what pip leaves of one: entry points, and a module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(
        package: str, group: str, entry: str, module: str = "", version: str = "1.0"
    ) -> None:
        info = tmp_path / f"{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[fineshards.{group}]\n{entry}\n")
        (tmp_path / f"{package}.py").write_text(module)
        invalidate_caches()

    return install


@pytest.mark.parametrize("group", GROUPS)
def test_what_ships_is_what_the_project_declares(group: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"][f"fineshards.{group}"]
    plugins = Plugins[object](group)
    assert {name: point.value for name, point in plugins.own.items()} == declared
    assert set(declared) <= set(plugins)
    assert all(callable(plugins[name]) and plugins.package(name) is None for name in declared)


def test_a_name_is_resolved_without_what_has_other_names(install: Install) -> None:
    install("broken", "formats", "broken = broken:Broken", "raise RuntimeError('it is broken')")
    done = run_program(
        "import sys\nfrom fineshards.plugin_registry import Plugins\n"
        "formats = Plugins('formats', makes=True)\n"
        "assert 'csv' in formats and formats['csv'].endings == ('.csv',)\n"
        "assert 'fineshards.sources.formats.parquet' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr
    formats = Plugins[object]("formats")
    assert "broken" in formats
    assert list(formats)[-1] == "broken"
    with pytest.raises(
        MissingLibraryError, match=r"^'broken' of the package broken cannot .*it is broken.*pip"
    ):
        formats["broken"]
    install("unfit", "formats", "unfit = unfit:Unfit", "def Unfit(): raise OSError('no room')")
    with pytest.raises(MissingLibraryError, match=r"^'unfit' of the package unfit .*\(no room\)"):
        Plugins[object]("formats", makes=True)["unfit"]
    with pytest.raises(KeyError):
        formats["nosuch"]


def test_a_missing_library_is_named_by_its_extra(install: Install) -> None:
    install("needy", "steps", "needy = needy:Needy", "raise ModuleNotFoundError(name='duckdb')")
    with pytest.raises(MissingLibraryError, match=r"^duckdb is not installed.*\[curation\]'$"):
        Plugins[object]("steps")["needy"]


@pytest.mark.parametrize(("name", "owner"), [("mine", "one"), ("csv", "fineshards")])
@pytest.mark.parametrize("value", ["two:Two", "one:One"])
def test_a_name_twice_is_refused_with_both_packages(
    name: str, owner: str, value: str, install: Install
) -> None:
    install("one", "formats", "mine = one:One")
    install("two", "formats", f"{name} = {value}")
    sentence = f"^the packages {owner} and two both have '{name}' among their formats|"
    sentence += f"^the packages two and {owner} both have '{name}' among their formats"
    with pytest.raises(UsageError, match=sentence):
        list(Plugins[object]("formats"))
    with pytest.raises(UsageError, match=sentence):
        Plugins[object]("formats").get("nosuch")


def test_another_version_than_the_recorded_one_is_refused(install: Install) -> None:
    install("other", "formats", "other = other:Other", "class Other: ...", "1.1")
    formats = Plugins[type]("formats")
    assert formats.recorded("other", "other 1.1").__name__ == "Other"
    for name, package, here in [
        ("other", "other 1.0", "other 1.1"),
        ("gone", "gone 2", "none"),
        ("jsonl", "gone 2", "fineshards"),
    ]:
        with pytest.raises(UsageError, match=f"'{name}'.* is of the package {package};.* {here}."):
            formats.recorded(name, package)
    with pytest.raises(UsageError, match=r"^'gone'.* is of the package fineshards;.* none\."):
        formats.recorded("gone", None)
    with pytest.raises(UsageError, match=r"^--tokenizer_engine gone: no package here has this"):
        encoder_of_vocabulary(resolve_vocabulary("cl100k_base", None), "gone")


def test_a_step_without_a_name_is_one_sentence() -> None:
    @dataclass(frozen=True)
    class Nameless(Judge):
        pass

    with pytest.raises(UsageError, match=r"^the class Nameless has no name for recipes: give"):
        Nameless()


def test_an_installation_older_than_its_code_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "fineshards-0.dist-info").mkdir()
    (tmp_path / "fineshards-0.dist-info/METADATA").write_text("Name: fineshards\nVersion: 0\n")
    done = run_program(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from fineshards.cli.cli import main\n"
        "sys.exit(main(['export', 'x', '--to', 'raw', '--output', 'y']))"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("fineshards: fineshards is installed without its exports, so ")
    assert done.stderr.count("\n") == 1


ENCODERS = """
import pyarrow as pa
from fineshards.plugins import CannotEncodeError, FastEncoder

class Same(FastEncoder):
    name = "same 1"
    def encode(self, texts):
        return self.reference.encode(texts)

class Other(FastEncoder):
    name = "other 1"
    def encode(self, texts):
        return self.reference.encode(pa.array([text.upper() for text in texts.to_pylist()]))

class Unable(Same):
    def __init__(self, vocabulary, reference):
        raise CannotEncodeError(f"{len(vocabulary.special_tokens)} special tokens")
"""


def test_an_encoder_of_another_package_must_have_the_tokens_of_the_reference(
    install: Install, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{name.lower()} = quick:{name}" for name in ("Same", "Other", "Unable")]
    install("quick", "encoders", "\n".join(names), ENCODERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def build(engine: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fineshards", "build", "--input", str(small)]
        flags = [f"--tokenizer_engine={engine}", f"--output={tmp_path}/{engine}"]
        return subprocess.run([*command, *flags], capture_output=True, text=True)

    done = build("same")
    assert done.returncode == 0, done.stderr
    done = build("other")
    assert done.returncode == 1
    assert "other 1 gives different tokens for the golden texts" in done.stderr
    done = build("unable")
    assert done.returncode == 2
    assert "unable: cannot be used for cl100k_base here: 5 special tokens." in done.stderr
    done = build("sane")
    assert "--tokenizer_engine sane: there is no such engine. Did you mean same?" in done.stderr
