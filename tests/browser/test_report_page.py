"""A report in a real browser: it renders, loads nothing, and is there for everyone."""

from itertools import product
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import SIZES, Open, Opened
from playwright.sync_api import Page
from support.hostile_rows import ATTACK, write_hostile_input

import fineshards
from fineshards.cli.cli import main

ROOT = Path(__file__).parent.parent.parent
# What the Tab key stops at.
STOPS = "a[href], button, summary, [tabindex='0']"


@pytest.fixture(scope="session")
def sample_report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of the sample, as `make demo` makes it."""
    folder = tmp_path_factory.mktemp("sample")
    sample = ROOT / "samples/debian_text.parquet"
    given = ["--input", str(sample), "--output", str(folder / "demo"), "--shard_tokens", "100k"]
    assert main(["build", *given]) == 0
    written = fineshards.report(folder / "demo", output=folder / "report.html")
    return f"file://{written.output}"


@pytest.fixture(scope="session")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a dataset whose every text, name and path attacks; with a recipe."""
    folder = tmp_path_factory.mktemp("hostile")
    source = write_hostile_input(folder / "in<put>")
    given = ["--input", f"{source}/*.jsonl", "--output", str(folder / "out")]
    given += ["--recipe", f"{source}/recipe.toml", "--statistics"]
    # A file without a document, so without bytes per token.
    (source / "none.jsonl").write_text('{"text": "short"}')
    assert main(["build", *given, "--shard_tokens", "500", "--test_shards", "2"]) == 0
    written = fineshards.report(folder / "out", output=folder / "report.html")
    return f"file://{written.output}"


def is_untouched(opened: Opened) -> bool:
    """Whether the page asked for nothing, complained of nothing, and nothing in it ran."""
    ran = opened.page.evaluate("window.attacked")
    return (opened.asked, opened.complaints, ran) == ([], [], None)


@pytest.mark.parametrize(
    ("report", "size", "scheme"),
    [
        *product(["sample_report"], SIZES, ["light", "dark"]),
        ("hostile_report", "phone", "dark"),
        ("hostile_report", "desk", "light"),
    ],
)
def test_it_renders_for_everyone_and_asks_for_nothing(
    request: pytest.FixtureRequest, opened: Open, report: str, size: str, scheme: str
) -> None:
    shown = opened(request.getfixturevalue(report), size, scheme)
    found = Axe().run(shown.page)
    assert found.violations_count == 0, found.generate_report()
    width = shown.page.evaluate("document.documentElement.scrollWidth")
    assert width <= SIZES[size][0]
    height = shown.page.evaluate("document.documentElement.scrollHeight")
    assert height < 6000 or size != "desk"
    assert shown.page.locator("section").count() == shown.page.locator("nav a").count()
    assert is_untouched(shown)


def test_hostile_texts_are_shown_as_they_are_and_do_not_run(
    hostile_report: str, opened: Open
) -> None:
    shown = opened(hostile_report)
    unfold(shown.page)
    seen = shown.page.evaluate("document.body.innerText")
    assert ATTACK in seen
    assert "\\x1b[2J" in seen
    assert "<b>xx</b>" in seen
    assert shown.page.locator("script, main img, main b b, main i").count() == 0
    assert is_untouched(shown)


def unfold(page: Page) -> None:
    """Open what the report folds: a browser has no text of what it does not show."""
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")


def test_the_tab_key_reaches_everything_in_order(sample_report: str, opened: Open) -> None:
    page = opened(sample_report).page
    page.evaluate(
        "stops => [...document.querySelectorAll(stops)].filter((each) => each.checkVisibility())"
        ".forEach((each, number) => each.dataset.stop = number)",
        STOPS,
    )
    expected = page.locator("[data-stop]").count()
    reached = []
    for _ in range(expected):
        page.keyboard.press("Tab")
        reached.append(int(page.evaluate("document.activeElement.dataset.stop")))
    assert reached == list(range(expected))
    assert expected > 10


@pytest.mark.parametrize("report", ["sample_report", "hostile_report"])
def test_no_table_is_cut_on_a_desk(
    request: pytest.FixtureRequest, opened: Open, report: str
) -> None:
    page = opened(request.getfixturevalue(report), "desk").page
    unfold(page)
    hidden = "each => each.scrollWidth - each.clientWidth"
    for table in page.locator(".scroll").all():
        assert table.evaluate(hidden) <= 0, table.get_attribute("aria-label")


def test_it_prints(sample_report: str, opened: Open) -> None:
    page = opened(sample_report).page
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    assert page.pdf().startswith(b"%PDF-")
