"""The chart of a result: bars for speed and memory, as plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.results import Result

_WIDTH = 860
_PANEL = 290
_ROW = 46
_BAR = 22
_TOP = 92
_LEFT = 110
_SECOND = _LEFT + _PANEL + 100
_FIRST_COLOUR, _OTHER_COLOUR = "#1f6feb", "#9aa7b4"


@dataclass(frozen=True, slots=True)
class _Bar:
    """value: length of the bar. low, high: ends of the line that shows the spread."""

    value: float
    low: float
    high: float


def draw(result: Result) -> str:
    """The SVG: MB/s and peak memory; medians as bars, minimum to maximum as lines."""
    speed, memory = [], []
    for entry in result.entries:
        rates = [result.megabytes_per_second(run.wall) for run in entry.runs]
        speed.append(_Bar(result.megabytes_per_second(entry.wall), min(rates), max(rates)))
        peaks = sorted(run.peak_tree / 1e6 for run in entry.runs)
        middle = (peaks[(len(peaks) - 1) // 2] + peaks[len(peaks) // 2]) / 2
        memory.append(_Bar(middle, peaks[0], peaks[-1]))
    height = _TOP + _ROW * len(result.entries) + 34
    contents, machine = result.contents, result.machine
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(16, 28, f"Tokenizing {contents.text_bytes / 1e6:,.0f} MB of text", size=17),
        _text(
            16,
            48,
            f"{machine['cores']} cores of {machine['cpu']}; medians of {len(result.loads)} runs, "
            f"lines from minimum to maximum; {result.date[:10]}",
            colour="#57606a",
        ),
        *(
            _text(_LEFT - 10, _middle(row) + 5, entry.name, anchor="end")
            for row, entry in enumerate(result.entries)
        ),
        *_panel(_LEFT, "MB/s of text (higher is better)", speed, "{:,.1f}"),
        *_panel(_SECOND, "peak memory, MB (lower is better)", memory, "{:,.0f}"),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _panel(left: float, title: str, bars: Sequence[_Bar], form: str) -> list[str]:
    scale = _PANEL / max(bar.high for bar in bars)
    lines = [_text(left, _TOP - 14, title, weight="bold")]
    for row, bar in enumerate(bars):
        middle = _middle(row)
        colour = _OTHER_COLOUR if row else _FIRST_COLOUR
        lines += [
            f'<rect x="{left}" y="{middle - _BAR / 2:.1f}" width="{bar.value * scale:.1f}" '
            f'height="{_BAR}" fill="{colour}"/>',
            f'<path d="M{left + bar.low * scale:.1f} {middle:.1f}H{left + bar.high * scale:.1f}" '
            'stroke="#24292f" stroke-width="2"/>',
            _text(left + bar.high * scale + 8, middle + 5, form.format(bar.value)),
        ]
    return lines


def _middle(row: int) -> float:
    return _TOP + _ROW * (row + 0.5) - 6


def _text(
    x: float,
    y: float,
    content: str,
    *,
    size: int = 13,
    anchor: str = "start",
    weight: str = "normal",
    colour: str = "#24292f",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="{colour}">{escape(content)}</text>'
    )
