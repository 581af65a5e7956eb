"""The small files in `metadata/`: the job record, the tokenizer's file and lists of rejected rows.

They exist before the manifest does. Commit records their sizes and checksums in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from fineshards.errors import OutputError
from fineshards.shards.job.job import Job, job_name
from fineshards.shards.job.records import MetadataFile, block_tables, kept_name
from fineshards.shards.layout import CURATED_FOLDERS
from fineshards.shards.tables.rejected_rows import REJECTED_FOLDER
from fineshards.storage.base import Storage
from fineshards.storage.checksums import checksum_to_base64, crc32c


def of_earlier_jobs(job: Job, metadata: Iterable[MetadataFile]) -> list[MetadataFile]:
    """Those of the generation before `job` that only the job of their generation makes."""
    kept = (*CURATED_FOLDERS, *block_tables(job.generations[:-1]).values())
    return [file for file in metadata if file.name.startswith(kept)]


def metadata_files(storage: Storage, job: Job) -> Iterator[MetadataFile]:
    """The record of each file of an output folder; raises OutputError for one of another job."""
    settings, hashes = job.settings, [job.settings.tokenizer.vocabulary_sha256]
    if settings.chat is not None:
        hashes.append(settings.chat.template_sha256)
    expected = dict(zip(settings.stored_files, hashes, strict=True))
    rejected = sorted(entry.name for entry in storage.entries(REJECTED_FOLDER))
    records = [job_name(number) for number in range(1, job.generation + 1)]
    kept = [kept_name(number) for number in range(1, job.generation)]
    for name in (*records, *expected, *rejected, *kept):
        content = storage.read(name)
        found = hashlib.sha256(content).hexdigest()
        if found != expected.get(name, found):
            raise OutputError(
                f"{storage.path(name)} has sha256 {found}, expected that of the job, "
                f"{expected[name]}. Someone changed the folder while the job ran; start again with "
                "--overwrite."
            )
        yield MetadataFile(name, len(content), checksum_to_base64(crc32c(content)))
