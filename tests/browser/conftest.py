"""Pages in Debian's Chromium, with a record of what a page asks for and complains about."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

pytest_plugins = ["support.slices"]

NAMES = ("chromium", "chromium-browser", "google-chrome")
# A phone, a tablet, a desk: width and height in CSS pixels.
SIZES = {"phone": (390, 844), "tablet": (820, 1180), "desk": (1280, 800)}


@dataclass
class Opened:
    """A page in a browser. asked: URLs beyond its own. complaints: of the console."""

    page: Page
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.exit(
            f"no browser was found: none of {', '.join(NAMES)} is installed. Install Debian's "
            "package chromium: apt-get install chromium",
            returncode=1,
        )
    with sync_playwright() as driver:
        # Chromium's sandbox does not work for root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Opens a page: `opened(url, size="phone", scheme="dark")`.

    Requests to other places than `allowed` are recorded and refused.
    """
    contexts = []

    def open_page(
        url: str, size: str = "desk", scheme: str = "light", allowed: str = "", **more: object
    ) -> Opened:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, **more
        )
        contexts.append(context)
        opened = Opened(context.new_page())

        def route(route: Route) -> None:
            asked = route.request.url
            if asked == url or (allowed and asked.startswith(allowed)):
                route.continue_()
            else:
                opened.asked.append(asked)
                route.abort()

        context.route("**/*", route)
        opened.page.on(
            "console",
            lambda said: (
                opened.complaints.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.goto(url)
        return opened

    yield open_page
    for context in contexts:
        context.close()
