"""HTML in which everything that comes from data is escaped, and the frame of a page.

Text becomes markup by `tag` alone, so a document that holds `</script>` stays text. A page loads
nothing: its style and script are in it, and its Content-Security-Policy admits them by their hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable
from importlib.resources import files

from fineshards.printable import printable

_VOID = {"br", "col", "hr", "link", "meta"}


class Html(str):
    """Markup, which `tag` takes as it is."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: object) -> Html:
    """An element. Children that are not Html are text.

    Attributes that are None or False are left out. An underscore in the name of one is a hyphen,
    and one at its end is dropped, for names that are words of Python.

    Example:
        >>> tag("p", "1 < 2, ", tag("b", "surely"), class_="claim", aria_label=None)
        '<p class="claim">1 &lt; 2, <b>surely</b></p>'
    """
    parts = [name]
    for key, value in attributes.items():
        written = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(written)
        elif value is not None and value is not False:
            parts.append(f'{written}="{html.escape(_visible(str(value)))}"')
    opened = f"<{' '.join(parts)}>"
    return Html(opened if name in _VOID else f"{opened}{joined(children)}</{name}>")


def joined(children: Iterable[str], separator: str = "") -> Html:
    """Children one after the other.

    Example:
        >>> joined(["<", tag("br")])
        '&lt;<br>'
    """
    return Html(separator.join(map(_markup, children)))


def _markup(child: str) -> str:
    return child if isinstance(child, Html) else html.escape(_visible(child), quote=False)


def _visible(text: str) -> str:
    """Text with control characters as escapes, except for line feeds."""
    return "\n".join(map(printable, text.split("\n")))


def asset(name: str, room: str = "fineshards.reports") -> str:
    """A style sheet or a script, a file of a room."""
    return files(room).joinpath(name).read_text(encoding="utf-8")


def page(
    title: str, body: Iterable[str], script: str, style: str = "", connects: bool = False
) -> str:
    """A whole page.

    Args:
        title: Its title.
        body: What is in its body.
        script: Its script, which runs when the page is there.
        style: More styles, after those that all pages share.
        connects: Whether the script may ask the server that the page came from.

    Returns:
        The page, as text that ends with a line feed.
    """
    policy = content_policy(script, style, connects)
    style = asset("style.css") + style
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        # Of this package, so not escaped; their hashes are those of these very bytes.
        Html(f"<style>{style}</style>"),
    ]
    script_element = Html(f"<script>{script}</script>")
    parts = [
        Html("<!doctype html>"),
        Html('<html lang="en">'),
        tag("head", Html("\n"), joined(head, "\n"), Html("\n")),
        tag("body", Html("\n"), joined(body, "\n"), Html("\n"), script_element, Html("\n")),
        Html("</html>\n"),
    ]
    return joined(parts, "\n")


def content_policy(script: str, style: str = "", connects: bool = False) -> str:
    """The Content-Security-Policy of a page, of which `page` says the parts."""
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src {_source(asset('style.css') + style)}",
            f"script-src {_source(script)}",
            "connect-src 'self'" if connects else "connect-src 'none'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _source(content: str) -> str:
    """An inline style or script as a source of the policy: by its hash."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
