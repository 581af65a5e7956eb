"""The pictures of the documentation: they show what is true, and show it everywhere."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import pytest
from support.checkout import ROOT

from benchmarks.chart import redraw
from fineshards.loader.packing import pack

IMAGES = ROOT / "docs/images"
PICTURES = sorted([*IMAGES.glob("*.svg"), *ROOT.glob("benchmarks/results/*.svg")])
DRAWINGS = sorted(IMAGES.glob("concept-*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def parse(path: Path) -> Element:
    return ElementTree.parse(path).getroot()


def squeezed(text: str) -> str:
    """Without white space, which a terminal changes where it wraps lines."""
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_stands_alone_and_can_be_read_aloud(path: Path) -> None:
    picture = parse(path)
    assert picture.get("role") == "img"
    named = {element.get("id"): element for element in picture.iter()}
    for name in picture.get("aria-labelledby", "").split():
        assert (named[name].text or "").strip()
    assert [element.tag for element in picture[:2]] == [f"{SVG}title", f"{SVG}desc"]
    # As wide as a column of text, so that it stays readable where it is made smaller.
    assert int(picture.get("viewBox", "").split()[2]) <= 760
    assert path.stat().st_size < 300_000
    for element in picture.iter():
        assert element.tag not in {f"{SVG}script", f"{SVG}image", f"{SVG}foreignObject"}
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            assert not name.endswith("href") or value[1:] in named
    style = picture.findtext(f"{SVG}style") or ""
    assert not re.search(r"url\(|@import|@font-face", style)
    assert "(prefers-color-scheme: dark)" in style


def test_charts_show_what_the_results_say() -> None:
    charts = {ROOT / path: chart for path, chart in redraw().items()}
    assert set(charts) == {*ROOT.glob("benchmarks/results/*.svg"), IMAGES / "speed.svg"}
    for path, chart in charts.items():
        assert path.read_text() == chart, f"{path.name} is not its result: run `make pictures`"


def test_bars_of_the_readmes_chart_have_one_scale() -> None:
    picture = parse(IMAGES / "speed.svg")
    bars = [bar for bar in picture.iter(f"{SVG}rect") if "bar" in bar.get("class", "").split()]
    speeds = [
        float(found[1])
        for text in picture.iter(f"{SVG}text")
        if (found := re.match(r"([\d.]+) MB/s", text.text or ""))
    ]
    longest, most = max(float(bar.get("width", "")) for bar in bars), max(speeds)
    assert len(bars) == 7
    for bar, speed in zip(bars, speeds, strict=True):
        assert float(bar.get("width", "")) == pytest.approx(longest * speed / most, rel=0.02)


def test_every_picture_is_shown_on_a_page() -> None:
    pages = "".join(path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")])
    assert [path.name for path in IMAGES.iterdir() if f"images/{path.name})" not in pages] == []


def test_the_line_of_the_killed_run_lies_on_that_of_the_other() -> None:
    picture = parse(IMAGES / "kills.svg")

    def points(kind: str) -> dict[str, float]:
        paths = [path for path in picture.iter(f"{SVG}path") if path.get("class") == kind]
        points = [point for path in paths for point in path.get("d", "")[1:].split("L")]
        pairs = [point.split() for point in points]
        return {x: float(y) for x, y in pairs}

    whole, killed = points("whole"), points("killed")
    assert killed.keys() == whole.keys()
    assert max(abs(killed[x] - whole[x]) for x in whole) <= 0.1
    assert sum(path.get("class") == "kill" for path in picture.iter(f"{SVG}path")) == 5


def test_drawings_have_one_style() -> None:
    assert len({parse(path).findtext(f"{SVG}style") for path in DRAWINGS}) == 1


def test_the_recording_is_of_the_demo() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    lines = subprocess.run(
        ["make", "--dry-run", "--old-file=.venv/built", "demo"],
        cwd=ROOT, env=kept, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    commands = [line for line in lines if not line.startswith("echo")]
    printed = [line[len('echo "') : -1] for line in lines if line.startswith('echo "')]
    # Each row of the terminal, in the order in which they came.
    texts = list(parse(IMAGES / "demo.svg").iterfind(f"{SVG}defs//{SVG}text"))
    typed = "".join(text.text or "" for text in texts if text.get("class") == "blue bold")
    assert squeezed(typed) == squeezed("".join(["make demo", *commands]))
    shown = squeezed("".join(text.text or "" for text in texts))
    assert commands
    assert printed
    for line in printed:
        assert squeezed(line) in shown


def test_the_drawing_of_packing_is_what_packing_does() -> None:
    picture = parse(IMAGES / "concept-packing.svg")
    boxes = [
        element for element in picture.iter(f"{SVG}rect") if element.get("class", "") in "abcd"
    ]
    letters = [
        element.text
        for element in picture.iter(f"{SVG}text")
        if element.get("class") == "middle strong"
    ]
    rows: dict[float, list[tuple[str | None, float]]] = {}
    for box, letter in zip(boxes, letters, strict=True):
        row = rows.setdefault(float(box.get("y", "")), [])
        row.append((letter, float(box.get("width", ""))))
    drawn = [rows[y] for y in sorted(rows)]
    before, after = drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]

    wide = sum(width for _, width in before[0])
    cell, length = wide / 10, 10
    tokens = "".join(str(letter) * round(width / cell) for row in before for letter, width in row)
    assert len(tokens) == len(before) * length
    starts = np.array([0, *(n for n in range(1, len(tokens)) if tokens[n] != tokens[n - 1])])
    packed = pack(starts, len(before), length)
    expected = [
        [
            (tokens[begin], size)
            for begin, size in zip(packed.begins[low:high], packed.lengths[low:high], strict=True)
        ]
        for low, high in zip(packed.rows[:-1], packed.rows[1:], strict=True)
    ]
    assert [[(letter, round(width / cell)) for letter, width in row] for row in after] == expected
