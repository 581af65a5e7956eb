"""The pages: their links, what they name, and docs/start.md, which runs as printed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.checkout import ROOT, SAMPLE, docs_program

from fineshards.cli.cli import main
from fineshards.cli.command_table import COMMANDS
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_running_text_have_at_most_100_columns(page: Path) -> None:
    text = re.sub(r"^ *(```|~~~).*?^ *\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    shown = [re.sub(r"\]\([^)]*\)", "]", line) for line in text.splitlines()]
    assert [
        line for line in shown if len(line) > 100 and not line.startswith(("    ", "|", "!["))
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_block_of_code_is_one_on_the_site_too(page: Path) -> None:
    """mkdocs takes what follows a language for text, and the rest of the section for code."""
    assert re.findall(r"^(?:```|~~~)\w+ .*$", page.read_text(), re.MULTILINE) == []


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
        words = shlex.split(re.sub(r" > [\w.]+$", "", arguments), comments=True)
        try:
            commands[name].parser().parse_args(words)
        except UsageError as error:
            pytest.fail(f"{line}: {error}")


def test_the_tables_of_flags_are_those_of_the_commands() -> None:
    make_commands = docs_program("make_commands")
    text = make_commands.page()
    for command in COMMANDS:
        section = text.partition(f"\n## {command.name}\n")[2].partition("\n## ")[0]
        assert section, command.name
        assert all(row in section for row in make_commands.tables(command).splitlines()[2:])


def test_the_page_of_schemas_is_that_of_the_schemas() -> None:
    make_schemas_page = docs_program("make_schemas_page")
    named = set(re.findall(r"^\| \**`([\w.\[\]]+)`", make_schemas_page.page(), re.MULTILINE))
    finished = ROOT / "tests/fixtures/version-2/finished/metadata/manifest.json"
    manifest = json.loads(finished.read_text())
    assert {*manifest, *(f"shards[].{name}" for name in manifest["shards"][0])} <= named


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


def test_a_page_of_the_site_has_the_links_of_the_site(tmp_path: Path) -> None:
    gather_pages = docs_program("gather_pages")
    rewrite = gather_pages.with_links_of_the_site
    assert rewrite("README.md", "[a](docs/loader.md#resume)") == "[a](loader.md#resume)"
    assert (
        rewrite("docs/loader.md", "[a](../README.md) [b](input.md)")
        == "[a](index.md) [b](input.md)"
    )
    script = "examples/train_ddp.py"
    assert rewrite("docs/loader.md", f"[a](../{script})") == f"[a]({script}.md)"
    assert (
        rewrite("docs/loader.md", "[a](https://a.example) x[1](2)")
        == "[a](https://a.example) x[1](2)"
    )
    gather_pages.gather(tmp_path / "pages")
    assert (ROOT / script).read_text() in (tmp_path / f"pages/{script}.md").read_text()


def test_the_check_of_the_site_finds_lost_links_and_requests(tmp_path: Path) -> None:
    problems = docs_program("check_site").problems
    for empty in (tmp_path, tmp_path / "missing"):
        assert list(problems(empty)) == [f"{empty} has no pages"]
    (tmp_path / "b.html").write_text("<h1 id=here>b</h1>")
    (tmp_path / "a.html").write_text(
        "<a href=b.html#here></a><a href=b.html></a><a href=https://a.example></a><a href=#top></a>"
        "<a href=c.html></a><a href=b.html#there></a><img src=https://a.example/a.png>"
        f"<pre><b>{'x' * 60}</b>\n{'y' * 100}\n<b>{'z' * 60}</b>{'z' * 41}</pre>{'-' * 101}"
    )
    (tmp_path / "a.css").write_text("@font-face { src: url(//a.example/a.woff2) }")
    assert list(problems(tmp_path)) == [
        "a.html loads https://a.example/a.png",
        f"a.html has code of more than 100 columns: {'z' * 101}",
        "a.html links to #top, but that page has no such place",
        "a.html links to c.html, which is not there",
        "a.html links to b.html#there, but that page has no such place",
        "a.css loads //a.example/a.woff2",
    ]
