"""Sections of a report about files: exactness, shards, generations, loading, provenance."""

from __future__ import annotations

from fineshards.encoders.reference_check import COMPARED_SHARE
from fineshards.publishing.loading_snippets import loading_snippets
from fineshards.reports.markup import Html, tag
from fineshards.reports.report_contents import MOST_GENERATIONS, Contents
from fineshards.reports.report_documents import order_of
from fineshards.reports.tables import Column, facts, number_column, share, shortened, snippet, table
from fineshards.wording import counted, size

# Characters of a tokenizer's pattern.
_PATTERN = 1_000


def exactness(contents: Contents) -> list[Html]:
    """How it is known that the tokens are right."""
    counts, tokenizer = contents.manifest.counts(), contents.manifest.settings.tokenizer
    library = {"tiktoken": "tiktoken", "huggingface": "tokenizers"}[tokenizer.kind]
    if contents.summary.imported is not None:
        text = (
            "The tokens were imported. Every id is below the size of the vocabulary, and every "
            "document begins with the EOT. No text was tokenized."
        )
        return [tag("p", text)]
    said = [f"The tokens are those that {library} gives."]
    if counts.by_reference == counts.documents:
        said.append(f"{library} itself encoded every document.")
    else:
        fast = f"A faster tokenizer encoded {counts.documents - counts.by_reference:,} documents"
        if counts.by_reference:
            fast += (
                f", and {library} alone the {counts.by_reference:,} with characters that the other "
                "may split in another way"
            )
        chosen = f"{counts.compared:,}" if counts.compared else "none"
        said.append(
            f"{fast}. A hash chooses about one in {round(1 / COMPARED_SHARE):,} that both encode: "
            f"of these {counted(counts.documents, 'document')} it chose {chosen}."
        )
        if counts.compared:
            said.append("A difference would have ended the build.")
    if contents.overwritten.documents:
        redacted = counted(contents.overwritten.documents, "document")
        said.append(f"Since then the tokens of {redacted} were overwritten by EOT.")
    return [
        tag("p", " ".join(said)),
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


def shards(contents: Contents) -> list[Html]:
    """Shards with sizes and checksums."""
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
        "of the file is written as Cloud Storage does. The rest is in the manifest. Sizes and "
        f"checksums are those of generation {manifest.generation}: a later one may extend the last "
        "shard of a split, and overwrite redacted documents."
    )
    return [tag("p", about), table(caption, columns, rows, sortable=True)]


def generations(contents: Contents) -> list[Html]:
    """What each generation did."""
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


def loading(contents: Contents) -> list[Html]:
    """Code that loads the dataset."""
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


def provenance(contents: Contents) -> list[Html]:
    """What decided the bytes."""
    manifest, summary = contents.manifest, contents.summary
    settings = manifest.settings
    tokenizer, names = settings.tokenizer, settings.columns
    origin = [(name, _origin(value)) for name, value in summary.origin.items()]
    options = [
        ("Text column", shortened(names.text)),
        ("Id column", shortened(names.id)),
        ("Tokens per shard", f"{settings.shard_tokens:,}"),
        ("Type", settings.dtype),
        ("Split rule", tag("code", shortened(summary.split))),
        ("Order", order_of(contents)),
        ("Bytes of text per block", f"{settings.block_bytes:,}"),
        ("Statistics", "counted" if settings.statistics else "not counted"),
    ]
    versions = [(name, version) for name, version in manifest.versions.items()]
    rows = [
        (tag("span", file.name, class_="mono"), f"{file.bytes:,}", tag("code", file.crc32c))
        for file in manifest.metadata[:MOST_GENERATIONS]
    ]
    columns = [Column("File"), number_column("Bytes"), Column("CRC-32C")]
    caption = f"{counted(len(manifest.metadata), 'file')} of metadata besides manifest and tables"
    if len(manifest.metadata) > len(rows):
        caption += f"; shown are the first {len(rows)}"
    return [
        facts(
            [
                ("Fingerprint of the content", tag("code", manifest.content_fingerprint)),
                ("Fingerprint of the job", tag("code", manifest.fingerprint)),
                ("Generation", str(manifest.generation)),
                ("Format", f"fineshards, version {manifest.version}"),
            ]
        ),
        tag("h3", "Input"),
        facts(origin),
        tag("h3", "Tokenizer"),
        facts(
            [
                ("Name", shortened(tokenizer.name)),
                ("Kind", tokenizer.kind),
                ("Ids", f"{tokenizer.size:,}"),
                ("EOT", f"{tokenizer.eot}, before each document"),
                ("File", tag("code", tokenizer.file)),
                ("Pattern", tag("code", shortened(tokenizer.pattern, _PATTERN))),
            ]
        ),
        tag("h3", "Options"),
        facts(options),
        tag("h3", "Versions"),
        facts(versions, "facts short"),
        *([tag("h3", "Metadata"), table(caption, columns, rows, sortable=True)] if rows else []),
    ]


def _origin(value: str) -> Html:
    return tag("span", shortened(value), class_="mono")
