"""The HTML of a report: one function per section, from what the report says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fineshards.commands.dropped import Decision, SourceText
from fineshards.commands.verify import Verdict, describe_verdict
from fineshards.commands.wording import approximately, counted, describe_leaks
from fineshards.curation.recipe_text import recipe_text
from fineshards.pages.charts import Bar, histogram, share_bar, split_bar
from fineshards.pages.lengths import SEQUENCE_LENGTHS, Lengths
from fineshards.pages.loading_snippets import loading_snippets
from fineshards.pages.markup import Html, asset, joined, page, tag
from fineshards.pages.report_contents import (
    MOST_GENERATIONS,
    Contents,
    StepRow,
    Values,
    is_redacted,
)
from fineshards.pages.shown_document import ShownTokens
from fineshards.pages.tables import (
    Column,
    bar_column,
    facts,
    number_column,
    ratio,
    share,
    size,
    snippet,
    table,
)

# Characters of the texts of examples, and of an origin, which may name thousands of files.
_EXAMPLE, _ORIGIN = 500, 300
# Spans of an example that are shown.
_CUTS = 5
_DOCUMENTS_TOKENS = [
    *(number_column("Documents"), number_column("Tokens"), number_column("Share of tokens"))
]


@dataclass(frozen=True, slots=True)
class Verified:
    """What verify found, when (UTC), and with which version."""

    verdict: Verdict
    at: str
    version: str


def report_page(contents: Contents, verified: Verified | None = None) -> str:
    """The report as HTML. Without `verified` it depends on the contents alone."""
    sections = [section for section in _sections(contents) if section is not None]
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
    title = f"{contents.title} · fineshards report"
    return page(title, body, asset("page.js"), asset("report.css"))


def _sections(contents: Contents) -> Iterator[tuple[str, str, list[Html]]]:
    yield "splits", "Splits", _splits(contents)
    yield "lengths", "Document lengths", _lengths(contents.lengths)
    yield "sources", "Sources", _sources(contents)
    if contents.steps:
        yield "recipe", "Recipe", _recipe(contents)
    yield "document", "A document", _document(contents.document)
    yield "exactness", "Exactness", _exactness(contents)
    yield "shards", "Shards", _shards(contents)
    if len(contents.summary.generations) > 1:
        yield "generations", "Generations", _generations(contents)
    yield "load", "Load it", _load(contents)
    yield "provenance", "Provenance", _provenance(contents)


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
        ("EOT tokens", Html(share(summary.documents, summary.tokens))),
    ]
    if summary.imported is not None:
        figures = [each for each in figures if each[0] not in ("Text", "Bytes per token")]
    return tag(
        "header",
        tag(
            "div",
            tag("p", "Dataset report", class_="kicker"),
            tag("h1", contents.title),
            tag("p", f"{what}. Fingerprint ", tag("code", summary.fingerprint[:16]), "."),
            facts(figures, "figures"),
        ),
        class_="masthead",
    )


def _big(count: int) -> Html:
    """A number, rounded if it is large, with the exact one below."""
    if count < 10_000_000:
        return Html(f"{count:,}")
    return joined([approximately(count), tag("small", f"{count:,}")])


def _splits(contents: Contents) -> list[Html]:
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
                ("Split rule", tag("code", summary.split)),
                ("Order", _order(contents)),
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


def _order(contents: Contents) -> str:
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
        (counts.documents_dropped, "dropped by the recipe"),
    ]
    said = ", ".join(f"{count:,} {what}" for count, what in parts if count)
    return f"{said or 'none'}, of {counted(counts.rows, 'row')}"


def _lengths(lengths: Lengths) -> list[Html]:
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
    folded = table("The bars as numbers", columns, bins)
    parts.append(tag("details", tag("summary", "The bars as numbers"), folded))
    return parts


def _sources(contents: Contents) -> list[Html]:
    manifest, tokens = contents.manifest, contents.summary.tokens
    left_out = len(manifest.files) - len(contents.files)
    caption = counted(len(manifest.files), "source file")
    if left_out:
        caption += f"; shown are the {len(contents.files):,} with the most tokens"
    recipe = manifest.settings.recipe is not None
    columns = [
        number_column("File"),
        Column("Path", class_="path"),
        *_DOCUMENTS_TOKENS,
        number_column("Bytes of text"),
        number_column("Bytes per token"),
        number_column("Without text"),
        number_column("Rejected"),
        *([number_column("Dropped")] if recipe else []),
    ]
    rows = [
        (
            f"{file.number:,}",
            tag("span", file.path, class_="mono"),
            f"{file.documents:,}",
            f"{file.tokens:,}",
            share(file.tokens, tokens),
            f"{file.text_bytes:,}",
            ratio(file.text_bytes, file.tokens),
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
            each.value,
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


def _recipe(contents: Contents) -> list[Html]:
    recipe = contents.manifest.settings.recipe
    assert recipe is not None
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
            f"{step.number}\u00a0{step.use}",
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
    if is_redacted(contents.manifest):
        hidden = "No examples are shown: documents were redacted, and an example may repeat one."
        parts.append(tag("p", hidden, class_="note"))
    for step in contents.steps:
        if step.reasons or step.examples:
            parts += _step(step)
    code = tag("pre", tag("code", recipe_text(recipe)), tabindex=0)
    parts.append(tag("details", tag("summary", "The recipe as TOML"), code))
    return parts


def _step(step: StepRow) -> list[Html]:
    parts = [tag("h3", f"{step.number} {step.use}")]
    if step.reasons:
        rows = [
            (
                each.reason,
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
    parts = [tag("h4", f"{did}: {decision.reason}"), _source_text(decision.document)]
    for part in (decision.cut or [])[:_CUTS]:
        parts.append(tag("p", "Cut out: ", tag("del", _shortened(part), dir="auto")))
    sides = [tag("div", *parts)]
    if decision.witness is not None:
        heading = tag("h4", "The earlier document with the same key")
        sides.append(tag("div", heading, _source_text(decision.witness)))
    return tag("div", *sides, class_="example")


def _source_text(source: SourceText) -> Html:
    where = tag("p", tag("span", source.file, class_="mono"), f", row {source.row:,}")
    if source.text is None:
        gone = "Its text cannot be read here any more; fineshards inspect --dropped says why."
        return joined([where, tag("p", gone, class_="muted")])
    return joined([where, tag("blockquote", _shortened(source.text), dir="auto")])


def _shortened(text: str) -> str:
    return text if len(text) <= _EXAMPLE else f"{text[:_EXAMPLE]} …"


def _document(shown: ShownTokens | None) -> list[Html]:
    if shown is None:
        return [tag("p", "None is shown: those that the fingerprint chose have no text.")]
    parts = [
        tag("p", "The fingerprint of the dataset chose this document among all."),
        facts(
            [
                ("Document", f"number {shown.number:,} of the dataset"),
                (
                    "Begins in",
                    joined([tag("code", shown.shard), f", at token {shown.offset:,}"]),
                ),
                (
                    "Source",
                    joined([tag("span", shown.file, class_="mono"), f", row {shown.row:,}"]),
                ),
                ("Id", tag("span", shown.id or "none", class_="mono")),
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


def _exactness(contents: Contents) -> list[Html]:
    counts, tokenizer = contents.manifest.counts(), contents.manifest.settings.tokenizer
    library = {"tiktoken": "tiktoken", "huggingface": "tokenizers"}[tokenizer.kind]
    if contents.summary.imported is not None:
        text = (
            "The tokens were imported. Every id is below the size of the vocabulary, and every "
            "document begins with the EOT. No text was tokenized."
        )
        return [tag("p", text)]
    how = f"{library} itself encoded every document."
    if counts.by_reference < counts.documents:
        how = (
            f"A faster tokenizer encoded most documents. Those with characters that it may split "
            f"in another way went to {library} alone, and one document in 1,000, which a hash "
            "chose, was encoded by both. A difference would have ended the build."
        )
    return [
        tag("p", f"The tokens are those that {library} gives. {how}"),
        facts(
            [
                (f"By {library} alone", _documents(counts.by_reference, counts.documents)),
                ("By both, and equal", _documents(counts.compared, counts.documents)),
                ("Golden texts, SHA-256", tag("code", tokenizer.golden_sha256)),
                ("Vocabulary, SHA-256", tag("code", tokenizer.vocabulary_sha256)),
            ]
        ),
    ]


def _documents(part: int, whole: int) -> str:
    return f"{counted(part, 'document')} ({share(part, whole)})"


def _shards(contents: Contents) -> list[Html]:
    manifest, summary = contents.manifest, contents.summary
    left_out = len(manifest.shards) - len(contents.shards)
    total = sum(shard.bytes for shard in manifest.shards)
    caption = f"{counted(summary.shards, 'shard')}, {size(total)}"
    if left_out:
        half = len(contents.shards) // 2
        caption += f"; shown are the first {half:,} and the last {half:,}"
    columns = [
        Column("Shard"),
        number_column("Tokens"),
        number_column("Documents"),
        number_column("Bytes"),
        Column("CRC-32C"),
        number_column("Bytes of table"),
        Column("CRC-32C of table"),
    ]
    rows = [
        (
            tag("span", shard.name, class_="mono"),
            f"{shard.tokens:,}",
            f"{shard.documents:,}",
            f"{shard.bytes:,}",
            tag("code", shard.crc32c),
            "–" if shard.table_bytes is None else f"{shard.table_bytes:,}",
            tag("code", shard.table_crc32c or "–"),
        )
        for shard in contents.shards
    ]
    about = (
        f"Each shard is a .npy file of {counted(summary.shard_tokens, 'token')}, {summary.dtype}; "
        "the last one of a split may have fewer. Documents are those that begin in it. The CRC-32C "
        "of the file is written as Cloud Storage does. The rest is in metadata/manifest.json."
    )
    return [tag("p", about), table(caption, columns, rows, sortable=True)]


def _generations(contents: Contents) -> list[Html]:
    generations = contents.summary.generations
    columns = [
        Column("Generation"),
        number_column("Files"),
        number_column("Documents"),
        number_column("Tokens"),
        number_column("Documents redacted"),
    ]
    rows = [
        (
            str(each.number),
            f"{each.files:,}",
            f"{each.documents:,}",
            f"{each.tokens:,}",
            f"{each.redacted:,}",
        )
        for each in generations[-MOST_GENERATIONS:]
    ]
    caption = counted(len(generations), "generation")
    if len(generations) > MOST_GENERATIONS:
        caption += f"; shown are the last {MOST_GENERATIONS}"
    about = "What each generation added. Earlier ones can still be read, with generation=N."
    return [tag("p", about), table(caption, columns, rows, sortable=True)]


def _load(contents: Contents) -> list[Html]:
    parts = [
        tag(
            "p",
            "Run these in the folder of the dataset, or write its path or URL in place of ",
            tag("code", '"."'),
            ". The loader needs fineshards and NumPy, and nothing else.",
        )
    ]
    for name, code in loading_snippets(contents.manifest):
        parts += [tag("h3", name), snippet(code)]
    return parts


def _provenance(contents: Contents) -> list[Html]:
    manifest, summary = contents.manifest, contents.summary
    settings = manifest.settings
    tokenizer, columns = settings.tokenizer, settings.columns
    origin = [(name, _origin(value)) for name, value in summary.origin.items()]
    options = [
        ("Text column", columns.text),
        ("Id column", columns.id),
        ("Tokens per shard", f"{settings.shard_tokens:,}"),
        ("Type", settings.dtype),
        ("Split rule", tag("code", summary.split)),
        ("Order", _order(contents)),
        ("Bytes of text per block", f"{settings.block_bytes:,}"),
        ("Statistics", "counted" if settings.statistics else "not counted"),
    ]
    versions = [(name, version) for name, version in manifest.versions.items()]
    rows = [
        (tag("span", file.name, class_="mono"), f"{file.bytes:,}", tag("code", file.crc32c))
        for file in manifest.metadata[:MOST_GENERATIONS]
    ]
    caption = f"{counted(len(manifest.metadata), 'file')} of metadata besides manifest and tables"
    if len(manifest.metadata) > len(rows):
        caption += f"; shown are the first {len(rows)}"
    return [
        facts(
            [
                ("Fingerprint", tag("code", manifest.fingerprint)),
                ("Generation", str(manifest.generation)),
                ("Format", f"fineshards, version {manifest.version}"),
            ]
        ),
        tag("h3", "Input"),
        facts(origin),
        tag("h3", "Tokenizer"),
        facts(
            [
                ("Name", tokenizer.name),
                ("Kind", tokenizer.kind),
                ("Ids", f"{tokenizer.size:,}"),
                ("EOT", f"{tokenizer.eot}, before each document"),
                ("File", tag("code", tokenizer.file)),
                ("Pattern", tag("code", tokenizer.pattern)),
            ]
        ),
        tag("h3", "Options"),
        facts(options),
        tag("h3", "Versions"),
        facts(versions, "facts short"),
        *([tag("h3", "Metadata"), table(caption, _METADATA, rows, sortable=True)] if rows else []),
    ]


_METADATA = [Column("File"), number_column("Bytes"), Column("CRC-32C")]


def _origin(value: str) -> Html:
    shown = value if len(value) <= _ORIGIN else f"{value[:_ORIGIN]} …"
    return tag("span", shown, class_="mono")


def _verification(verified: Verified | None) -> list[Html]:
    if verified is None:
        command = tag("code", "fineshards report FOLDER --verify")
        text = "This report did not verify the dataset: it shows what the manifest says. "
        return [
            tag("p", tag("span", "not verified", class_="state")),
            tag("p", text, command, " reads every file, and says here what it finds."),
        ]
    verdict = verified.verdict
    first, *others = describe_verdict(verdict)
    state, kind = ("verified", "state good") if verdict.ok else ("not verified", "state bad")
    shown = others[:MOST_GENERATIONS]
    return [
        tag("p", tag("span", state, class_=kind)),
        tag("p", f"At {verified.at} (UTC), by fineshards {verified.version}. {first}."),
        *([tag("ul", *(tag("li", line.strip()) for line in shown))] if shown else []),
    ]
