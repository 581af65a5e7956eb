"""Checks the files of an export against `export.json`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from fineshards.cores import usable_cores
from fineshards.errors import OutputError
from fineshards.exports.record import Export, FileRecord
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import EXPORT_NAME, MANIFEST_NAME
from fineshards.shards.readable import readable_manifest
from fineshards.storage.base import READ_AHEAD, Storage
from fineshards.storage.checksums import checksum_to_base64, file_checksum
from fineshards.storage.open import open_storage
from fineshards.wording import counted


def check_export(storage: Storage, export: Export) -> Iterator[str]:
    """One sentence per file that is missing, damaged, or not of the export."""
    expected = {file.name for file in export.files} | {EXPORT_NAME}
    for entry in sorted(storage.entries(""), key=lambda entry: entry.name):
        if entry.name not in expected:
            yield (
                f"{entry.name} is not a file of the export, and readers take every file of a "
                "folder. Move it away."
            )
    with ThreadPoolExecutor(usable_cores()) as pool:
        for problem in pool.map(lambda file: _problem(storage, file), export.files):
            if problem:
                yield problem


def linked_dataset(storage: Storage, export: Export) -> Storage | None:
    """The folder of the dataset whose shards an export links to; None if there are no links."""
    for file in export.files if storage.supports_mmap else ():
        if file.link:
            target = os.path.realpath(storage.path(file.name))
            found = open_storage(target.removesuffix(f"/{file.link}"))
            if found.size(MANIFEST_NAME) is not None:
                return found
    return None


def check_dataset(export: Export, dataset: Storage) -> Iterator[str]:
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


def _problem(storage: Storage, file: FileRecord) -> str:
    where = f"{file.name} (a link to the dataset's {file.link})" if file.link else file.name
    size = storage.size(file.name)
    if size is None:
        return f"{where} is missing. {_advice(file)}"
    if size != file.bytes:
        return f"{where} has {size:,} bytes, expected {file.bytes:,}. {_advice(file)}"
    try:
        with storage.open(file.name, READ_AHEAD) as opened:
            found = checksum_to_base64(file_checksum(opened))
    except OutputError as error:
        return str(error)
    if found != file.crc32c:
        return f"{where} has crc32c {found}, expected {file.crc32c}. {_advice(file)}"
    return ""


def _advice(file: FileRecord) -> str:
    if file.link:
        return "If the dataset has grown or was redacted since, export it into another folder."
    return "Delete it, and run the same export again."
