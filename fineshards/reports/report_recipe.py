"""Section of a report: what each step of the recipe dropped, with examples."""

from __future__ import annotations

from collections.abc import Iterator

from fineshards.curation.recipe_text import recipe_text
from fineshards.inspection.dropped import Decision, SourceText
from fineshards.reports.charts import share_bar
from fineshards.reports.markup import Html, joined, tag
from fineshards.reports.report_contents import Contents, StepRow
from fineshards.reports.tables import Column, bar_column, number_column, share, shortened, table
from fineshards.shards.job.recipe_record import RecipeRecord
from fineshards.wording import counted

# Characters of the texts of examples and of the recipe, and spans that were cut out.
_EXAMPLE, _RECIPE, _CUTS = 500, 20_000, 5


def recipe(contents: Contents) -> list[Html]:
    """What each step found and dropped, why, and examples."""
    record = contents.manifest.settings.recipe
    assert record is not None
    found = contents.steps[0].found
    columns = [
        Column("Step"),
        number_column("Documents in"),
        number_column("Dropped"),
        number_column("Of those in"),
        number_column("Kept"),
        bar_column(),
    ]
    rows = [
        (
            f"{step.number}\u00a0{shortened(step.use)}",
            f"{step.found:,}",
            f"{step.dropped:,}",
            share(step.dropped, step.found),
            f"{step.found - step.dropped:,}",
            share_bar(step.found - step.dropped, found),
        )
        for step in contents.steps
    ]
    kept = contents.summary.documents
    about = (
        f"Of {counted(found, 'document')} with text the recipe kept {kept:,} "
        f"({share(kept, found)})."
    )
    parts = [tag("p", about), table("What each step found and dropped", columns, rows)]
    parts += [tag("p", note, class_="note") for note in _notes(contents, record)]
    for step in contents.steps:
        if step.reasons or step.examples:
            parts += _step(step)
    code = tag("pre", tag("code", shortened(recipe_text(record), _RECIPE)), tabindex=0)
    parts.append(tag("details", tag("summary", "The recipe as TOML"), code))
    return parts


def _notes(contents: Contents, record: RecipeRecord) -> Iterator[str]:
    """What to know about the examples."""
    if contents.redacted:
        yield "No examples are shown: documents were redacted, and an example may repeat one."
        return
    examples = [each for step in contents.steps for each in step.examples]
    if examples:
        yield (
            "Examples are texts of the sources, before any step rewrote them. Keep this page as "
            "private as the sources."
        )
    foreign = [step.use for step in record.steps if step.is_foreign]
    if foreign and any(each.spans for each in examples):
        yield (
            f"What was cut is not shown: that would load {shortened(', '.join(foreign))}, and a "
            "report runs no code and loads no model that a recipe names. "
            "fineshards inspect --dropped shows it."
        )


def _step(step: StepRow) -> list[Html]:
    parts = [tag("h3", f"{step.number} {shortened(step.use)}")]
    if step.reasons:
        rows = [
            (
                shortened(each.reason),
                f"{each.documents:,}",
                share(each.documents, step.dropped),
                f"{each.text_bytes:,}",
            )
            for each in step.reasons
        ]
        columns = [Column("Reason"), number_column("Documents"), number_column("Share")]
        columns.append(number_column("Bytes of text"))
        caption = f"Why step {step.number} dropped documents"
        if step.left_out:
            caption += f"; {step.left_out:,} other reasons are not listed"
        parts.append(table(caption, columns, rows, sortable=True))
    parts += [_example(each) for each in step.examples]
    return parts


def _example(decision: Decision) -> Html:
    cut = decision.spans
    did = f"Cut {counted(len(cut), 'span')}" if cut else "Dropped"
    heading = tag("h4", f"{did}: {shortened(decision.reason)}")
    parts = [heading, _source_text(decision.document)]
    for part in (decision.cut or [])[:_CUTS]:
        parts.append(tag("p", "Cut out: ", tag("del", shortened(part, _EXAMPLE), dir="auto")))
    sides = [tag("div", *parts)]
    if decision.witness is not None:
        heading = tag("h4", "The earlier document with the same key")
        sides.append(tag("div", heading, _source_text(decision.witness)))
    return tag("div", *sides, class_="example")


def _source_text(source: SourceText) -> Html:
    where = tag("p", tag("span", shortened(source.file), class_="mono"), f", row {source.row:,}")
    if source.text is None:
        gone = "Its text cannot be read here any more; fineshards inspect --dropped says why."
        return joined([where, tag("p", gone, class_="muted")])
    return joined([where, tag("blockquote", shortened(source.text, _EXAMPLE), dir="auto")])
