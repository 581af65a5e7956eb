"""Checks the pages of a built site: `python docs/check_site.py FOLDER`. Run by `make site`.

Each link within the site leads to a file, and to a place in it; no page asks another server for a
script, a style, a font or a picture; and no line of code is wider than its column.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes that a browser loads by itself; it follows `href` of `a` only when asked to.
_LOADED = {"img": "src", "link": "href", "script": "src", "iframe": "src", "source": "src"}
# `rel` of a `link` that loads nothing.
_NOT_LOADED = {"canonical", "next", "prev", "alternate"}
# What site.css has room for on a screen of 1,280 pixels.
_COLUMNS = 100


class Page(HTMLParser):
    """The links of a page, what it loads, the names of its places, and its code."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = {""}
        self.code = ""
        self._in_code = False
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects from one tag."""
        values = {name: value or "" for name, value in attrs}
        self._in_code |= tag == "pre"
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif _LOADED.get(tag) in values and values.get("rel") not in _NOT_LOADED:
            self.loaded.append(values[_LOADED[tag]])

    def handle_endtag(self, tag: str) -> None:
        """Ends a block of code."""
        self._in_code &= tag != "pre"

    def handle_data(self, data: str) -> None:
        """Collects code."""
        if self._in_code:
            self.code += data


def problems(site: Path) -> Iterator[str]:
    """What is wrong with a site, one sentence each."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site} has no pages"
    for path, page in pages.items():
        for url in page.loaded:
            if urlsplit(url).netloc:
                yield f"{path.name} loads {url}"
        for line in page.code.splitlines():
            if len(line) > _COLUMNS:
                yield f"{path.name} has code of more than {_COLUMNS} columns: {line}"
        for url in page.links + page.loaded:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            start = site.resolve() if parts.path.startswith("/") else path.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{path.name} links to {url}, which is not there"
            elif target in pages and unquote(parts.fragment) not in pages[target].places:
                yield f"{path.name} links to {url}, but that page has no such place"
    for path in sorted(site.rglob("*.css")):
        for url in re.findall(r"url\(\s*['\"]?((?:https?:)?//[^)'\"]+)", path.read_text()):
            yield f"{path.name} loads {url}"


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1])))
    print("\n".join(found) or "all links lead somewhere, and no page loads anything from elsewhere")
    sys.exit(bool(found))
