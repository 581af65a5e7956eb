"""The HTML of a report: its head, its sections, and what verify found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fineshards.reports.markup import Html, asset, joined, page, tag
from fineshards.reports.report_contents import Contents
from fineshards.reports.report_documents import a_document, document_lengths, splits
from fineshards.reports.report_files import exactness, generations, loading, provenance, shards
from fineshards.reports.report_recipe import recipe
from fineshards.reports.report_sources import sources
from fineshards.reports.tables import facts, ratio, share, shortened
from fineshards.verification.verify import Verdict, describe_verdict
from fineshards.wording import approximately, size

# Problems that are listed, and characters of each.
MOST_PROBLEMS, _PROBLEM = 100, 500


@dataclass(frozen=True, slots=True)
class Verified:
    """What verify found, when (UTC), and with which version."""

    verdict: Verdict
    at: str
    version: str


def report_page(contents: Contents, verified: Verified | None = None) -> str:
    """The report as HTML. Without `verified` it depends on the contents alone."""
    sections = list(_sections(contents))
    links = [(anchor, heading) for anchor, heading, _ in sections]
    links.append(("verification", "Verification"))
    body = [
        tag("a", "Skip to the report", href="#report", class_="skip"),
        _masthead(contents),
        tag(
            "div",
            _contents_list(links),
            tag(
                "main",
                *(_section(*section) for section in sections),
                # Not a function of the dataset, so it comes last, between marks.
                Html("<!-- verification -->"),
                _section("verification", "Verification", _verification(verified)),
                Html("<!-- end of verification -->"),
                id="report",
            ),
            class_="columns",
        ),
        tag("footer", tag("p", "Made by fineshards report.")),
    ]
    title = f"{shortened(contents.title)} · fineshards report"
    return page(title, body, asset("page.js"), asset("report.css"))


def _sections(contents: Contents) -> Iterator[tuple[str, str, list[Html]]]:
    yield "splits", "Splits", splits(contents)
    yield "lengths", "Document lengths", document_lengths(contents.lengths)
    yield "sources", "Sources", sources(contents)
    if contents.steps:
        yield "recipe", "Recipe", recipe(contents)
    yield "document", "A document", a_document(contents.document)
    yield "exactness", "Exactness", exactness(contents)
    yield "shards", "Shards", shards(contents)
    if len(contents.summary.generations) > 1:
        yield "generations", "Generations", generations(contents)
    yield "load", "Load it", loading(contents)
    yield "provenance", "Provenance", provenance(contents)


def _section(anchor: str, heading: str, parts: list[Html]) -> Html:
    title = tag("h2", heading, id=f"{anchor}-heading")
    return tag(
        "section", title, joined(parts, "\n"), id=anchor, aria_labelledby=f"{anchor}-heading"
    )


def _contents_list(links: list[tuple[str, str]]) -> Html:
    items = [tag("li", tag("a", heading, href=f"#{anchor}")) for anchor, heading in links]
    return tag("nav", tag("ul", *items), class_="contents", aria_label="Sections")


def _masthead(contents: Contents) -> Html:
    summary = contents.summary
    what = f"Tokens of {summary.tokenizer}, as {summary.dtype}"
    figures = [
        ("Tokens", _big(summary.tokens)),
        ("Documents", _big(summary.documents)),
        ("Shards", _big(summary.shards)),
        ("Text", Html(size(summary.text_bytes))),
        ("Bytes per token", Html(ratio(summary.text_bytes, summary.tokens))),
        ("EOT share", Html(share(contents.eots, summary.tokens))),
    ]
    if summary.imported is not None:
        figures = [each for each in figures if each[0] not in ("Text", "Bytes per token")]
    return tag(
        "header",
        tag(
            "div",
            tag("p", "Dataset report", class_="kicker"),
            tag("h1", shortened(contents.title)),
            tag("p", f"{what}. Content ", tag("code", summary.content_fingerprint[:16]), "."),
            facts(figures, "figures"),
        ),
        class_="masthead",
    )


def _big(count: int) -> Html:
    """A number, rounded if it is large, with the exact one below."""
    if count < 10_000_000:
        return Html(f"{count:,}")
    return joined([approximately(count), tag("small", f"{count:,}")])


def _verification(verified: Verified | None) -> list[Html]:
    if verified is None:
        command = tag("code", "fineshards report FOLDER --verify")
        text = "This report did not verify the dataset: it shows what the manifest says. "
        return [
            tag("p", tag("span", "not checked", class_="state")),
            tag("p", text, command, " reads every file, and says here what it finds."),
        ]
    verdict = verified.verdict
    lines = describe_verdict(verdict)
    state, kind = ("verified", "state good") if verdict.ok else ("problems found", "state bad")
    parts = [
        tag("p", tag("span", state, class_=kind)),
        tag("p", f"At {verified.at} (UTC), by fineshards {verified.version}. {lines[0]}."),
    ]
    if verdict.problems:
        shown = [shortened(problem, _PROBLEM) for problem in verdict.problems[:MOST_PROBLEMS]]
        if left := len(verdict.problems) - len(shown):
            shown.append(f"and {left:,} more; fineshards verify lists all")
        parts.append(tag("ul", *(tag("li", line) for line in [*shown, lines[-1]])))
    return parts
