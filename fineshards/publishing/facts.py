"""Facts about a dataset for its published files: from its owner, and from its manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import pairwise

from fineshards.credentials import refuse_secrets
from fineshards.errors import UsageError, quoted, with_escaped_bytes
from fineshards.shards.job.job import of_generation
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import borders
from fineshards.shards.record import Record, replace

# Croissant requires these, and a dataset does not contain them.
_REQUIRED = ("license", "creator", "url", "date_published")
PERSON = "person:"
_PAGES = "https://spdx.org/licenses/"
# Characters of RFC 3986, section 2.
_URL = re.compile(r"https?://[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
# ISO 639 codes, alone or with a script as in FineWeb-2: `en`, `deu`, `rus_Cyrl`.
_LANGUAGE = re.compile(r"([a-z]{2,3})([_-][A-Z][a-z]{3})?")


class Description(Record, frozen=True):
    """The owner's facts about a dataset; empty where none was given.

    license: its URL. creator: an organization, or `person:` and a name. date_published: as
    2026-11-30. description: Markdown. citation: BibTeX.
    """

    name: str = ""
    description: str = ""
    license: str = ""
    creator: str = ""
    url: str = ""
    date_published: str = ""
    citation: str = ""

    def with_given(self, given: Mapping[str, str | None]) -> Description:
        """The description with the given values in place of its own; an empty one removes a fact.

        Raises UsageError for values that cannot be published.
        """
        texts = {name: value for name, value in given.items() if value is not None}
        for name, value in texts.items():
            if not isinstance(value, str):
                raise UsageError(f"--{name} is {quoted(value)}; give text.")
            if with_escaped_bytes(value) != value:
                raise UsageError(f"--{name}: it is not valid UTF-8. Write it in UTF-8.")
            if "<!--" in value:
                raise UsageError(
                    f"--{name}: it holds <!--, which begins a comment in README.md. Leave it out."
                )
            texts[name] = value.strip()
        if texts.get("license"):
            texts["license"] = license_url(texts["license"])
        description = replace(self, **texts)
        description._check()
        return description

    def _check(self) -> None:
        refuse_secrets(self.url, "--url")
        refuse_secrets(self.license, "--license")
        if self.url and not _URL.fullmatch(self.url):
            raise UsageError(
                f"--url {self.url}: not the URL of a page. It begins with https://, and what is "
                "not allowed in a URL is written as %20."
            )
        if self.date_published and not _is_day(self.date_published):
            raise UsageError(
                f"--date_published {self.date_published}: not a day. Write it as 2026-11-30."
            )
        if self.creator and not self.creator.removeprefix(PERSON).strip():
            raise UsageError(f"--creator {self.creator}: no name. Write it as person:NAME.")
        if "\n" in self.name or len(self.name) > 200:
            raise UsageError("--name: it must be one line of at most 200 characters.")

    def missing(self) -> list[str]:
        """The fields that Croissant requires and that are empty."""
        return [name for name in _REQUIRED if not getattr(self, name)]


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def license_url(text: str) -> str:
    """The page of a license: a URL as it is, or that of an SPDX identifier in any case.

    Raises UsageError for anything else.

    Example:
        >>> license_url("cc-by-4.0"), license_url("https://spdx.org/licenses/MIT.html")
        ('https://spdx.org/licenses/CC-BY-4.0', 'https://spdx.org/licenses/MIT')
    """
    if _URL.fullmatch(text) and not text.startswith(_PAGES):
        return text
    from license_expression import ExpressionError, LicenseSymbol, get_spdx_licensing

    name = text.removeprefix(_PAGES).removesuffix(".html")
    try:
        symbol = get_spdx_licensing().parse(name, validate=True)
    except ExpressionError:
        symbol = None
    if not isinstance(symbol, LicenseSymbol) or symbol.key.startswith("LicenseRef"):
        raise UsageError(
            f"--license {text}: not an SPDX identifier. Give one of https://spdx.org/licenses, "
            "such as CC-BY-4.0 or ODC-By-1.0, or the URL of the license."
        )
    return f"{_PAGES}{symbol.key}"


def hub_fields(url: str) -> dict[str, str]:
    """The fields of a license in a dataset card on the hub.

    Example:
        >>> hub_fields("https://spdx.org/licenses/ODC-By-1.0")
        {'license': 'odc-by'}
        >>> hub_fields("https://a.example/terms")
        {'license': 'other', 'license_name': 'terms', 'license_link': 'https://a.example/terms'}
    """
    if url.startswith(_PAGES):
        # These have no version in the hub's identifiers.
        unversioned = r"^(c-uda|odbl|odc-by|pddl)-1\.0$"
        return {"license": re.sub(unversioned, r"\1", url.removeprefix(_PAGES).lower())}
    last = url.partition("?")[0].rstrip("/").rpartition("/")[2]
    return {"license": "other", "license_name": last, "license_link": url}


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
    """A description of a dataset, as one paragraph."""
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
    matches = (_LANGUAGE.fullmatch(value) for value in values)
    return sorted({match[1] for match in matches if match} - {"und"})


def inputs(manifest: Manifest) -> list[str]:
    """The input of each generation, one line each. Local files have no folder here."""
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
    """The steps from input to tokens, in order, one sentence each."""
    settings, recipe = manifest.settings, manifest.settings.recipe
    done, dropped = [], manifest.counts().dropped
    for number, step in enumerate(recipe.steps if recipe else ()):
        documents = sum(count.documents for count in dropped if count.step == number)
        done.append(
            f"Step {number + 1} of the recipe: {step.use}. Documents that it dropped: "
            f"{documents:,}."
        )
    if any(map(settings.spares, manifest.files)):
        done.append("The recipe was applied to the train split alone.")
    tokenizer = settings.tokenizer
    done.append(
        f"Each text was encoded with {tokenizer.name}; special tokens in a text are ordinary text."
    )
    done.append(f"Each document begins with the end-of-text token, {tokenizer.eot}.")
    shuffle = settings.shuffle
    order = f"shuffled with the seed {shuffle.seed}" if shuffle else "in the order of the sources"
    done.append(f"The documents are {order}.")
    done.append(f"The test split was chosen by {settings.split.described()}.")
    return done


def limits(manifest: Manifest) -> Iterator[str]:
    """Limits that a user should know before training, one sentence each."""
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
    if left_out := len(manifest.job.left_out):
        yield f"Files of the input that could not be read, and were left out: {left_out:,}."
    if (leaks := manifest.leaks) is not None:
        yield (
            "Documents of test with the text of a document of train (exact duplicates): "
            f"{leaks.test_documents:,}."
        )
    if redacted := sum(generation.redacted for generation in manifest.generations):
        yield f"Documents that were overwritten by the end-of-text token: {redacted:,}."


def loading_snippets(manifest: Manifest) -> dict[str, str]:
    """Programs by the name of what they load with; each runs in the dataset's folder."""
    split = "train" if manifest.layout.tokens_of("train") else "test"
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
