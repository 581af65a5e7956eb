"""The charts of results, as SVG: drawn from the JSON of a result, and from nothing else.

`python -m benchmarks.chart` redraws what is committed: a chart next to each result, and
docs/images/speed.svg, which the README shows, from the latest result of the corpus.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.contestants import ROOT

RESULTS = Path("benchmarks/results")
SPEED_CHART = Path("docs/images/speed.svg")
# The names of results begin with their day, so the last one is the latest.
SHOWN_RESULTS = "*-corpus.json"

_TITLES = {
    "seed": "process pool with tiktoken, one document per task",
    "datatrove": "datatrove’s DocumentTokenizer, one task per core",
    "bound": "lower bound (no framework, no guarantees)",
}

_WIDTH, _MARGIN = 560, 24
_BAR, _ROW, _HEADING, _LINE = 20, 54, 34, 22
# The rest of the width is for the figures next to the bars.
_LONGEST_BAR = 290
# The width of a letter, about.
_LETTER = 8

_STYLE = """\
text { font: 15px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 20px; font-weight: 600 }
.heading { font-size: 17px; font-weight: 600 }
.ours { font-weight: 600 }
.caption { fill: #59636e }
.page { fill: #ffffff }
.bar { fill: #afb8c1 }
.bar.ours { fill: #1f6feb }
.bar.bound { fill: #ffffff; stroke: #818b98; stroke-width: 1.5; stroke-dasharray: 4 3 }
.spread { stroke: #1f2328; stroke-width: 2; fill: none }
.limit { stroke: #818b98; stroke-width: 1.5; stroke-dasharray: 4 3; fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .caption { fill: #9198a1 }
  .page { fill: #0d1117 }
  .bar { fill: #656c76 }
  .bar.ours { fill: #4493f8 }
  .bar.bound { fill: #0d1117; stroke: #9198a1 }
  .spread { stroke: #f0f6fc }
}
"""


@dataclass(frozen=True, slots=True)
class _Bar:
    """value: length of the bar. low, high: ends of the line that shows the spread."""

    contestant: str
    value: float
    low: float
    high: float
    figures: str


@dataclass(frozen=True, slots=True)
class _Panel:
    """limits: drawn as a line across all bars, because nothing can be longer; one, or none."""

    heading: str
    bars: Sequence[_Bar]
    limits: Sequence[_Bar] = ()


def draw(result: Mapping[str, Any]) -> str:
    """The chart of one result, from its JSON: speed and peak memory."""
    return _draw(
        f"Tokenizing {_text_of(result)} of text",
        [
            _Panel("MB of text per second: longer is better", _bars(result, _speed)),
            _Panel("Peak memory of all processes: shorter is better", _bars(result, _memory)),
        ],
        result,
    )


def draw_speed(result: Mapping[str, Any]) -> str:
    """The speeds of one result, from its JSON; the lower bound of the time as a thin line."""
    bars = _bars(result, _speed)
    limits = [bar for bar in bars if bar.contestant == "bound"]
    panel = _Panel(
        f"Tokenizing {_text_of(result)} of text: longer is better",
        [bar for bar in bars if bar not in limits],
        limits,
    )
    return _draw("MB of text per second", [panel], result)


def _bars(
    result: Mapping[str, Any], measure: Callable[[Mapping[str, Any], Mapping[str, Any]], _Bar]
) -> list[_Bar]:
    return [measure(result, contestant) for contestant in result["contestants"]]


def _speed(result: Mapping[str, Any], contestant: Mapping[str, Any]) -> _Bar:
    megabytes, wall = result["input"]["text_bytes"] / 1e6, contestant["wall"]
    rate, ratio = megabytes / wall["median"], contestant["time_ratio"]
    figures = f"{rate:.{0 if rate >= 10 else 1}f} MB/s"
    if ratio != 1:
        figures += f", {ratio:.1f} times slower" if ratio > 1 else f", {1 / ratio:.1f} times faster"
    return _Bar(contestant["name"], rate, megabytes / wall["max"], megabytes / wall["min"], figures)


def _memory(result: Mapping[str, Any], contestant: Mapping[str, Any]) -> _Bar:
    ours = result["contestants"][0]
    low, value, high = (contestant["peak_tree"][end] / 1e6 for end in ("min", "median", "max"))
    figures = f"{value:,.0f} MB"
    if contestant is not ours:
        figures += f", {value * 1e6 / ours['peak_tree']['median']:.1f} times as much"
    return _Bar(contestant["name"], value, low, high, figures)


def _text_of(result: Mapping[str, Any]) -> str:
    return f"{result['input']['text_bytes'] / 1e6:,.0f} MB"


def _day_of(result: Mapping[str, Any]) -> str:
    day = datetime.fromisoformat(result["date"])
    return f"{day.day} {day:%B %Y}"


def _caption(result: Mapping[str, Any]) -> list[str]:
    machine, contents = result["machine"], result["input"]
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    times = f" taken {contents['repeat']} times" if contents["repeat"] > 1 else ""
    return [
        f"{machine['cores']} cores of {machine['cpu']}, {memory}; {_day_of(result)}",
        f"{_text_of(result)}: {contents['files'] // contents['repeat']} Parquet files{times}, "
        f"medians of {result['rounds']} runs",
        "Lines in the bars: from the slowest to the fastest run",
    ]


def _draw(title: str, panels: Sequence[_Panel], result: Mapping[str, Any]) -> str:
    lines, y = [_text(_MARGIN, 40, title, "title")], 52
    for panel in panels:
        y += _HEADING
        lines.append(_text(_MARGIN, y, panel.heading, "heading"))
        scale = _LONGEST_BAR / max(bar.high for bar in (*panel.bars, *panel.limits))
        for number, bar in enumerate(panel.bars):
            lines += _bar(bar, y + 14 + _ROW * number, scale, panel.limits, ours=number == 0)
        top, y = y + 20, y + 14 + _ROW * len(panel.bars)
        for bar in panel.limits:
            x = _MARGIN + bar.value * scale
            lines.append(f'<path class="limit" d="M{x:.1f} {top}V{y + 8}"/>')
            words = f"{title_of(bar.contestant)}: {bar.figures.partition(',')[0]}"
            lines.append(_text(_MARGIN, y + 26, words, ""))
            y += 26
    y += 10
    for line in _caption(result):
        y += _LINE
        lines.append(_text(_MARGIN, y, line, "caption"))
    height = y + 20
    description = ". ".join(
        f"{panel.heading}: "
        + "; ".join(
            f"{title_of(bar.contestant)}, {bar.figures}" for bar in (*panel.bars, *panel.limits)
        )
        for panel in panels
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            f'width="{_WIDTH}" height="{height}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(description)}.</desc>',
            f"<style>\n{_STYLE}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{height}" rx="8"/>',
            *lines,
            "</svg>\n",
        ]
    )


def _bar(bar: _Bar, top: float, scale: float, limits: Sequence[_Bar], *, ours: bool) -> list[str]:
    kind = "ours" if ours else "bound" if bar.contestant == "bound" else ""
    bar_top = top + 24
    middle = bar_top + _BAR / 2
    end = bar.high * scale
    for limit in limits:
        # The figures are not where the line of the limit crosses them.
        if end < limit.value * scale < end + _LETTER * len(bar.figures):
            end = limit.value * scale
    return [
        _text(_MARGIN, top + 18, title_of(bar.contestant), kind),
        f'<rect class="bar {kind}" x="{_MARGIN}" y="{bar_top}" '
        f'width="{bar.value * scale:.1f}" height="{_BAR}" rx="3"/>',
        f'<path class="spread" d="M{_MARGIN + bar.low * scale:.1f} {middle}'
        f'H{_MARGIN + bar.high * scale:.1f}"/>',
        _text(_MARGIN + end + 10, middle + 5, bar.figures, kind),
    ]


def title_of(contestant: str) -> str:
    """A contestant's name in a chart: words for people who do not know it."""
    return _TITLES.get(contestant, contestant)


def _text(x: float, y: float, content: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(content)}</text>'


def redraw() -> dict[Path, str]:
    """The committed charts by path below the checkout, drawn from the committed results."""
    charts = {}
    for path in sorted((ROOT / RESULTS).glob("*.json")):
        result = json.loads(path.read_text())
        if result["format"] == "fineshards-benchmark":
            charts[RESULTS / f"{path.stem}.svg"] = draw(result)
    *_, shown = sorted((ROOT / RESULTS).glob(SHOWN_RESULTS))
    return charts | {SPEED_CHART: draw_speed(json.loads(shown.read_text()))}


if __name__ == "__main__":
    for path, chart in redraw().items():
        (ROOT / path).write_text(chart)
