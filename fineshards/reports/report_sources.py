"""Section of a report: tokens by source file, by label and by host."""

from __future__ import annotations

from fineshards.reports.charts import share_bar
from fineshards.reports.markup import Html, tag
from fineshards.reports.report_contents import Contents, Values
from fineshards.reports.tables import (
    Column,
    bar_column,
    number_column,
    ratio,
    share,
    shortened,
    table,
)
from fineshards.wording import counted

_DOCUMENTS_TOKENS = [
    number_column("Documents"),
    number_column("Tokens"),
    number_column("Share of tokens"),
]


def sources(contents: Contents) -> list[Html]:
    """Source files, labels and hosts with their tokens."""
    manifest, tokens = contents.manifest, contents.summary.tokens
    left_out = len(manifest.files) - len(contents.files)
    caption = counted(len(manifest.files), "source file")
    if left_out:
        caption += f"; shown are the {len(contents.files):,} with the most tokens"
    recipe = manifest.settings.recipe is not None
    has_text = contents.summary.imported is None
    columns = [
        number_column("File"),
        Column("Path", class_="path"),
        *_DOCUMENTS_TOKENS,
        *([number_column("Bytes of text"), number_column("Bytes per token")] if has_text else []),
        number_column("Without text"),
        number_column("Rejected"),
        *([number_column("Dropped")] if recipe else []),
    ]
    rows = [
        (
            f"{file.number:,}",
            tag("span", shortened(file.path), class_="mono"),
            f"{file.documents:,}",
            f"{file.tokens:,}",
            share(file.tokens, tokens),
            *([f"{file.text_bytes:,}", ratio(file.text_bytes, file.tokens)] if has_text else []),
            f"{file.nulls:,}",
            f"{file.rejected:,}",
            *([f"{file.dropped:,}"] if recipe else []),
        )
        for file in contents.files
    ]
    parts = [table(caption, columns, rows, sortable=True)]
    for values in (*contents.labels, *([contents.hosts] if contents.hosts else [])):
        parts += _values(values, tokens)
    return parts


def _values(values: Values, tokens: int) -> list[Html]:
    rows = [
        (
            shortened(each.value),
            f"{each.documents:,}",
            f"{each.tokens:,}",
            share(each.tokens, tokens),
            share_bar(each.tokens, tokens),
        )
        for each in values.values
    ]
    columns = [Column(values.name.capitalize()), *_DOCUMENTS_TOKENS, bar_column()]
    caption = f"Documents by {values.name}, those with the most tokens first. {values.note}"
    parts = [
        tag("h3", f"By {values.name}"),
        table(caption.strip(), columns, rows, sortable=True),
    ]
    if values.others.documents:
        many = "Other" if values.left_out is None else f"{values.left_out:,} other"
        parts.append(
            tag(
                "p",
                f"{many} values are not listed: {counted(values.others.documents, 'document')}, "
                f"{counted(values.others.tokens, 'token')}.",
            )
        )
    return parts
