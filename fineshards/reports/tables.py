"""Tables, lists of facts and snippets, and numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fineshards.reports.markup import Html, tag

# Characters that are shown of names, labels, ids and reasons, which may be of any length.
LONGEST = 250


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and whether it holds numbers, which end at the same place."""

    heading: str
    number: bool = False
    class_: str = ""


def number_column(heading: str) -> Column:
    """A column of numbers."""
    return Column(heading, number=True)


def bar_column() -> Column:
    """A column of bars, beside one with their numbers."""
    return Column(tag("span", "Bar", class_="hidden"), class_="bar")


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    sortable: bool = False,
) -> Html:
    """A table in a frame that scrolls, which a keyboard reaches.

    Args:
        caption: What it shows.
        columns: Its columns. The first one names the row.
        rows: Its cells: text, or markup.
        sortable: Whether the script makes buttons of its headings.

    Returns:
        The table.
    """
    classes = [" ".join(filter(None, (c.class_, "number" if c.number else ""))) for c in columns]
    heads = [
        tag("th", column.heading, scope="col", class_=kind or None)
        for column, kind in zip(columns, classes, strict=True)
    ]
    body = []
    for first, *others in rows:
        cells = [tag("th", first, scope="row", class_=classes[0] or None)]
        cells += [
            tag("td", cell, class_=kind or None)
            for cell, kind in zip(others, classes[1:], strict=True)
        ]
        body.append(tag("tr", *cells))
    return tag(
        "div",
        tag(
            "table",
            tag("caption", tag("span", caption)),
            tag("thead", tag("tr", *heads)),
            tag("tbody", *(Html(f"\n{row}") for row in body)),
            class_="sortable" if sortable else None,
        ),
        class_="scroll",
        role="region",
        aria_label=caption,
        tabindex=0,
    )


def facts(pairs: Iterable[tuple[str, str]], class_: str = "facts") -> Html:
    """Names and values."""
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs),
        class_=class_,
    )


def snippet(code: str) -> Html:
    """Code to copy."""
    return tag("div", tag("pre", tag("code", code), tabindex=0), class_="snippet")


def shortened(text: str, most: int = LONGEST) -> str:
    """The beginning of a text that is too long.

    Example:
        >>> shortened("abc"), shortened("abc", most=2)
        ('abc', 'ab …')
    """
    return text if len(text) <= most else f"{text[:most]} …"


def share(part: int, whole: int) -> str:
    """A part of a whole in percent.

    Example:
        >>> share(1, 3), share(3, 3), share(0, 0)
        ('33.33 %', '100.00 %', '–')
    """
    return f"{100 * part / whole:.2f} %" if whole else "–"


def ratio(part: int, whole: int) -> str:
    """A quotient with three digits after the point.

    Example:
        >>> ratio(2_217_541, 665_971), ratio(1, 0)
        ('3.330', '–')
    """
    return f"{part / whole:.3f}" if whole else "–"
