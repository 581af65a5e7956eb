"""`README.md`: a dataset card, as the Hugging Face hub shows it.

It has two generated parts, each between two lines that say so: one in the YAML front matter, one in
the text. Whatever is outside of them is its owner's: it is kept, and not checked.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from fineshards.printable import printable
from fineshards.publishing import card_parts, facts
from fineshards.publishing.description import PERSON, Description
from fineshards.publishing.file_names import PROVENANCE_NAME, SUMS_NAME
from fineshards.publishing.licenses import hub_fields
from fineshards.publishing.loading_snippets import loading_snippets
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.layout import SPLITS

# What may not stand in YAML as it is, or would end a line of it.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufffe\uffff]")
# The hub's sizes of datasets, by number of examples.
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")


_WITH_SHARD = """\
from pathlib import Path

import numpy as np
from datasets import load_dataset

documents = load_dataset(str(Path.cwd()), "documents", split="{split}")
shards = np.cumsum(np.array(documents["offset"]) == 0) - 1
documents = documents.add_column("shard", shards)
"""


def to_bytes(manifest: Manifest, said: Description, stored: bytes | None = None) -> bytes:
    """The card, with what its owner has added to the stored one.

    Raises OutputError for a stored one that is damaged beyond repair.
    """
    parts = _front(manifest, said), _text(manifest, said)
    empty = card_parts.EMPTY.format(*(f"{begin}\n{end}" for begin, end in card_parts.MARKS))
    whole = card_parts.as_bytes(card_parts.with_parts(empty, parts))
    if stored is None:
        return whole
    text = card_parts.as_text(stored)
    if card_parts.missing_mark(stored):
        text = card_parts.restored(stored, whole, parts)
    return card_parts.as_bytes(card_parts.with_parts(text, parts))


def is_own(card: bytes, whole: bytes) -> bool:
    """Whether a card is its owner's own. whole: what would be generated; a cut of it is not."""
    return not card_parts.is_marked(card) and not whole.startswith(card)


def _front(manifest: Manifest, said: Description) -> str:
    """The front matter."""
    configs = [
        {"split": split, "path": f"metadata/documents/{split}_*.parquet"}
        for split in SPLITS
        if any(shard.split == split for shard in manifest.shards)
    ]
    fields: dict[str, Any] = {
        "pretty_name": said.name or facts.default_name(manifest),
        **(hub_fields(said.license) if said.license else {}),
        "language": facts.languages(manifest),
        "size_categories": [size_category(manifest.totals()["documents"])],
        "task_categories": ["text-generation"],
        "tags": ["fineshards", "language-modeling", "tokens"],
        # The viewer shows what is in Parquet files: here, where documents are, but no token.
        "viewer": False,
        "configs": [{"config_name": "documents", "data_files": configs}],
    }
    return "".join(f"{name}: {_yaml(value)}\n" for name, value in fields.items() if value != [])


def _yaml(value: Any) -> str:
    """A value as JSON that is YAML too: YAML has no pairs of surrogates."""
    text = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def size_category(documents: int) -> str:
    """The hub's name for a number of examples.

    Example:
        >>> size_category(999), size_category(1000), size_category(2 * 10**12)
        ('n<1K', '1K<n<10K', 'n>1T')
    """
    passed = list(takewhile(lambda at: documents >= 1000 * 10**at, range(len(_SIZES))))
    if len(passed) == len(_SIZES):
        return f"n>{_SIZES[-1]}"
    upper = f"n<{_SIZES[len(passed)]}"
    return f"{_SIZES[len(passed) - 1]}<{upper}" if passed else upper


def _text(manifest: Manifest, said: Description) -> str:
    settings = manifest.settings
    about = f"{said.description}\n\n" if said.description else ""
    rows = (
        f"| {split} | {each['shards']:,} | {each['documents']:,} | {each['tokens']:,} |"
        for split, each in manifest.splits().items()
    )
    made = [f"Input: {_code(line)}." for line in facts.inputs(manifest)]
    made += map(printable, facts.steps(manifest))
    code = dict(loading_snippets(manifest))
    redacted = any(each.redacted for each in manifest.generations)
    same = "sources, settings, versions and redactions"
    same = same if redacted else "sources, settings and versions"
    first = max(manifest.shards, key=lambda shard: (shard.split, -shard.index))
    limits = list(facts.limits(manifest)) + ["No license is stated here."] * (not said.license)
    return f"""\
# {printable(said.name or facts.default_name(manifest))}

{about}{facts.in_short(manifest)}

| split | shards | documents | tokens |
|---|--:|--:|--:|
{_lines(rows)}

A shard is a NumPy array of {settings.dtype}. Each document begins with the end-of-text token, \
{settings.tokenizer.eot}. The tokenizer is in {_code(settings.tokenizer.file)}.

## Load

With NumPy:

```python
{code["NumPy"]}```

With fineshards, as batches that are shuffled and can be resumed:

```python
{code["Batches of NumPy"]}```

`datasets` cannot read the shards. Its config `documents` has the documents' places, ids and \
sources. A document that straddles two shards has a row for each. The rows are in the order of the \
shards, and the first row of each shard has the offset 0:

```python
{_WITH_SHARD.format(split=first.split)}```

Shard 0 of {first.split} is {_code(first.name)}.

## Check

    sha256sum --check --quiet {SUMS_NAME}
    fineshards verify .

The content fingerprint is `{manifest.content_fingerprint}`. Two datasets with the same one have \
the same shards.

## How it was made

{_bullets(made)}

{_code(PROVENANCE_NAME)} has all sources, settings and versions. fineshards \
{manifest.versions["fineshards"]} made these files; the same {same} give \
the same bytes.

## Limits

{_bullets(limits)}
{_about(said)}"""


def _about(said: Description) -> str:
    """Who made a dataset, and how to cite it; nothing where nothing was said."""
    links = {"License": said.license, "Page": said.url}
    facts_said = {
        "Creator": said.creator.removeprefix(PERSON).strip(),
        "Published": said.date_published,
        **{name: f"<{url}>" for name, url in links.items() if url},
    }
    lines = [f"{name}: {printable(value)}" for name, value in facts_said.items() if value]
    about = f"\n## About\n\n{_bullets(lines)}\n" if lines else ""
    if said.citation:
        about += f"\n## Citation\n\n{textwrap.indent(said.citation, '    ')}\n"
    return about


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _bullets(lines: Iterable[str]) -> str:
    return _lines(f"- {line}" for line in lines)


def _code(text: str) -> str:
    return "`" + printable(text).replace("`", "'") + "`"
