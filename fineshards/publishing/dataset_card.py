"""`README.md`: a dataset card, as the Hugging Face hub shows it.

Its last line has the SHA-256 of all lines before. So a card that someone has changed is theirs: it
is left as it is.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from fineshards.errors import printable
from fineshards.publishing import facts
from fineshards.publishing.facts import Description, hub_fields
from fineshards.publishing.sums import CROISSANT_NAME, SUMS_NAME
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.layout import SPLITS

_LAST = re.compile(rb"<!-- Written by fineshards publish, sha256 of the lines above: (\w+) -->\n")


def to_bytes(manifest: Manifest, description: Description) -> bytes:
    """The content of the card."""
    card = f"---\n{_front(manifest, description)}---\n\n{_text(manifest, description)}\n".encode()
    digest = hashlib.sha256(card).hexdigest()
    last = f"<!-- Written by fineshards publish, sha256 of the lines above: {digest} -->\n"
    return card + last.encode()


def is_unchanged(card: bytes) -> bool:
    """Whether a card is as `publish` wrote it, and not its owner's own."""
    last = next(_LAST.finditer(card), None)
    return (
        last is not None
        and last.end() == len(card)
        and (hashlib.sha256(card[: last.start()]).hexdigest() == last[1].decode())
    )


def _front(manifest: Manifest, description: Description) -> str:
    """The front matter."""
    from huggingface_hub import DatasetCardData

    configs = [
        {"split": split, "path": f"metadata/documents/{split}_*.parquet"}
        for split in SPLITS
        if any(shard.split == split for shard in manifest.shards)
    ]
    license_fields: dict[str, Any] = hub_fields(description.license) if description.license else {}
    data = DatasetCardData(
        pretty_name=description.name or facts.default_name(manifest),
        language=facts.languages(manifest) or None,
        task_categories=["text-generation"],
        tags=["fineshards", "language-modeling", "tokens"],
        # The viewer shows what is in Parquet files: here, where documents are, but no token.
        viewer=False,
        configs=[{"config_name": "documents", "data_files": configs}],
        **license_fields,
    )
    return data.to_yaml() + "\n"


def _text(manifest: Manifest, description: Description) -> str:
    settings, code = manifest.settings, facts.loading_snippets(manifest)
    about = f"{description.description}\n\n" if description.description else ""
    rows = "\n".join(
        f"| {split} | {sums['shards']:,} | {sums['documents']:,} | {sums['tokens']:,} |"
        for split, sums in manifest.splits.items()
    )
    made = [f"Input: {_code(line)}." for line in facts.inputs(manifest)]
    made += map(printable, facts.steps(manifest))
    return f"""\
# {printable(description.name or facts.default_name(manifest))}

{about}{facts.in_short(manifest)}

| split | shards | documents | tokens |
|---|--:|--:|--:|
{rows}

A shard is a NumPy array of {settings.dtype}. Each document begins with the end-of-text token, \
{settings.tokenizer.eot}. The tokenizer is in {_code(settings.tokenizer.file)}.

## Load

With NumPy:

```python
{code["NumPy"]}```

With fineshards, as batches that are shuffled and can be resumed:

```python
{code["Batches"]}```

`datasets` cannot read the shards. Its config `documents` has the documents' places, ids and \
sources, in the order of the shards. A document that straddles two shards has a row for each.

## Check

    sha256sum --check --quiet {SUMS_NAME}
    fineshards verify .

The content fingerprint is `{manifest.content_fingerprint}`. Two datasets with the same one have \
the same shards.

## How it was made

{_bullets(made)}

`{MANIFEST_NAME}` has all sources, settings and versions, with which fineshards \
{manifest.versions["fineshards"]} gives the same bytes again.

## Limits

{_bullets(facts.limits(manifest))}

`{CROISSANT_NAME}` has what its owner says of it: creator, date, license, page and citation.
"""


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _code(text: str) -> str:
    return "`" + printable(text).replace("`", "'") + "`"
