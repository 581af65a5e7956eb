"""Publish: writes what describes a dataset to others, beside it.

All of it is a function of the dataset and of what its owner says, so the same call writes the same
bytes, and verify computes them again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fineshards.errors import OutputError
from fineshards.publishing import croissant, dataset_card, provenance, sums
from fineshards.publishing.description import Description
from fineshards.publishing.file_names import (
    CARD_NAME,
    CROISSANT_NAME,
    PROVENANCE_NAME,
    PUBLISHED,
    SUMS_NAME,
)
from fineshards.publishing.local_folders import files_with_folders
from fineshards.publishing.sums import Sums
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.job import job_name
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.readable import readable_manifest
from fineshards.storage.base import TEMPORARY, Storage
from fineshards.storage.open import open_storage


@dataclass(frozen=True, slots=True)
class Published:
    """What `publish` has written.

    Args:
        folder: The dataset's folder.
        files: The SHA-256 of each file that describes the dataset, by name.
        hashed: Files of the dataset that were read and hashed.
        own_card: Whether README.md is its owner's own, and was left as it is.
        missing: What Croissant requires and no one has said, as names of arguments.
        with_folders: Files with names of local folders, as patterns; empty if there are none.

    Example:
        >>> import fineshards
        >>> done = fineshards.publish(dataset_folder)
        >>> done.hashed, done.own_card
        (17, False)
    """

    folder: str
    files: dict[str, str]
    hashed: int
    own_card: bool
    missing: list[str]
    with_folders: list[str]


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
    no_paths: bool | None = None,
) -> Published:
    """Describes a finished dataset to others: Croissant, a card, SHA-256 sums, provenance.

    Writes `metadata/croissant.json`, `README.md`, `SHA256SUMS` and `metadata/provenance.json`.
    Every file of the dataset is read once. What is not given stays as an earlier call said it; an
    empty text takes it back.

    Args:
        folder: The dataset's folder, local, `gs://` or `s3://`.
        name: Its name. Default: made of its source and its tokenizer.
        description: What it is, as Markdown. Its counts are added.
        license: An SPDX identifier such as `CC-BY-4.0`, or the URL of a license.
        creator: The organization that made it, or `person:` and a name.
        url: Its page.
        date_published: The day of its publication, as `2026-11-30`.
        citation: How to cite it, as BibTeX.
        no_paths: Whether to leave the names of local folders out of the provenance. The manifest
            and other files keep them: `with_folders` of what is returned names these.

    Returns:
        What was written.

    Raises:
        OutputError: If the dataset is not finished, is damaged, or is being changed.
        UsageError: If an argument cannot be published.

    Example:
        >>> import fineshards
        >>> done = fineshards.publish(dataset_folder, license="CC-BY-4.0", creator="Debian")
        >>> sorted(done.files)
        ['README.md', 'SHA256SUMS', 'metadata/croissant.json', 'metadata/provenance.json']
        >>> done.missing
        ['url', 'date_published']
    """
    given = {
        "name": name,
        "description": description,
        "license": license,
        "creator": creator,
        "url": url,
        "date_published": date_published,
        "citation": citation,
        "no_paths": no_paths,
    }
    return publish_files(open_storage(folder), given)


def publish_files(
    storage: Storage,
    given: Mapping[str, str | bool | None],
    report: Callable[[int], None] = lambda done: None,
) -> Published:
    """As `publish`. report: is told how many files of the dataset are hashed."""
    manifest = readable_manifest(storage)
    if storage.size(job_name(manifest.generation + 1)) is not None:
        raise OutputError(
            f"{storage.root}: generation {manifest.generation + 1} is being made. Finish it with "
            "its own command, then publish."
        )
    _refuse_folders(storage)
    stored = storage.read_if_there(CROISSANT_NAME)
    said = Description() if stored is None else croissant.said_in(stored, manifest)
    said = said.with_given(**given)
    found = sums.hash_files(storage, manifest, report)
    card = storage.read_if_there(CARD_NAME)
    whole = dataset_card.to_bytes(manifest, said)
    own_card = card is not None and dataset_card.is_own(card, whole)
    # The last one has what was said, and verify misses it until it is there.
    contents = {} if own_card else {CARD_NAME: dataset_card.to_bytes(manifest, said, card)}
    contents |= expected(manifest, found, said, contents.get(CARD_NAME))
    kept = any(name != f"{TEMPORARY}/" for name in storage.names(f"{CHECKPOINTS}/"))
    for each, content in contents.items():
        if storage.read_if_there(each) != content:
            storage.write(each, content, over=storage.version(each))
    # Where files are written at first, also those that a killed process has left.
    Checkpoints.of(storage, manifest.job).clear(kept)
    digests = {each: hashlib.sha256(content).hexdigest() for each, content in contents.items()}
    with_folders = files_with_folders(manifest)
    with_folders += [PROVENANCE_NAME] * (bool(with_folders) and not said.no_paths)
    missing = said.missing()
    return Published(storage.root, digests, len(found), own_card, missing, with_folders)


def _refuse_folders(storage: Storage) -> None:
    """Raises OutputError for a folder or such that has the name of a published file."""
    for name, kind in storage.others(""):
        if name in (CARD_NAME, *PUBLISHED):
            raise OutputError(
                f"{storage.path(name)} is {kind}, not a file. Move it away, and publish again."
            )


def expected(
    manifest: Manifest, found: Sums, said: Description, card: bytes | str | None
) -> dict[str, bytes]:
    """The files that follow from a dataset and what its owner says, but for the card, by name.

    found: the SHA-256 of each file of the dataset. card: the card or its SHA-256; None for one that
    is its owner's own.
    """
    digest = hashlib.sha256(card).hexdigest() if isinstance(card, bytes) else card
    listed = dict(found) if digest is None else {**found, CARD_NAME: digest}
    return {
        SUMS_NAME: sums.to_bytes(listed),
        PROVENANCE_NAME: provenance.to_bytes(manifest, found, said.no_paths),
        CROISSANT_NAME: croissant.to_bytes(manifest, listed, said),
    }


def describe_published(done: Published) -> list[str]:
    """What was done, in a few lines."""
    lines = [f"published: {done.hashed:,} files of {done.folder} are what the manifest says"]
    lines += [f"  {digest[:12]}  {name}" for name, digest in sorted(done.files.items())]
    if done.own_card:
        lines.append(f"  {CARD_NAME} is your own, and was left as it is")
    if done.with_folders:
        lines.append(
            f"names of local folders are in {', '.join(done.with_folders)}. --no_paths leaves them "
            f"out of {PROVENANCE_NAME}; verify needs them in the others. To keep them out of these "
            "too, build again from a link to the folder (ln -s) whose path may be published: the "
            "shards are the same."
        )
    if done.missing:
        flags = ", ".join(f"--{name}" for name in done.missing)
        lines.append(f"Croissant requires more than the dataset can say: {flags}")
    return lines
