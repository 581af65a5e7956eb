"""Checks the files of an export against `export.json`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from fineshards.cores import usable_cores
from fineshards.errors import OutputError
from fineshards.exports.record import EXPORT_NAME, Export, FileRecord
from fineshards.storage.base import Storage
from fineshards.storage.checksums import checksum_to_base64, file_checksum

# Bytes per request, where requests have a price.
_READ_AHEAD = 16 << 20


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


def _problem(storage: Storage, file: FileRecord) -> str:
    where = f"{file.name} (a link to the dataset's {file.link})" if file.link else file.name
    size = storage.size(file.name)
    if size is None:
        return f"{where} is missing. {_advice(file)}"
    if size != file.bytes:
        return f"{where} has {size:,} bytes, expected {file.bytes:,}. {_advice(file)}"
    try:
        with storage.open(file.name, _READ_AHEAD) as opened:
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
