"""The HTML of a report: what its templates show, and the sections that a dataset has."""

from __future__ import annotations

from dataclasses import dataclass

from fineshards.curation.recipe_text import recipe_text
from fineshards.encoders.reference_check import COMPARED_SHARE
from fineshards.publishing.loading_snippets import loading_snippets
from fineshards.reports.lengths import SEQUENCE_LENGTHS
from fineshards.reports.markup import asset, page
from fineshards.reports.report_contents import MOST_GENERATIONS, Contents
from fineshards.reports.shown_document import LONG_ENOUGH, TRIED
from fineshards.verification.verify import Verdict, describe_verdict
from fineshards.wording import approximately, describe_leaks, size


@dataclass(frozen=True, slots=True)
class Verified:
    """What verify found, when (UTC), and with which version."""

    verdict: Verdict
    at: str
    version: str


def report_page(contents: Contents, verified: Verified | None = None) -> str:
    """The report as HTML. Without `verified` it depends on the contents alone."""
    headings = {
        "splits": "Splits",
        "lengths": "Document lengths",
        "sources": "Sources",
        "recipe": "Recipe" if contents.steps else "",
        "document": "A document",
        "exactness": "Exactness",
        "shards": "Shards",
        "generations": "Generations" if len(contents.summary.generations) > 1 else "",
        "load": "Load it",
        "provenance": "Provenance",
        "verification": "Verification",
    }
    return page(
        "reports/report.html",
        script=asset("reports/page.js"),
        style=asset("reports/style.css") + asset("reports/report.css"),
        contents=contents,
        verified=verified,
        sections=[(anchor, heading) for anchor, heading in headings.items() if heading],
        approximately=approximately,
        describe_leaks=describe_leaks,
        describe_verdict=describe_verdict,
        loading_snippets=loading_snippets,
        recipe_text=recipe_text,
        size=size,
        COMPARED_SHARE=COMPARED_SHARE,
        LONG_ENOUGH=LONG_ENOUGH,
        MOST_GENERATIONS=MOST_GENERATIONS,
        SEQUENCE_LENGTHS=SEQUENCE_LENGTHS,
        TRIED=TRIED,
    )
