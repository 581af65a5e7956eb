"""What a manifest says of a dataset, in the words of several of the published files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from fineshards.shards.job.generations import borders
from fineshards.shards.job.job import of_generation
from fineshards.shards.job.manifest import Manifest

# ISO 639 codes, alone or with a script as in FineWeb-2: `en`, `deu`, `rus_Cyrl`.
_LANGUAGE = re.compile(r"([a-z]{2,3})([_-][A-Z][a-z]{3})?")


def _is_local(path: str) -> bool:
    """Whether a path, or a URL of fsspec's, is on a disk."""
    return "://" not in path or path.startswith("local://")


def default_name(manifest: Manifest) -> str:
    """A name for a dataset that was given none; the same for all its generations."""
    first = manifest.job.at(1)
    # The name of a local folder is not published.
    origin = {} if _is_local(manifest.files[0].path) else first.origin
    source = origin.get("dataset", "").rpartition("/")[2]
    parts = [source or f"tokens-{first.fingerprint()[:12]}", origin.get("config", "")]
    return "-".join(filter(None, [*parts, manifest.settings.tokenizer.name]))


def in_short(manifest: Manifest) -> str:
    """What a dataset is, as one paragraph."""
    totals, settings = manifest.totals, manifest.settings
    return (
        f"{totals['tokens']:,} tokens of {totals['documents']:,} documents, encoded with "
        f"{settings.tokenizer.name}, for training language models. The tokens of each split are "
        f"one stream, cut into shards of {settings.shard_tokens:,} tokens."
    )


def version(manifest: Manifest) -> str:
    """A semantic version: a redaction changes data that was there, an append only adds some."""
    redactions = appends = 0
    for generation in manifest.generations[1:]:
        if generation.redacted:
            redactions, appends = redactions + 1, 0
        else:
            appends += 1
    return f"{1 + redactions}.{appends}.0"


def languages(manifest: Manifest) -> list[str]:
    """ISO 639 codes of the column `language`; empty if the sources had none."""
    values = (label.value for label in manifest.counts().labels if label.column == "language")
    found = (_LANGUAGE.fullmatch(value) for value in values)
    return sorted({match[1] for match in found if match} - {"und"})


def inputs(manifest: Manifest) -> list[str]:
    """What each generation was made of, one line each. Local files have no folder here."""
    ends = [0, *borders(manifest.generations)]
    lines = []
    for number, (first, end) in enumerate(pairwise(ends), 1):
        suffix = "" if number == 1 else of_generation(number)
        named = {
            name.removesuffix(suffix): value
            for name, value in manifest.origin.items()
            if value and name.endswith(suffix) and (suffix or " of generation " not in name)
        }
        path = manifest.files[first].path if end > first else ""
        if "dataset" in named and not _is_local(path):
            dataset = named.pop("dataset")
            lines.append(", ".join([dataset, *(f"{key} {named[key]}" for key in named)]))
        elif path:
            shown = path.rpartition("/")[2] if _is_local(path) else path
            lines.append(shown if end == first + 1 else f"{end - first:,} files from {shown} on")
    return lines


def steps(manifest: Manifest) -> list[str]:
    """What was done with the input, in order, one sentence each."""
    settings, recipe = manifest.settings, manifest.settings.recipe
    done, dropped = [], manifest.counts().dropped
    for number, step in enumerate(recipe.steps if recipe else ()):
        documents = sum(each.documents for each in dropped if each.step == number)
        done.append(
            f"Step {number + 1} of the recipe: {step.use}. Documents that it dropped: "
            f"{documents:,}."
        )
    tokenizer = settings.tokenizer
    done.append(
        f"Each text was encoded with {tokenizer.name}; special tokens in a text are ordinary text."
    )
    done.append(f"Each document begins with the end-of-text token, {tokenizer.eot}.")
    shuffle = settings.shuffle
    done.append(
        "The documents are in the order of the sources."
        if shuffle is None
        else f"The documents are shuffled with the seed {shuffle.seed}."
    )
    done.append(f"The test split was chosen by {settings.split.described()}.")
    return done


def limits(manifest: Manifest) -> Iterator[str]:
    """What a user should know before training, one sentence each."""
    yield "The shards hold tokens. The texts are not part of the dataset."
    totals = manifest.totals
    if totals["nulls"] or totals["rejected"]:
        yield (
            f"Rows of the sources: {totals['rows']:,}; without text: {totals['nulls']:,}; "
            f"unreadable: {totals['rejected']:,}."
        )
    if pages := manifest.counts().pages_unextracted:
        yield f"Pages whose text could not be extracted, and which were left out: {pages:,}."
    recipe = manifest.settings.recipe
    if recipe is None:
        yield "Nothing was filtered or deduplicated by fineshards."
    elif not any(step.compares for step in recipe.steps):
        yield "Nothing was deduplicated by fineshards."
    leaks = manifest.leaks
    if leaks is not None:
        yield (
            "Documents of test with the text of a document of train (exact duplicates): "
            f"{leaks.test_documents:,}."
        )
    redacted = sum(generation.redacted for generation in manifest.generations)
    if redacted:
        yield f"Documents that were overwritten by the end-of-text token: {redacted:,}."


def loading_snippets(manifest: Manifest) -> dict[str, str]:
    """Programs by the name of what they load with; each runs in the dataset's folder."""
    split = "train" if manifest.layout.train_tokens else "test"
    tokens = manifest.splits[split]["tokens"]
    shard = next(shard for shard in manifest.shards if shard.split == split)
    length = 1024
    while length >= tokens and length > 1:
        length //= 2
    batch = max(1, min(32, (tokens - 1) // length))
    chosen = f'"{split}", ' if split == "test" else ""
    return {
        "NumPy": f"""\
import numpy as np

tokens = np.load("{shard.name}", mmap_mode="r")
print(tokens.dtype, len(tokens))  # {manifest.settings.dtype} {shard.tokens}
""",
        "Batches": f"""\
from fineshards import BatchLoader, TokenDataset

dataset = TokenDataset(".", {chosen}generation={manifest.generation}, sequence_length={length})
with BatchLoader(dataset, batch_size={batch}, seed=1, dtype="int64") as loader:
    batch = next(loader)  # int64, shape ({batch}, {length + 1}); torch.from_numpy makes a tensor
    inputs, targets = batch[:, :-1], batch[:, 1:]
""",
    }
