"""Checks of the manifest and of the small files in `metadata/`, as part of verify."""

from __future__ import annotations

import json
from collections.abc import Iterator

from fineshards.errors import OutputError
from fineshards.shards.job.curated_files import CURATED_FOLDERS, statistics_name
from fineshards.shards.job.generations import GENERATIONS_FOLDER, kept_name
from fineshards.shards.job.job import JOB_NAME
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.job.metadata import contradictions
from fineshards.shards.tables import statistics
from fineshards.shards.tables.rejected_rows import REJECTED_FOLDER
from fineshards.storage.base import Storage
from fineshards.storage.checksums import checksum_to_base64, crc32c, file_checksum
from fineshards.verification.check_folders import Folders
from fineshards.wording import counted

# Bytes per request for decisions, keys and scores, which may be large.
_READ_AHEAD = 4 << 20


def check_manifest(manifest: Manifest, stored: bytes) -> Iterator[str]:
    """The manifest is exactly what its content is written as, so no bit of it has changed.

    stored: the bytes that the manifest was read from.
    """
    written = manifest.to_bytes()
    if stored != written:
        found, derived = json.loads(stored), json.loads(written)
        different = [
            key for key in found.keys() | derived.keys() if found.get(key) != derived.get(key)
        ]
        if not different:
            yield f"{MANIFEST_NAME} is not written as fineshards writes it; someone changed it"
        for key in sorted(different):
            if key == "crc32c":
                yield (
                    f"{MANIFEST_NAME} has changed: its content has crc32c {derived.get(key)}; its "
                    f"last line says {found.get(key)}"
                )
            else:
                yield f"{MANIFEST_NAME}: {key!r} does not match the numbers it is derived from"
    for problem in manifest.contradictions():
        yield f"{MANIFEST_NAME}: {problem}"


def check_metadata(storage: Storage, manifest: Manifest, folders: Folders) -> list[str]:
    """The small files in `metadata/` are those that the manifest names, and agree with it."""
    problems: list[str] = []
    contents: dict[str, bytes] = {}
    recorded = {file.name: file for file in manifest.metadata}
    for name in sorted(folders.files & folders.expected):
        try:
            if name.startswith(CURATED_FOLDERS):
                with storage.open(name, _READ_AHEAD) as opened:
                    size, checksum = storage.size(name) or 0, file_checksum(opened)
            elif _is_small(name, manifest):
                content = contents[name] = storage.read(name)
                size, checksum = len(content), crc32c(content)
            else:
                continue
        except OutputError as error:
            problems.append(str(error))
            continue
        if name in recorded:
            file = recorded[name]
            problems += content_problems(name, size, checksum, file.bytes, file.crc32c)
    # A damaged file would be named again, for each thing that is wrong in it.
    if not problems and folders.expected <= folders.files:
        problems += contradictions(contents, manifest.job, manifest.reports)
    kept = kept_name(manifest.generation)
    if contents.get(kept, manifest.to_bytes()) != manifest.to_bytes():
        problems.append(f"{kept} is not the same as {MANIFEST_NAME}")
    return problems


def check_statistics(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """The statistics of each source file, if there are any, are those of the manifest."""
    for report in manifest.reports if manifest.settings.statistics else ():
        try:
            table = statistics.read_file(storage, report.file)
        except OutputError as error:
            yield str(error)
            continue
        for problem in statistics.contradictions(table, report.counts):
            yield f"{statistics_name(report.file)}: {problem}"


def _is_small(name: str, manifest: Manifest) -> bool:
    own = (JOB_NAME, *manifest.settings.stored_files)
    return name in own or name.startswith((*CURATED_FOLDERS, REJECTED_FOLDER, GENERATIONS_FOLDER))


def content_problems(
    name: str, size: int, checksum: int, bytes_expected: int, crc32c_expected: str
) -> Iterator[str]:
    """Whether a file has the size and the checksum that the manifest says."""
    found = checksum_to_base64(checksum)
    if size != bytes_expected:
        yield f"{name} has {counted(size, 'byte')}; the manifest says {bytes_expected:,}"
    elif found != crc32c_expected:
        yield f"{name} has crc32c {found}; the manifest says {crc32c_expected}"
