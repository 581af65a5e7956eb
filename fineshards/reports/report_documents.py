"""Sections of a report about documents: splits, lengths, and one with its tokens."""

from __future__ import annotations

from fineshards.reports.charts import Bar, histogram, split_bar
from fineshards.reports.lengths import SEQUENCE_LENGTHS, Lengths
from fineshards.reports.markup import Html, joined, tag
from fineshards.reports.report_contents import Contents
from fineshards.reports.shown_document import LONG_ENOUGH, TRIED, ShownTokens
from fineshards.reports.tables import Column, facts, number_column, ratio, share, shortened, table
from fineshards.wording import counted, describe_leaks


def splits(contents: Contents) -> list[Html]:
    """What each split holds, and what was left out."""
    manifest, summary = contents.manifest, contents.summary
    files = dict.fromkeys(summary.splits, 0)
    for shard in manifest.shards:
        files[shard.split] += shard.bytes
    rows = [
        (
            split,
            f"{sums['documents']:,}",
            share(sums["documents"], summary.documents),
            f"{sums['tokens']:,}",
            share(sums["tokens"], summary.tokens),
            f"{sums['shards']:,}",
            f"{files[split]:,}",
        )
        for split, sums in summary.splits.items()
    ]
    columns = [
        Column("Split"),
        number_column("Documents"),
        number_column("Share"),
        number_column("Tokens"),
        number_column("Share"),
        number_column("Shards"),
        number_column("Bytes of shards"),
    ]
    parts = [
        split_bar([(split, sums["tokens"]) for split, sums in summary.splits.items()]),
        table("What each split holds", columns, rows),
        facts(
            [
                ("Split rule", tag("code", shortened(summary.split))),
                ("Order", order_of(contents)),
                ("Text", _text(contents)),
                ("Rows left out", _left_out(contents)),
            ]
        ),
    ]
    if manifest.leaks is not None:
        leaks = manifest.leaks
        words = describe_leaks(leaks) if leaks.test_documents else "No text is in both splits"
        parts.append(tag("p", f"{words}.", class_="note" if leaks.test_documents else None))
    return parts


def order_of(contents: Contents) -> str:
    """The order of the documents, in words."""
    seed = contents.summary.shuffle_seed
    return "that of the sources" if seed is None else f"shuffled with seed {seed}"


def _text(contents: Contents) -> str:
    summary = contents.summary
    if summary.imported is not None:
        return f"none: the tokens were imported from files of {summary.imported}"
    return (
        f"{summary.text_bytes:,} bytes of UTF-8, "
        f"{ratio(summary.text_bytes, summary.tokens)} per token"
    )


def _left_out(contents: Contents) -> str:
    counts = contents.manifest.counts()
    parts = [
        (counts.nulls, "without text"),
        (counts.rejected, "that cannot be encoded"),
        (counts.pages_unextracted, "whose text cannot be extracted"),
        (counts.documents_dropped, "dropped by the recipe"),
    ]
    said = ", ".join(f"{count:,} {what}" for count, what in parts if count)
    return f"{said or 'none'}, of {counted(counts.rows, 'row')}"


def document_lengths(lengths: Lengths) -> list[Html]:
    """How long documents are: charts, and the same as tables."""
    read = f"All {counted(lengths.documents, 'document')}"
    if lengths.tables < lengths.of_tables:
        read = (
            f"A sample: the {counted(lengths.documents, 'document')} that end in "
            f"{lengths.tables:,} of the {lengths.of_tables:,} shards, which a hash chose"
        )
    if not lengths.bins:
        return [tag("p", f"{read}.")]
    about = (
        f"{read}. Half of them have at most {counted(lengths.median, 'token')}; the shortest has "
        f"{lengths.shortest:,} and the longest {lengths.longest:,}. The EOT counts."
    )
    end = lengths.bins[-1].below
    says = [
        f"{each.at_least:,} to {each.below - 1:,} tokens: "
        f"{counted(each.documents, 'document')} ({share(each.documents, lengths.documents)}), "
        f"{counted(each.tokens, 'token')} ({share(each.tokens, lengths.tokens)})"
        for each in lengths.bins
    ]
    parts = [tag("p", about)]
    for what, of in (("documents", "Documents"), ("tokens", "Tokens")):
        bars = [
            Bar(getattr(each, what), said, each.at_least)
            for each, said in zip(lengths.bins, says, strict=True)
        ]
        title = f"{of} by length of the document"
        parts.append(tag("h3", title))
        chart = histogram(title, bars, end, SEQUENCE_LENGTHS, "tokens per document, logarithmic")
        frame = {"role": "region", "aria_label": title, "tabindex": 0, "data_walk": True}
        parts.append(tag("div", chart, class_="chart", **frame))
    rows = [
        (
            f"{fit.sequence_length:,}",
            f"{fit.documents:,}",
            share(fit.documents, lengths.documents),
            f"{fit.tokens:,}",
            share(fit.tokens, lengths.tokens),
        )
        for fit in lengths.fits
    ]
    columns = [
        Column("Sequence length"),
        number_column("Documents that fit"),
        number_column("Share"),
        number_column("Their tokens"),
        number_column("Share"),
    ]
    parts.append(tag("p", "Dashed lines mark sequence lengths of 1K (1,024) and more."))
    parts.append(table("Documents that fit into a sequence as a whole", columns, rows))
    bins = [
        (
            f"{each.at_least:,} to {each.below - 1:,}",
            f"{each.documents:,}",
            share(each.documents, lengths.documents),
            f"{each.tokens:,}",
            share(each.tokens, lengths.tokens),
        )
        for each in lengths.bins
    ]
    columns = [Column("Length in tokens"), number_column("Documents"), number_column("Share")]
    columns += [number_column("Tokens"), number_column("Share")]
    folded = table("Documents and tokens by length", columns, bins)
    parts.append(tag("details", tag("summary", "The bars as numbers"), folded))
    return parts


def a_document(shown: ShownTokens | None) -> list[Html]:
    """The shown document, token by token."""
    if shown is None:
        none = (
            f"None is shown: up to {TRIED} that the fingerprint chose have no text, or are damaged."
        )
        return [tag("p", none)]
    first = shown.tokens >= LONG_ENOUGH
    which = f"the first with {LONG_ENOUGH} tokens or more" if first else "the longest"
    parts = [
        tag("p", f"Of up to {TRIED} documents that the fingerprint chooses, this is {which}."),
        facts(
            [
                ("Document", f"number {shown.number:,} of the dataset"),
                (
                    "Begins in",
                    joined([tag("code", shown.shard), f", at token {shown.offset:,}"]),
                ),
                (
                    "Source",
                    joined(
                        [tag("span", shortened(shown.file), class_="mono"), f", row {shown.row:,}"]
                    ),
                ),
                ("Id", tag("span", shortened(shown.id or "none"), class_="mono")),
                ("Tokens", f"{shown.tokens:,}"),
            ]
        ),
    ]
    if not shown.decoded:
        gone = "The tokenizer cannot be loaded here, so the ids are shown: fineshards inspect "
        parts.append(tag("p", f"{gone}says why.", class_="note"))
    spans = [tag("span", "EOT", class_="token eot", data_says=f"EOT, id {shown.eot}")]
    for span in shown.spans:
        ids = ", ".join(map(str, span.ids))
        says = f"id {ids}" if len(span.ids) == 1 else f"one character of ids {ids}"
        text = (span.text or ids).replace("\n", "⏎\n")
        spans.append(tag("span", text, class_="token", data_says=says))
    parts.append(
        tag(
            "div",
            *spans,
            class_="tokens" if shown.decoded else "tokens ids",
            dir="auto",
            data_walk=True,
            role="group",
            aria_label="The tokens of the document",
        )
    )
    rest = shown.tokens - shown.shown
    ends = f"{counted(rest, 'more token')} not shown." if rest else "That is all of it."
    parts.append(tag("p", f"{ends} Point at a token, or walk with the arrow keys, for its id."))
    return parts
