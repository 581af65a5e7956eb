# /// script
# requires-python = ">=3.11"
# dependencies = ["pyte==0.8.2"]
# ///
"""Records `make demo` as an animated SVG, images/demo.svg. Run by `make pictures`.

The demo runs in a pseudo-terminal, and pyte makes screens of what it prints. The SVG is a strip of
these screens, one below the other, that moves behind a window. Where nothing moves, it shows the
last screen, with which the film begins, too. Three things differ from the run: the commands have a
colour, the pauses before them are longer, and lines are broken between words.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import textwrap
import time
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte
from pyte.screens import Char

ROOT = Path(__file__).parent.parent
PATH = Path(__file__).parent / "images/demo.svg"
COMMAND = "make demo"
COLUMNS, ROWS = 100, 30
# Seconds. Screens that follow each other faster than FRAME become one. A viewer needs time where
# the demo takes none: before each of its commands, at the end, and for the end at the beginning.
FRAME, BEFORE_COMMAND, AT_THE_END, AT_THE_BEGINNING = 0.1, 1.5, 6.0, 3.0

_CELL, _LINE, _MARGIN, _BAR = 7.2, 16, 14, 34
# One that moves no cursor.
_LONG_LINE = re.compile(rb"^[^\x1b\r\n]{%d,}(?=\r?\n|\Z)" % (COLUMNS + 1), re.MULTILINE)
_COLOURS = {
    # Name in pyte: colour in light, colour in dark.
    "red": ("#cf222e", "#ff7b72"),
    "brightred": ("#bf3989", "#f778ba"),
    "green": ("#116329", "#3fb950"),
    "brown": ("#7d4e00", "#d29922"),
    "blue": ("#0969da", "#58a6ff"),
    "magenta": ("#8250df", "#bc8cff"),
    "cyan": ("#1b7c83", "#39c5cf"),
    "brightblack": ("#59636e", "#9198a1"),
}


class Output(NamedTuple):
    """What was printed, seconds after the start; `begins`: whether a command of the demo begins."""

    seconds: float
    text: bytes
    begins: bool


class Frame(NamedTuple):
    """A screen, as the SVG of its rows, and the seconds for which it is shown."""

    rows: tuple[str, ...]
    seconds: float


def run() -> Iterator[Output]:
    """Runs the demo in a terminal and yields what it prints; raises SystemExit if it fails."""
    started = time.monotonic()
    process, terminal = pty.fork()
    if process == 0:
        size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
        fcntl.ioctl(0, termios.TIOCSWINSZ, size)
        os.chdir(ROOT)
        # `make pictures` has started this; the demo's make shall not print that it is inside of it.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        os.execvpe("make", COMMAND.split(), kept | {"TERM": "xterm-256color"})
    while True:
        try:
            printed = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            printed = b""
        if not printed:
            break
        seconds = time.monotonic() - started
        # The folder of the checkout says nothing to others.
        printed = printed.replace(bytes(ROOT), b"~/fineshards")
        for number, part in enumerate(
            re.split(rb"(?=^\.venv/bin/fineshards )", printed, flags=re.M)
        ):
            begins = number > 0 or part.startswith(b".venv/bin/")
            yield Output(seconds, part, begins)
    if os.waitpid(process, 0)[1] != 0:
        raise SystemExit(f"{COMMAND} failed. Run it to see why.")


def _broken(text: bytes) -> bytes:
    """Text whose lines are no longer than the terminal is wide."""

    def several(line: re.Match[bytes]) -> bytes:
        lines = textwrap.wrap(line[0].decode(), COLUMNS, break_on_hyphens=False)
        return "\r\n".join(lines).encode()

    return _LONG_LINE.sub(several, text)


def frames(outputs: Iterator[Output]) -> list[Frame]:
    """The screens of a terminal that shows the command and then what it prints."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ \x1b[1;34m{COMMAND}\x1b[0m\r\n".encode())
    shown, since, pauses = _rows(screen), 0.0, 0.0
    made = []
    for output in outputs:
        pauses += BEFORE_COMMAND if output.begins else 0
        now = output.seconds + pauses
        if output.begins:
            command, end, rest = output.text.partition(b"\r\n")
            stream.feed(b"\x1b[1;34m" + _broken(command) + b"\x1b[0m" + end + _broken(rest))
        else:
            stream.feed(_broken(output.text))
        rows = _rows(screen)
        if rows != shown and now - since >= FRAME:
            made.append(Frame(shown, now - since))
            since = now
        shown = rows
    return [*made, Frame(shown, AT_THE_END)]


def _rows(screen: pyte.Screen) -> tuple[str, ...]:
    return tuple(
        _row([screen.buffer[row][column] for column in range(COLUMNS)]) for row in range(ROWS)
    )


def _row(characters: Sequence[Char]) -> str:
    """The SVG of a row: a <text> for each stretch of one style, as long as its cells."""
    parts, column = [], 0
    for kind, cells in groupby(characters, _kind):
        text = "".join(cell.data for cell in cells)
        style = f' class="{kind}"' if kind else ""
        # Not every viewer keeps spaces that follow each other.
        for words in re.finditer(r"\S+( \S+)*", text):
            parts.append(
                f'<text{style} x="{_MARGIN + (column + words.start()) * _CELL:.1f}" '
                f'textLength="{len(words[0]) * _CELL:.1f}">{escape(words[0], quote=False)}</text>'
            )
        column += len(text)
    return "".join(parts)


def _kind(character: Char) -> str:
    colour = character.fg if character.fg in _COLOURS else ""
    return " ".join(part for part in (colour, "bold" if character.bold else "") if part)


def draw(shown: Sequence[Frame]) -> str:
    """The SVG: each different row once, screens of rows, and the times at which they change."""
    width, height = round(2 * _MARGIN + COLUMNS * _CELL), ROWS * _LINE + 2 * _MARGIN
    total = sum(frame.seconds for frame in shown)
    numbers: dict[str, int] = {}
    screens, times, begins = [], [], 0.0
    for number, frame in enumerate(shown):
        uses = "".join(
            f'<use href="#r{numbers.setdefault(row, len(numbers))}" y="{_LINE * (line + 1)}"/>'
            for line, row in enumerate(frame.rows)
            if row
        )
        screens.append(f'<g transform="translate(0 {number * height})">{uses}</g>')
        times.append(f"{begins / total:.3%} {{ transform: translateY({-number * height}px) }}")
        begins += frame.seconds
    light, dark = (
        "".join(f".{name} {{ fill: {pair[scheme]} }}\n" for name, pair in _COLOURS.items())
        for scheme in (0, 1)
    )
    play = "\n".join(times)
    rows = "\n".join(f'<g id="r{number}">{row}</g>' for row, number in numbers.items())
    last = (len(shown) - 1) * height
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + _BAR}" \
width="{width}" height="{height + _BAR}" role="img" aria-labelledby="title desc">
<title id="title">A recording of {COMMAND}</title>
<desc id="desc">The demo builds a dataset from the sample, verifies it, and shows what it holds, \
one document, and how to open its report. Recorded from a real run; the pauses before its commands \
are longer.</desc>
<style>
text {{ font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328 }}
.page {{ fill: #f6f8fa }}
.bar {{ fill: #d1d9e0 }}
.bold {{ font-weight: 600 }}
{light}@media (prefers-color-scheme: dark) {{
text {{ fill: #f0f6fc }}
.page {{ fill: #151b23 }}
.bar {{ fill: #2a313c }}
{dark}}}
@media (prefers-reduced-motion: no-preference) {{
.film {{ animation: play {total:.1f}s step-end {AT_THE_BEGINNING - total:.1f}s infinite }}
}}
@keyframes play {{
{play}
}}
</style>
<defs>
{rows}
</defs>
<rect class="page" width="{width}" height="{height + _BAR}" rx="8"/>
<path class="bar" d="M0 {_BAR}V8a8 8 0 0 1 8-8H{width - 8}a8 8 0 0 1 8 8V{_BAR}z"/>
<text x="{_MARGIN}" y="22">{COMMAND}</text>
<svg y="{_BAR}" width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<g class="film" transform="translate(0 {-last})">
{chr(10).join(screens)}
</g>
</svg>
</svg>
"""


if __name__ == "__main__":
    recording = draw(frames(run()))
    if str(ROOT) in recording:
        sys.exit(f"{PATH.name} would show the folder of this checkout. Record it again.")
    PATH.write_text(recording)
