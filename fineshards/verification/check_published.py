"""What was made of a dataset: published files, and exports; as part of verify."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from fineshards.cores import usable_cores
from fineshards.errors import OutputError
from fineshards.exports.record import Export, FileRecord
from fineshards.publishing import croissant, dataset_card, sums
from fineshards.publishing.sums import CARD_NAME, CROISSANT_NAME, PUBLISHED, SUMS_NAME
from fineshards.shards.job.manifest import Manifest, readable_manifest
from fineshards.shards.job.manifest_file import EXPORT_NAME, MANIFEST_NAME
from fineshards.storage.base import Storage
from fineshards.verification.check_files import file_problem
from fineshards.wording import counted


def check_published(storage: Storage, manifest: Manifest, hashes: bool) -> Iterator[str]:
    """What is published is as it was written, of this dataset; nothing, if nothing is published.

    hashes: whether to read every file of the dataset, and compare its SHA-256 with that in
    `SHA256SUMS`.
    """
    stored = {name: storage.read_if_there(name) for name in PUBLISHED}
    there = {name: content for name, content in stored.items() if content is not None}
    card, listed = storage.read_if_there(CARD_NAME), dict[str, str]()
    problem = ""
    if missing := [name for name in PUBLISHED if name not in there]:
        if there or (card is not None and dataset_card.is_unchanged(card)):
            problem = f"{missing[-1]} is missing, and other published files are there"
    else:
        try:
            _, digest = croissant.read(there[CROISSANT_NAME])
        except OutputError as error:
            yield str(error)
            return
        if sha256(there[SUMS_NAME]).hexdigest() != digest:
            problem = f"{SUMS_NAME} is another one than {CROISSANT_NAME} describes"
        else:
            listed = sums.parse(there[SUMS_NAME])
            own = sha256(manifest.to_bytes()).hexdigest()
            if listed[MANIFEST_NAME] != own:
                problem = f"{SUMS_NAME} is of another state of the dataset, which has changed since"
            elif card is None and CARD_NAME in listed:
                problem = f"{CARD_NAME} is missing, and {SUMS_NAME} lists it"
            elif card is not None and sha256(card).hexdigest() != listed.get(CARD_NAME, ""):
                problem = f"{CARD_NAME} has changed since" if CARD_NAME in listed else ""
    if problem:
        yield f"{problem}. Run fineshards publish again."
    elif listed and hashes:
        now = sums.hash_files(storage, manifest)
        for name in sorted(now.keys() | listed.keys() - {CARD_NAME}):
            if now.get(name) != listed.get(name):
                yield f"{name} has SHA-256 {now.get(name)}; {SUMS_NAME} says {listed.get(name)}"


def check_export(storage: Storage, export: Export, dataset: Storage | None) -> Iterator[str]:
    """A sentence per file of an export that is missing, damaged or foreign.

    dataset: also one if the export is not of it, or if that was redacted since.
    """
    expected = {file.name for file in export.files} | {EXPORT_NAME}
    for name in sorted({entry.name for entry in storage.entries("")} - expected):
        yield (
            f"{name} is not a file of the export, and readers take every file of a folder. Move it "
            "away."
        )

    def problem(file: FileRecord) -> str:
        found = f"{file.name} is missing"
        if storage.size(file.name) is not None:
            says = f"{EXPORT_NAME} says"
            found = file_problem(storage, file.name, file.bytes, file.crc32c, says=says)
        return found and f"{found.rstrip('.')}. Delete it, and run the same export again."

    with ThreadPoolExecutor(usable_cores()) as pool:
        yield from filter(None, pool.map(problem, export.files))
    if dataset is not None:
        yield from _check_origin(export, dataset)


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
        yield (
            f"{counted(redacted, 'document')} of {dataset.root} were redacted since generation "
            f"{generation} was exported, and these files may still have them. Delete them, "
            "and export the dataset again."
        )
