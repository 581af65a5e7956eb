"""The page of `status --serve` in a real browser: it follows a running job to its end."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import SIZES, Open, Opened
from playwright.sync_api import expect
from support.paused_build import BLOCKS, PausedBuild, paused_build

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of the page of a folder, served by a process of its own."""
    command = [sys.executable, "-m", "fineshards", "status", str(folder), "--serve", "0"]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        words = server.stderr.readline().split()
        yield next(word for word in words if word.startswith("http://"))
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PausedBuild]:
    """A build that stands still until a test lets it go on."""
    sample = ROOT / "samples/debian_text.parquet"
    with paused_build(sample, tmp_path_factory.mktemp("paused")) as build:
        yield build


@pytest.fixture(scope="module")
def address(paused: PausedBuild) -> Iterator[str]:
    """The page of that build."""
    with served(paused.output) as address:
        yield address


def is_for_everyone(shown: Opened) -> None:
    """Nothing is cut off, nothing foreign is asked for, and axe finds nothing."""
    found = Axe().run(shown.page)
    assert found.violations_count == 0, found.generate_report()
    width = shown.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 0
    assert (shown.asked, shown.complaints) == ([], [])


@pytest.mark.parametrize(("size", "scheme"), list(product(SIZES, ["light", "dark"])))
def test_a_running_job_is_shown_to_everyone(
    opened: Open, address: str, size: str, scheme: str
) -> None:
    shown = opened(address, size, scheme, allowed=address)
    bar = shown.page.get_by_role("progressbar", name="tokenize")
    expect(bar).to_be_visible()
    assert 0 < int(bar.get_attribute("aria-valuenow") or 0) < 100
    expect(shown.page.locator("#writing")).to_contain_text(f"of {BLOCKS}")
    expect(shown.page.locator("#figures")).to_contain_text("Running for")
    is_for_everyone(shown)


def test_the_page_follows_a_job_to_its_end(opened: Open, address: str, paused: PausedBuild) -> None:
    """Comes after those that need the job to stand still."""
    shown = opened(address, "tablet", allowed=address)
    page = shown.page
    expect(page.locator("#state")).to_have_text("tokenizing")
    # A folder that cannot be read is said, and tried again.
    away = paused.output.with_name("away")
    paused.output.rename(away)
    expect(page.locator("#state")).to_have_text("cannot be read", timeout=30_000)
    expect(page.locator("#note")).to_contain_text("holds no fineshards job", timeout=30_000)
    is_for_everyone(shown)
    away.rename(paused.output)
    expect(page.locator("#state")).to_have_text("tokenizing", timeout=30_000)
    paused.resume()
    assert paused.process.wait() == 0
    expect(page.locator("#state")).to_have_text("finished", timeout=60_000)
    expect(page.get_by_role("status")).to_have_text("finished")
    expect(page).to_have_title("finished · out")
    expect(page.get_by_role("row")).to_have_count(3)
    expect(page.locator("#commands")).to_contain_text(f"fineshards report {paused.output}")
    expect(page.get_by_role("progressbar")).to_have_count(0)
    is_for_everyone(shown)


def test_a_job_that_was_killed_is_said(opened: Open, tmp_path: Path) -> None:
    sample = ROOT / "samples/debian_text.parquet"
    with paused_build(sample, tmp_path) as build, served(build.output) as address:
        shown = opened(address, allowed=address)
        expect(shown.page.locator("#state")).to_have_text("tokenizing")
        build.kill()
        expect(shown.page.locator("#state")).to_have_text("not running", timeout=30_000)
        expect(shown.page.locator("#note")).to_contain_text("The same build command resumes it")
        expect(shown.page.locator("#figures")).not_to_contain_text("left")
        is_for_everyone(shown)


def test_a_server_that_is_gone_is_said(opened: Open, paused: PausedBuild) -> None:
    with served(paused.output) as address:
        shown = opened(address, allowed=address)
        # The job stands still, unless the test that lets it go on was in this run.
        expect(shown.page.locator("#state")).to_have_text(re.compile("tokenizing|finished"))
    expect(shown.page.locator("#state")).to_have_text("no answer", timeout=30_000)
    expect(shown.page.locator("#note")).to_contain_text("does not answer")
