"""The documentation site in a real browser: it asks no other server, and its search finds pages."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import SIZES, Open

SITE = Path(__file__).parent.parent.parent / "site"
# What mkdocs-material itself lacks, and the empty header cells that Markdown's tables have.
OF_THE_THEME = {
    "aria-dialog-name",
    "empty-table-header",
    "landmark-unique",
    "scrollable-region-focusable",
}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """The URL of what `make site` has built."""
    assert (SITE / "index.html").is_file(), "make site first"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("page", "size", "scheme"),
    [
        ("index.html", "phone", "dark"),
        ("index.html", "tablet", "light"),
        ("index.html", "desk", "light"),
        ("commands.html", "phone", "light"),
        ("design.html", "desk", "dark"),
        ("comparison.html", "phone", "dark"),
    ],
)
def test_a_page_renders_and_asks_no_other_server(
    site: str, opened: Open, page: str, size: str, scheme: str
) -> None:
    shown = opened(site + page, size, scheme, allowed=site)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert shown.page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    found = {rule["id"] for rule in Axe().run(shown.page).response["violations"]}
    assert found <= OF_THE_THEME
    assert (shown.asked, shown.complaints) == ([], [])


def test_the_search_finds_a_page(site: str, opened: Open) -> None:
    shown = opened(site, allowed=site)
    shown.page.get_by_role("textbox", name="Search").fill("shuffle_seed")
    results = shown.page.locator(".md-search-result__link")
    results.first.wait_for()
    assert shown.page.locator(".md-search-result__link[href*='growing.html']").count() > 0
    assert (shown.asked, shown.complaints) == ([], [])
