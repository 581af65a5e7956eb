"""What was made of a dataset: published files, and exports; as part of verify."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from fineshards.cores import usable_cores
from fineshards.errors import OutputError
from fineshards.exports.record import Export, FileRecord
from fineshards.publishing import croissant, dataset_card, sums
from fineshards.publishing.sums import CARD_NAME, CROISSANT_NAME, PUBLISHED, SUMS_NAME
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import EXPORT_NAME, MANIFEST_NAME
from fineshards.shards.readable import readable_manifest
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage
from fineshards.verification.check_files import file_problem
from fineshards.wording import counted

_AGAIN = "Run fineshards publish again."


def check_published(storage: Storage, manifest: Manifest, hashes: bool) -> Iterator[str]:
    """What is published is as it was written, of this dataset; nothing, if nothing is published.

    hashes: whether to read every file of the dataset, and compare its SHA-256 with that in
    `SHA256SUMS`.
    """
    stored = {name: storage.read_if_there(name) for name in PUBLISHED}
    there = {name: content for name, content in stored.items() if content is not None}
    card = storage.read_if_there(CARD_NAME)
    if not there:
        if card is not None and dataset_card.emptied(card) != card:
            yield f"{CARD_NAME} is published, and {CROISSANT_NAME} is missing. {_AGAIN}"
        return
    for name in PUBLISHED:
        if name not in there:
            yield f"{name} is missing, and other published files are there. {_AGAIN}"
    if len(there) < len(PUBLISHED):
        return
    try:
        published = croissant.read(there[CROISSANT_NAME], manifest)
    except OutputError as error:
        yield str(error)
        return
    if hashlib.sha256(there[SUMS_NAME]).hexdigest() != published.sums:
        yield f"{SUMS_NAME} is another one than {CROISSANT_NAME} describes. {_AGAIN}"
        return
    listed = sums.parse(there[SUMS_NAME])
    if listed[MANIFEST_NAME] != hashlib.sha256(manifest.to_bytes()).hexdigest():
        yield f"{SUMS_NAME} is of another state of the dataset, which has changed since. {_AGAIN}"
        return
    listed_card = listed.pop(CARD_NAME, None)
    if listed_card is not None and card is None:
        yield f"{CARD_NAME} is missing, and {SUMS_NAME} lists it. {_AGAIN}"
    elif card is not None and (listed_card is not None or not dataset_card.is_own(card)):
        found = dataset_card.digest(card)
        if found is None:
            yield f"{dataset_card.lost_mark(card)}. {_AGAIN}"
        elif found != published.card:
            yield f"the generated part of {CARD_NAME} is not what was published. {_AGAIN}"
        elif hashes and listed_card != hashlib.sha256(card).hexdigest():
            yield (
                f"{CARD_NAME} is another one than {SUMS_NAME} lists. If your lines in it have "
                f"changed, run fineshards publish again."
            )
    if hashes:
        now = sums.hash_files(storage, manifest)
        for name in sorted(now.keys() | listed.keys()):
            if now.get(name) != listed.get(name):
                yield f"{name} has SHA-256 {now.get(name)}; {SUMS_NAME} says {listed.get(name)}"


def check_export(storage: Storage, export: Export, dataset: Storage | None) -> Iterator[str]:
    """A sentence per file of an export that is missing, damaged or foreign.

    And one if the export is not of a dataset, or if that was redacted since. dataset: by default
    that whose shards the export links to, if there are links.
    """
    expected = {file.name for file in export.files} | {EXPORT_NAME}
    for entry in sorted(storage.entries(""), key=lambda entry: entry.name):
        if entry.name not in expected:
            yield (
                f"{entry.name} is not a file of the export, and readers take every file of a "
                "folder. Move it away."
            )

    def problem(file: FileRecord) -> str:
        says = f"{EXPORT_NAME} says"
        found = f"{file.name} is missing"
        if storage.size(file.name) is not None:
            found = file_problem(storage, file.name, file.bytes, file.crc32c, says=says)
        advice = "Delete it, and run the same export again."
        if file.link:
            advice = (
                f"It is a link to the dataset's {file.link}: if that was redacted since, export "
                "the dataset into another folder."
            )
        return found and f"{found.rstrip('.')}. {advice}"

    with ThreadPoolExecutor(usable_cores()) as pool:
        yield from filter(None, pool.map(problem, export.files))
    if dataset := dataset or _linked_dataset(storage, export):
        yield from _check_origin(export, dataset)


def _linked_dataset(storage: Storage, export: Export) -> Storage | None:
    """The folder of the dataset whose shards an export links to; None if there are no links."""
    for file in export.files if storage.supports_mmap else ():
        if file.link:
            target = os.path.realpath(storage.path(file.name))
            found = open_storage(target.removesuffix(f"/{file.link}"))
            if found.size(MANIFEST_NAME) is not None:
                return found
    return None


def _check_origin(export: Export, dataset: Storage) -> Iterator[str]:
    """One sentence if an export is not of a dataset, or if that was redacted since."""
    fingerprint, generation = map(export.dataset.get, ("fingerprint", "generation"))
    try:
        latest = readable_manifest(dataset)
    except OutputError as error:
        yield str(error)
        return
    known = type(generation) is int and 1 <= generation <= latest.generation
    if not known or Manifest.load_finished(dataset, generation).fingerprint != fingerprint:
        yield (
            f"the export is not of {dataset.root}: it is of generation {generation} of the dataset "
            f"with the fingerprint {fingerprint}. Name that dataset."
        )
    elif redacted := sum(each.redacted for each in latest.generations[generation:]):
        linked = any(file.link for file in export.files)
        state = "are of the state before" if linked else "still have them"
        yield (
            f"{counted(redacted, 'document')} of {dataset.root} were redacted since generation "
            f"{generation} was exported, and these files {state}. Delete them, and export the "
            "dataset again."
        )
