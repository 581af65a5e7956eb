"""Publish: writes the files that describe a dataset to others into its folder.

They depend on the dataset and on the arguments alone, so the same call writes the same bytes.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fineshards.errors import OutputError
from fineshards.extras import require
from fineshards.publishing import croissant, dataset_card, sums
from fineshards.publishing.facts import Description
from fineshards.publishing.sums import CARD_NAME, CROISSANT_NAME, SUMS_NAME
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.job import job_name
from fineshards.shards.job.manifest import readable_manifest
from fineshards.shards.job.manifest_file import has_checkpoints
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage


@dataclass(frozen=True, slots=True)
class Published:
    """What `publish` has written.

    Args:
        folder: The dataset's folder.
        files: The SHA-256 of each file that describes the dataset, by name.
        hashed: Files of the dataset that were read and hashed.
        own_card: Whether README.md is its owner's own, and was left as it is.
        missing: Arguments that Croissant requires and no call has given.

    Example:
        >>> import fineshards
        >>> done = fineshards.publish(dataset_folder)
        >>> done.hashed, done.own_card
        (19, False)
    """

    folder: str
    files: dict[str, str]
    hashed: int
    own_card: bool
    missing: list[str]


def publish(
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    description: str | None = None,
    license: str | None = None,
    creator: str | None = None,
    url: str | None = None,
    date_published: str | None = None,
    citation: str | None = None,
) -> Published:
    """Describes a finished dataset to others: Croissant, a card, SHA-256 sums.

    Writes `metadata/croissant.json`, `README.md` and `SHA256SUMS`. Needs the extra `publish`. Every
    file of the dataset is read once. Omitted arguments keep their earlier values; an empty text
    removes one.

    Args:
        folder: The dataset's folder, local, `gs://` or `s3://`.
        name: Its name. Default: made of its source and its tokenizer.
        description: What it is, as Markdown. Its counts are added.
        license: An SPDX identifier such as `CC-BY-4.0`, or the URL of a license.
        creator: The organization that made it, or `person:` and a name.
        url: Its page.
        date_published: The day of its publication, as `2026-11-30`.
        citation: How to cite it, as BibTeX.

    Returns:
        What was written.

    Raises:
        OutputError: If the dataset is not finished, is damaged, or is being changed.
        UsageError: If an argument cannot be published.

    Example:
        >>> import fineshards
        >>> done = fineshards.publish(dataset_folder, license="CC-BY-4.0", creator="Debian")
        >>> sorted(done.files)
        ['README.md', 'SHA256SUMS', 'metadata/croissant.json']
        >>> done.missing
        ['url', 'date_published']
    """
    given = dict(locals())
    del given["folder"]
    return publish_files(open_storage(folder), given)


def publish_files(
    storage: Storage,
    given: Mapping[str, str | None],
    report: Callable[[int], None] = lambda done: None,
) -> Published:
    """As `publish`. report: takes the number of files hashed."""
    for library in ("license-expression", "mlcroissant"):
        require(library.replace("-", "_"), library, "publish")
    manifest = readable_manifest(storage)
    if storage.size(job_name(manifest.generation + 1)) is not None:
        raise OutputError(
            f"{storage.root}: generation {manifest.generation + 1} is being made. Finish it with "
            "its own command, then publish."
        )
    stored = storage.read_if_there(CROISSANT_NAME)
    description = Description() if stored is None else croissant.read(stored)[0]
    description = description.with_given(given)
    card = storage.read_if_there(CARD_NAME)
    own_card, contents = card is not None and not dataset_card.is_unchanged(card), {}
    if not own_card:
        contents[CARD_NAME] = dataset_card.to_bytes(manifest, description)
    hashed = sums.hash_files(storage, manifest, report)
    listed = hashed | {name: _sha256(content) for name, content in contents.items()}
    contents[SUMS_NAME] = sums.to_bytes(listed)
    # Written last: it has the arguments, and verify misses it until it is there.
    contents[CROISSANT_NAME] = croissant.to_bytes(manifest, listed, description)
    keep = has_checkpoints(storage)
    for name, content in contents.items():
        if storage.read_if_there(name) != content:
            storage.replace(name, content, storage.version(name))
    # The folder of unfinished files, also those that a killed process has left.
    Checkpoints.of(storage, manifest.job).clear(keep)
    digests = {name: _sha256(content) for name, content in contents.items()}
    return Published(storage.root, digests, len(hashed), own_card, description.missing())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def describe_published(done: Published) -> list[str]:
    """The result, in a few lines."""
    lines = [f"published: {done.hashed:,} files of {done.folder} are what the manifest says"]
    lines += [f"  {digest[:12]}  {name}" for name, digest in sorted(done.files.items())]
    if done.own_card:
        lines.append(
            f"  {CARD_NAME} is your own, and was left as it is; delete it to get a new one"
        )
    if done.missing:
        flags = ", ".join(f"--{name}" for name in done.missing)
        lines.append(f"Croissant requires more than the dataset can say: {flags}")
    return lines
