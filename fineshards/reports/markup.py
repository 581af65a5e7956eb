"""Pages from templates, in which everything that comes from data is escaped.

A document that holds `</script>` stays text, and control characters show as escapes. A page loads
nothing: its style and script are in it, and its Content-Security-Policy admits them by their hash.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fineshards.printable import printable
from fineshards.wording import counted, ratio, share, shortened


def asset(name: str) -> str:
    """A template, a style sheet or a script: a file of the package."""
    return files("fineshards").joinpath(name).read_text(encoding="utf-8")


def page(template: str, script: str, style: str, **values: object) -> str:
    """A whole page, as text that ends with a line feed.

    Args:
        template: Fills the body of `page.html`.
        script: Its script, which runs when the page is there.
        style: Its style.
        values: What the template shows.
    """
    # Of this package, so not escaped; their hashes are those of these very bytes.
    frame = {"style": Markup(style), "script": Markup(script)}
    policy = (
        f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; "
        "connect-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return _environment().get_template(template).render(values, policy=policy, **frame)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "number": "{:,}".format,
        "counted": counted,
        "coordinate": lambda value: f"{value:.2f}".rstrip("0").rstrip("."),
        "share": share,
        "ratio": ratio,
        "short": shortened,
    }
    return environment


def _visible(value: object) -> object:
    """Text with control characters as escapes, except for line feeds; all else as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(printable, value.split("\n")))


def _source(content: str) -> str:
    """An inline style or script as a source of the policy: by its hash."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
