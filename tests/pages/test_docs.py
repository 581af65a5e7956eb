"""The examples and promises of the pages on the loader, exports, growing and trainers hold."""

import glob
import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.build_here import build_here
from support.checkout import ROOT, SAMPLE
from support.growing import append, build, write_rows
from support.page_examples import run_examples

import fineshards
from benchmarks.made_up_dataset import make_dataset
from fineshards.cli.cli import main
from fineshards.storage.open import open_storage

PAGE = ROOT / "docs/loader.md"
LOADER, _, REST = PAGE.read_text().partition("\n## Packing\n")
PACKING, _, MIXING = REST.partition("\n## Mixing\n")


def examples(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_examples_of_the_loader_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--input", str(SAMPLE), "--output", str(tmp_path / "out"), "--shard_tokens=50000"]
    assert main(["build", *flags]) == 0
    monkeypatch.chdir(tmp_path)
    assert len(examples(LOADER)) >= 10
    names: dict[str, object] = {}
    ran = 0
    for example in examples(LOADER):
        frameworks = set(re.findall(r"(?:from|import) (torchdata|torch|jax|grain)\b", example))
        if all(find_spec(framework) for framework in frameworks):
            exec(compile(example, str(PAGE), "exec"), names)
            ran += 1
    assert ran >= 5
    names.clear()


def test_the_examples_of_packing_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_dataset(open_storage("out"), 10**6, 10**5)
    for example in examples(PACKING):
        exec(compile(example, str(PAGE), "exec"), {})


def test_the_snippets_of_the_readme_run_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "samples").mkdir()
    shutil.copy(SAMPLE, tmp_path / "samples/debian_text.parquet")
    monkeypatch.chdir(tmp_path)
    snippets = examples((ROOT / "README.md").read_text())
    assert len(snippets) == 2
    for snippet in snippets:
        names: dict[str, object] = {}
        exec(compile(snippet, "README.md", "exec"), names)
    assert names["inputs"].shape == (512, 2048)  # type: ignore[attr-defined]


def test_the_examples_of_mixing_run_and_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, samples in (("web", 488), ("code", 400)):
        folder = open_storage(str(tmp_path / "out" / name))
        make_dataset(folder, samples * 2048 + 1, shard_tokens=10**5)
    make_dataset(open_storage(str(tmp_path / "out" / "math")), 2048 * 9, shard_tokens=10**5)
    grow_a_dataset(tmp_path / "out" / "news", tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in examples(MIXING):
        exec(example, names)
    mix = names["mix"]
    # The values in the comments.
    for code, comment in re.findall(r"^(mix[.\[].*?)  +# (.*)$", MIXING, re.MULTILINE):
        if not comment.startswith("two"):
            value = eval(code, {"mix": mix})
            shown = re.match(r"\(.*?\)|\{.*?\}", comment)
            assert shown is not None
            assert eval(shown[0]) == value
    shown_plan = re.search(r"^    web .*$", MIXING, re.MULTILINE)
    assert shown_plan is not None
    assert shown_plan[0].split() in [line.split() for line in capsys.readouterr().out.splitlines()]


def grow_a_dataset(folder: Path, work: Path) -> None:
    """A dataset of two generations, of which the first has more than 40 samples of 2,048 tokens."""
    first, second = (
        write_rows(work / f"{number}.parquet", [{"text": f"{number} {at} " * 3000} for at in rows])
        for number, rows in enumerate((range(30), range(5)))
    )
    build(folder, first, "--test_fraction=0")
    append(folder, second)


PAGE, TRAINERS = ((ROOT / f"docs/{name}.md").read_text() for name in ("formats", "trainers"))


def commands(page: str, name: str) -> list[list[str]]:
    joined = page.replace("\\\n", " ")
    lines = re.findall(rf"^    fineshards ({name} .+)$", joined, re.MULTILINE)
    return [shlex.split(line) for line in lines]


def test_the_commands_of_the_pages_run_as_written(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    build_here(input=sample, output="out", shard_tokens=100_000)
    exports = commands(PAGE + TRAINERS, "export")
    assert len(exports) > 8
    for arguments in exports:
        assert main(arguments) == 0, arguments


PAGES = [ROOT / "docs/growing.md", ROOT / "docs/redaction.md"]


def test_the_pages_run_and_print_what_they_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pq.read_table(SAMPLE)
    for number, month in enumerate(["2026-09", "2026-10", "2026-11"]):
        (tmp_path / "months" / month).mkdir(parents=True)
        part = table.slice(number * 350, 350)
        pq.write_table(part, tmp_path / "months" / month / "part.parquet")
    monkeypatch.chdir(tmp_path)
    commands = 0
    names: dict[str, object] = {}
    for command, code in re.findall(
        r"^    fineshards ([^\n]*)$|^```python\n(.*?)^```$",
        "".join(page.read_text() for page in PAGES),
        re.MULTILINE | re.DOTALL,
    ):
        # A command is one line; the pattern's dot takes several for the code.
        for line in command.splitlines():
            words = shlex.split(line.strip().removeprefix("fineshards "))
            arguments = [path for word in words for path in sorted(glob.glob(word)) or [word]]
            assert main(arguments) == 0, line
            commands += 1
        if code:
            capsys.readouterr()
            exec(compile(code, "a page", "exec"), names)
            shown = re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE)
            printed = capsys.readouterr().out.splitlines()
            assert len(shown) == len(printed) > 0
            for expected, found in zip(shown, printed, strict=True):
                assert found.startswith(expected.removesuffix(" …"))
    assert commands >= 10
    assert fineshards.verify("web").ok


def test_the_examples_with_jax_and_grain_run(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("grain")
    monkeypatch.chdir(tmp_path)
    build_here(input=sample, output="out", shard_tokens=100_000)
    ran = run_examples(ROOT / "docs/trainers.md")
    assert ran["JAX"]["tokens"].shape == ran["Grain"]["rows"].shape == (32, 1025)
