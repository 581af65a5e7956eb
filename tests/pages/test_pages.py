"""The pages: their links, what they name, and docs/start.md, which runs as printed."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.checkout import ROOT, SAMPLE, docs_program

from benchmarks.chart import redraw
from fineshards.cli.cli import COMMANDS, main
from fineshards.errors import UsageError

FOLDERS = (".", ".github", "docs", "examples", "samples", "tests")
PAGES = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md"))]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    found: list[str] = []
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        found.append(f"{anchor}-{found.count(anchor)}" if anchor in found else anchor)
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_to_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= named


@pytest.mark.parametrize("page", [*PAGES, *FORMS], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_can_be_called_as_it_calls_them(page: Path) -> None:
    commands = {command.name: command for command in COMMANDS}
    text = page.read_text().replace("\\\n", " ")
    for line in re.findall(r"^ +(?:\S*/|label: )?fineshards (.+)$", text, re.MULTILINE):
        name, _, arguments = line.partition(" ")
        if name not in commands or "--runner" in arguments:  # which has flags of Beam
            continue
        words = shlex.split(re.sub(r" > [\w.-]+$", "", arguments), comments=True)
        try:
            commands[name].parser().parse_args(words)
        except UsageError as error:
            pytest.fail(f"{line}: {error}")


def test_the_tables_of_flags_are_those_of_the_commands() -> None:
    make_commands = docs_program("make_commands")
    text = make_commands.page()
    assert "%(" not in text  # a value that argparse fills in
    for command in COMMANDS:
        section = text.partition(f"\n## {command.name}\n")[2].partition("\n## ")[0]
        assert section, command.name
        assert all(row in section for row in make_commands.tables(command).splitlines()[2:])


def test_the_schema_of_the_manifest_is_that_of_its_type() -> None:
    make_manifest_schema = docs_program("make_manifest_schema")
    assert make_manifest_schema.PATH.read_text() == make_manifest_schema.schema_text(), (
        "run make api"
    )


def test_the_page_of_schemas_is_that_of_the_schemas(unpublished: Path) -> None:
    make_schemas_page = docs_program("make_schemas_page")
    named = set(re.findall(r"^\| \**`([\w.\[\]]+)`", make_schemas_page.page(), re.MULTILINE))
    manifest = json.loads((unpublished / "metadata/manifest.json").read_text())
    assert {*manifest, *(f"shards[].{name}" for name in manifest["shards"][0])} <= named


@pytest.mark.parametrize(
    "command",
    [
        "bild",
        "verify nothing",
        "build --input nothing.jsonl --output out",
        "build --input bad.jsonl --output out",
        "build --input bad.jsonl --output out --recipe nothing.toml",
        "append bad --input bad.jsonl",
        "explain nothing --document 1",
        "redact nothing",
    ],
)
def test_the_page_of_errors_has_the_sentence_of_each(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text('{"text": "a"}\n{"text": \n')
    assert main(command.split()) != 0
    sentence = capsys.readouterr().err.splitlines()[-1].partition("fineshards: ")[2]
    troubleshooting = docs_program("make_troubleshooting")
    sentences = set[str]().union(*troubleshooting.by_room().values())
    assert len(sentences) > 400
    patterns = [re.escape(each).replace("…", ".*") for each in sentences if each.strip("… .:")]
    assert any(re.fullmatch(pattern, sentence) for pattern in patterns), sentence
    assert all(
        troubleshooting.page().count(f"\n## {title}\n") == 1 for title in ("Input", "Training")
    )


@pytest.mark.curation
def test_the_readme_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = f"--recipe={ROOT}/examples/recipe.toml"
    assert main(["build", recipe, f"--input={SAMPLE}", "--output=curated"]) == 0
    shown = (ROOT / "README.md").read_text().partition("\n    $ ")[2].partition("\n(`examples/")[0]
    printed = ""
    for line in f"$ {shown}".replace("…/", f"{ROOT}/").splitlines():
        if line.strip().startswith("$ fineshards "):
            capsys.readouterr()
            assert main(shlex.split(line)[2:]) == 0
            printed = capsys.readouterr().out
        else:
            assert line.removeprefix("    ") in printed


def test_the_start_runs_and_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "samples").mkdir()
    shutil.copy(SAMPLE, tmp_path / "samples")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/start.md").read_text().partition("\n## Your own data\n")[0]
    names: dict[str, object] = {}
    expected: list[str] = []
    for line, code in re.findall(
        r"^    ([^\n]*)$|^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
    ):
        if code:
            exec(compile(code, "start.md", "exec"), names)
            expected += re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE)
        elif line.startswith("fineshards "):
            assert main(shlex.split(line)[1:]) == 0, line
        elif not line.startswith(("python3 ", "pip ")):
            expected.append(line)
    # Times and rates are those of a machine; a slow one says no rate.
    printed, shown = (
        re.sub(r"[\d.]+ s( at [\d.]+ MB/s of text)?", "…", text).replace(f"{tmp_path}/", "")
        for text in (capsys.readouterr().out, "\n".join(expected))
    )
    assert len(expected) >= 9
    assert [line for line in shown.splitlines() if line not in printed] == []


IMAGES = ROOT / "docs/images"


def test_charts_show_what_the_results_say() -> None:
    charts = {ROOT / path: chart for path, chart in redraw().items()}
    assert set(charts) == {*ROOT.glob("benchmarks/results/*.svg"), IMAGES / "speed.svg"}
    for path, chart in charts.items():
        assert path.read_text() == chart, f"{path.name} is not its result: run `make pictures`"
