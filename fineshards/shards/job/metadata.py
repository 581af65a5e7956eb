"""The small files in `metadata/`: the job record, the tokenizer's file and lists of rejected rows.

They exist before the manifest does. Commit reads them once, checks them against the job, and
records their sizes and checksums in the manifest.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import MsgspecError

from fineshards.errors import OutputError, clipped
from fineshards.shards.counts import FileReport
from fineshards.shards.job.curated_files import CURATED_FOLDERS
from fineshards.shards.job.generations import block_tables, kept_name
from fineshards.shards.job.job import JOB_NAME, Job, job_name
from fineshards.shards.job.records import MetadataFile
from fineshards.shards.record import replace
from fineshards.shards.tables.rejected_rows import REJECTED_FOLDER, rejected_paths
from fineshards.storage.base import Storage
from fineshards.storage.checksums import checksum_to_base64, crc32c


def earlier_names(generation: int) -> list[str]:
    """The files in `metadata/generations/` of a generation, but for its own manifest."""
    records = [job_name(number) for number in range(2, generation + 1)]
    return sorted([*records, *(kept_name(number) for number in range(1, generation))])


def of_earlier_jobs(job: Job, metadata: Iterable[MetadataFile]) -> list[MetadataFile]:
    """Those files that only the job of their generation makes, and later ones keep as they are.

    job: of this generation. metadata: of the generation before.
    """
    kept = (*CURATED_FOLDERS, *block_tables(job.generations[:-1]).values())
    return [file for file in metadata if file.name.startswith(kept)]


def metadata_files(
    storage: Storage, job: Job, reports: Iterable[FileReport]
) -> Iterator[MetadataFile]:
    """The record of each file of an output folder; raises OutputError for one of another job.

    reports: those of source files without rejected rows may be missing.
    """
    rejected = sorted(entry.name for entry in storage.entries(REJECTED_FOLDER))
    names = [JOB_NAME, *job.settings.stored_files, *rejected, *earlier_names(job.generation)]
    contents = {name: storage.read(name) for name in names}
    for problem in _contradictions(contents, rejected, job, reports):
        raise OutputError(
            f"{storage.root}: {problem}. Someone changed the folder while the job ran; start again "
            "with --overwrite."
        )
    for name, content in contents.items():
        yield MetadataFile(name, len(content), checksum_to_base64(crc32c(content)))


def _contradictions(
    contents: Mapping[str, bytes], rejected: Iterable[str], job: Job, reports: Iterable[FileReport]
) -> Iterator[str]:
    """One sentence per file that is not what the job says. rejected: the lists of rejected rows."""
    record = job.record_name
    try:
        stored = Job.parse(contents[record], record)
        if replace(stored, redaction=None) != replace(job, redaction=None):
            yield f"{record} describes another job than the manifest"
        digest = stored.redaction.sha256() if stored.redaction else None
        if digest != job.generations[-1].redaction_sha256:
            yield f"{record} lists other redacted documents than the manifest"
    except OutputError as error:
        yield str(error)
    settings, chat = job.settings, job.settings.chat
    hashes = (settings.tokenizer.vocabulary_sha256, *([chat.template_sha256] if chat else []))
    for name, expected in zip(settings.stored_files, hashes, strict=True):
        found = hashlib.sha256(contents[name]).hexdigest()
        if found != expected:
            yield f"{name} has sha256 {found}, expected that of the job, {expected}"
    listed = Counter({file.name: 0 for file in job.files})
    for name in rejected:
        try:
            listed.update(rejected_paths(contents[name]))
        except MsgspecError as error:
            yield f"{name} is not a list of rejected rows ({clipped(str(error))})"
    counted = {
        job.files[report.file].name: report.counts.rejected + report.counts.pages_unextracted
        for report in reports
    }
    for path, rows in listed.items():
        if rows != counted.get(path, 0):
            yield (
                f"rejected rows of {path}: {REJECTED_FOLDER}/ lists {rows:,}, expected "
                f"{counted.get(path, 0):,}"
            )
