"""Charts as inline SVG. All coordinates are rounded, so the bytes are the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fineshards.reports.markup import Html, joined, tag

# Of a histogram, in units of its view box.
_WIDTH, _HEIGHT = 760, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 34, 50
# Labels below the axis that fit beside each other.
_MOST_TICKS = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a histogram: its height, what is said of it, and where it begins on the axis."""

    height: int
    says: str
    begin: int


def histogram(title: str, bars: Sequence[Bar], end: int, marks: Sequence[int], unit: str) -> Html:
    """A histogram whose bars are equally wide, on an axis of powers of two and their halves.

    Args:
        title: What it shows.
        bars: The bars, in order.
        end: Where the last bar ends on the axis.
        marks: Values of interest; those at an end of a bar are marked by a line.
        unit: Of the axis.

    Returns:
        The chart. Each bar is an image with a label, and says more in `data-says`.
    """
    total = sum(bar.height for bar in bars)
    highest = max(bar.height for bar in bars)
    width = (_WIDTH - _LEFT - _RIGHT) / len(bars)
    room = _HEIGHT - _TOP - _BOTTOM
    places = {bar.begin: _LEFT + number * width for number, bar in enumerate(bars)}
    places[end] = _LEFT + len(bars) * width
    base = _HEIGHT - _BOTTOM
    drawn = []
    for bar in bars:
        height = room * bar.height / highest
        column = tag(
            "rect",
            x=_number(places[bar.begin]),
            y=_TOP,
            width=_number(width),
            height=room,
            fill="transparent",
        )
        shape = tag(
            "rect",
            x=_number(places[bar.begin] + 1),
            y=_number(base - height),
            width=_number(width - 2),
            height=_number(height),
            rx=1.5,
            class_="first-fill",
        )
        drawn.append(tag("g", column, shape, role="img", aria_label=bar.says, data_says=bar.says))
    label = f"{title}: {len(bars)} bars"
    return tag(
        "svg",
        _scale(total, highest, base, room),
        _marks(places, marks),
        tag("g", *drawn),
        _ticks(places, base, unit),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="group",
        aria_label=label,
    )


def _scale(total: int, highest: int, base: int, room: int) -> Html:
    """Lines for round shares of the whole."""
    step = next(each for each in (1, 2, 5, 10, 20, 50, 100) if highest <= each * total / 25)
    lines = []
    for percent in range(0, 101, step):
        y = base - room * percent * total / (100 * highest)
        if y < _TOP - 1:
            break
        ends = {"x1": _LEFT, "x2": _WIDTH - _RIGHT, "y1": _number(y), "y2": _number(y)}
        lines.append(tag("line", **ends, class_="axis"))
        at = {"x": _LEFT - 6, "y": _number(y), "text_anchor": "end"}
        lines.append(tag("text", f"{percent} %", dominant_baseline="central", **at))
    return tag("g", *lines, aria_hidden="true")


def _marks(places: dict[int, float], marks: Sequence[int]) -> Html:
    lines = []
    for number, mark in enumerate(mark for mark in marks if mark in places):
        x = _number(places[mark])
        lines.append(tag("line", x1=x, x2=x, y1=_TOP - 8, y2=_HEIGHT - _BOTTOM, class_="mark"))
        name = f"{mark // 1024}K"
        kind = _kind(number)
        lines.append(tag("text", name, x=x, y=_TOP - 13, text_anchor="middle", class_=kind))
    return tag("g", *lines, aria_hidden="true")


def _ticks(places: dict[int, float], base: int, unit: str) -> Html:
    powers = [place for place in places if place & (place - 1) == 0]
    every = -(-len(powers) // _MOST_TICKS)
    labels = []
    for number, power in enumerate(powers[::every]):
        at = {"x": _number(places[power]), "y": base + 7, "text_anchor": "middle"}
        kind = _kind(number)
        labels.append(tag("text", f"{power:,}", dominant_baseline="hanging", class_=kind, **at))
    middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) // 2
    labels.append(tag("text", unit, x=middle, y=_HEIGHT - 6, text_anchor="middle"))
    return tag("g", *labels, aria_hidden="true")


def _kind(number: int) -> str | None:
    """The class of every other label, which is left out where there is little room."""
    return "minor" if number % 2 else None


def share_bar(part: int, whole: int) -> Html:
    """A small bar for a cell of a table, which has the number too."""
    width = _number(100 * part / whole) if whole else "0"
    return tag(
        "svg",
        tag("rect", width=100, height=8, class_="track"),
        tag("rect", width=width, height=8, class_="first-fill"),
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        class_="share",
        aria_hidden="true",
    )


def split_bar(parts: Sequence[tuple[str, int]]) -> Html:
    """Two parts of a whole in one bar, and what they are."""
    whole = sum(part for _, part in parts)
    drawn, legend, x = [], [], 0.0
    for (name, part), fill in zip(parts, ("second-fill", "first-fill"), strict=True):
        width = 100 * part / whole
        drawn.append(tag("rect", x=_number(x), width=_number(width), height=4, class_=fill))
        swatch = tag("span", class_=f"swatch {fill}")
        legend.append(tag("span", swatch, f"{name} {width:.2f} % of tokens"))
        x += width
    bar = tag(
        "svg",
        *drawn,
        viewBox="0 0 100 4",
        preserveAspectRatio="none",
        class_="whole",
        aria_hidden="true",
    )
    return joined([bar, tag("p", *legend, class_="legend")])


def _number(value: float) -> str:
    """A coordinate with two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
