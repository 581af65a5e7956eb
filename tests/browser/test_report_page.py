"""A report in a real browser: it renders, loads nothing, and is there for everyone."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import SIZES, Open, Opened
from playwright.sync_api import Page, expect
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
    written = fineshards.report(folder / "demo", output=folder / "report.html", verify=True)
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
    assert shown.page.locator("section").count() == shown.page.locator("nav a").count()
    assert is_untouched(shown)


def test_hostile_texts_are_shown_as_they_are_and_do_not_run(
    hostile_report: str, opened: Open
) -> None:
    shown = opened(hostile_report)
    seen = shown.page.evaluate("document.body.innerText")
    assert ATTACK in seen
    assert "\\x1b[2J" in seen
    assert "<b>xx</b>" in seen
    assert shown.page.locator("main script, main img, main b b, main i").count() == 0
    for each in shown.page.locator("[data-says]").all()[:40]:
        each.focus()
    assert is_untouched(shown)


def unfold(page: Page) -> None:
    """Open what the report folds: a browser has no text of what it does not show."""
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")


def test_tables_sort_by_mouse_and_by_keyboard(sample_report: str, opened: Open) -> None:
    shown = opened(sample_report)
    unfold(shown.page)
    table = shown.page.locator("#shards table")
    heading = table.locator("th[scope=col]").nth(1)

    def tokens() -> list[int]:
        texts = table.locator("tbody tr td:nth-child(2)").all_inner_texts()
        return [int(text.replace(",", "")) for text in texts]

    before = tokens()
    assert before != sorted(before)
    heading.locator("button").click()
    assert tokens() == sorted(before)
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").focus()
    shown.page.keyboard.press("Enter")
    assert tokens() == sorted(before, reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"
    table.locator("th[scope=col] button").first.click()
    names = table.locator("tbody tr th").all_inner_texts()
    assert names == sorted(names)
    assert heading.get_attribute("aria-sort") is None


@pytest.mark.parametrize("place", ["#lengths svg >> nth=0", "#documents .tokens >> nth=0"])
def test_what_bars_and_tokens_say_is_shown_by_pointer_and_by_focus(
    sample_report: str, opened: Open, place: str
) -> None:
    shown = opened(sample_report)
    bubble = shown.page.locator("#bubble")
    says = shown.page.locator(place).locator("[data-says]")
    texts = [each.get_attribute("data-says") for each in says.all()]
    assert bubble.is_hidden()
    says.nth(3).hover()
    assert bubble.inner_text() == texts[3]
    shown.page.mouse.move(0, 0)
    assert bubble.is_hidden()
    says.first.focus()
    for text in texts[:4]:
        assert bubble.inner_text() == text
        shown.page.keyboard.press("ArrowRight")
    shown.page.keyboard.press("End")
    assert bubble.inner_text() == texts[-1]
    # Each of a few places on the way from the end of the page.
    shown.page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    for place in ("center", "start", "end"):
        shown.page.evaluate(
            "place => new Promise(done => {"
            "  document.activeElement.scrollIntoView({block: place});"
            "  requestAnimationFrame(() => requestAnimationFrame(done)); })",
            place,
        )
        says_box, box = says.last.bounding_box(), bubble.bounding_box()
        assert says_box is not None
        assert box is not None
        gaps = (
            says_box["y"] - box["y"] - box["height"],
            box["y"] - says_box["y"] - says_box["height"],
        )
        assert 7 <= max(gaps) <= 9
    shown.page.keyboard.press("Escape")
    assert bubble.is_hidden()


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
    assert expected > 40


@pytest.mark.parametrize("report", ["sample_report", "hostile_report"])
def test_no_table_is_cut_on_a_desk_and_what_scrolls_has_a_shadow(
    request: pytest.FixtureRequest, opened: Open, report: str
) -> None:
    page = opened(request.getfixturevalue(report), "desk").page
    unfold(page)
    hidden = "each => each.scrollWidth - each.clientWidth"
    for table in page.locator(".scroll").all():
        assert table.evaluate(hidden) <= 0, table.get_attribute("aria-label")
    page = opened(request.getfixturevalue(report), "phone").page
    unfold(page)
    (box, *_) = [each for each in page.locator(".scroll").all() if each.evaluate(hidden) > 0]
    box.scroll_into_view_if_needed()
    at = box.bounding_box()
    assert at is not None
    # Of the caption, beside its words: what lies there at the begin and at the end of scrolling.
    for x in (2, at["width"] - 6):
        clip = {"x": at["x"] + x, "y": at["y"] + 20, "width": 4, "height": 4}
        box.evaluate("each => each.scrollLeft = 0")
        before = page.screenshot(clip=clip)
        box.evaluate("each => each.scrollLeft = each.scrollWidth")
        assert page.screenshot(clip=clip) != before


def test_buttons_that_copy_cover_no_code(sample_report: str, opened: Open) -> None:
    page = opened(sample_report, "phone", permissions=["clipboard-read", "clipboard-write"]).page
    for snippet in page.locator(".snippet").all():
        code, button = snippet.locator("pre").bounding_box(), snippet.locator("button")
        box = button.bounding_box()
        assert code is not None
        assert box is not None
        assert box["y"] + box["height"] <= code["y"]
        button.click()
        expect(button).to_have_text("Copied")
        text = page.evaluate("navigator.clipboard.readText()")
        assert text == snippet.locator("code").text_content()


def test_it_prints(sample_report: str, opened: Open) -> None:
    page = opened(sample_report).page
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details table").first.is_visible()
    assert page.locator("nav").is_hidden()
    assert page.pdf().startswith(b"%PDF-")


def test_it_is_complete_without_scripts(sample_report: str, opened: Open) -> None:
    page = opened(sample_report, java_script_enabled=False).page
    without = page.locator("main").inner_text()
    with_scripts = opened(sample_report).page.locator("main").inner_text()
    assert page.locator("button").count() == 0
    assert without == with_scripts.replace("Copy\n", "")
