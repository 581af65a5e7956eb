"""The charts of the documentation show what the results say."""

from __future__ import annotations

from support.checkout import ROOT

from benchmarks.chart import redraw

IMAGES = ROOT / "docs/images"


def test_charts_show_what_the_results_say() -> None:
    charts = {ROOT / path: chart for path, chart in redraw().items()}
    assert set(charts) == {*ROOT.glob("benchmarks/results/*.svg"), IMAGES / "speed.svg"}
    for path, chart in charts.items():
        assert path.read_text() == chart, f"{path.name} is not its result: run `make pictures`"
