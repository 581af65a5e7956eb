"""The job record: the settings and source files of a dataset, and its fingerprint.

`metadata/job.json` is written at launch. If the same command runs again, the job continues. Another
command on the same output is refused, with the differences named. Workers and the commands for
finished datasets read the list of source files from it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import force_setattr, replace

from fineshards.errors import OutputError, clipped, contrasted, contrasted_texts
from fineshards.shards.counts import FileReport
from fineshards.shards.job.records import (
    GENERATIONS_FOLDER,
    Generation,
    MetadataFile,
    SourceFile,
    below_roots,
    block_tables,
    borders,
    checked,
    kept_name,
)
from fineshards.shards.job.redaction import Redaction
from fineshards.shards.job.settings import Settings
from fineshards.shards.layout import CURATED_FOLDERS, REJECTED_FOLDER
from fineshards.shards.record import FORMAT_VERSION, RecordFile, sha256_of
from fineshards.storage.base import Storage

JOB_NAME = "metadata/job.json"


def of_generation(number: int) -> str:
    """What the names of an origin end with, where a later generation added files."""
    return f" of generation {number}"


def job_name(generation: int) -> str:
    """The file of the record of the job that makes a generation."""
    return JOB_NAME if generation == 1 else f"{GENERATIONS_FOLDER}/{generation:04d}.job.json"


class Job(RecordFile, frozen=True, tag_field="format", tag=f"fineshards job {FORMAT_VERSION}"):
    """A job: its settings and its source files in order.

    origin: which dataset the input is, and its commit; nothing of files. It decides no byte.
    generations: those of the dataset up to this job's, which is the last; one with all files if
    there are none. redaction: the documents that this generation redacts, if it does.
    """

    MENDED = (
        "Put it back with fineshards repair, if what it began is finished. If not, run that "
        "command again, or with --overwrite to discard its work."
    )
    OTHERWISE = "Use the version that started the job, or start again with --overwrite."

    settings: Settings
    files: tuple[SourceFile, ...]
    origin: dict[str, str]
    generations: tuple[Generation, ...] = ()
    redaction: Redaction | None = None

    def __post_init__(self) -> None:
        if not self.generations:
            force_setattr(self, "generations", (Generation(len(self.files)),))
        checked(self.generations, self.files)

    @property
    def generation(self) -> int:
        """The number of the generation that this job makes, from 1."""
        return len(self.generations)

    @property
    def record_name(self) -> str:
        """The file of this job's record."""
        return job_name(self.generation)

    @property
    def new_files(self) -> tuple[SourceFile, ...]:
        """The source files that this job reads."""
        return self.files[len(self.files) - self.generations[-1].files :]

    def at(self, generation: int) -> Job:
        """The job of an earlier generation."""
        kept = self.generations[:generation]
        later = tuple(
            of_generation(number) for number in range(generation + 1, self.generation + 1)
        )
        origin = {name: each for name, each in self.origin.items() if not name.endswith(later)}
        files = self.files[: borders(kept)[-1]]
        return Job(self.settings, files, origin, kept)

    def fingerprint(self, redactions: bool = True) -> str:
        """SHA-256, as hex, of the settings and of the source files' names, sizes and identities.

        So it identifies a job, wherever its input is by now.

        redactions: whether to tell a dataset from itself with documents redacted, which has the
        same documents in the same places.
        """
        deciding: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "settings": self.settings,
            "files": [*map(_deciding, self.files)],
        }
        grown = sorted({*borders(self.generations)})
        if self.settings.shuffle is not None and len(grown) > 1:
            deciding["borders"] = grown  # each is shuffled within itself
        redacted = [each.redaction_sha256 for each in self.generations if each.redacted]
        if redacted and redactions:
            deciding["redactions"] = redacted
        return sha256_of(deciding)

    def as_begun(self, begun: Job) -> Job:
        """This job with the identities of files of an earlier launch, of the same name and size.

        Another version is trusted then, which is for the caller to allow.
        """
        if len(self.files) != len(begun.files):
            return self
        pairs = zip(self.files, begun.files, strict=True)
        return replace(self, files=tuple(_as_begun(now, was) for now, was in pairs))

    def differences(self, other: Job) -> list[str]:
        """How another job differs from this one, for an error message; empty if it does not."""
        found = self.settings.differences(other.settings)
        if len(self.files) != len(other.files):
            found.append(f"number of input files: was {len(self.files)}, now {len(other.files)}")
        for old_file, new_file in zip(self.files, other.files, strict=False):
            path = clipped(new_file.path)
            if old_file.name != new_file.name:
                found.append(
                    f"input file {old_file.index}: {contrasted_texts(old_file.name, new_file.name)}"
                )
                break
            if old_file.extraction != new_file.extraction:
                found.append(
                    f"extraction of {path}: {contrasted(old_file.extraction, new_file.extraction)}"
                )
                break
            if old_file.stop_row != new_file.stop_row:
                found.append(f"--limit: {path} ended {_end(old_file)}, now {_end(new_file)}")
                break
            if _deciding(old_file) != _deciding(new_file):
                found.append(
                    f"{path} changed: it had {old_file.described()}, now {new_file.described()}"
                )
                break
        return found

    def to_bytes(self) -> bytes:
        """The content of the record."""
        files = tuple(file.recorded() for file in self.files)
        return RecordFile.to_bytes(replace(self, files=files))

    @classmethod
    def load(cls, storage: Storage, generation: int = 1) -> Job | None:
        """The job of a generation, or None; raises OutputError if its record is unreadable."""
        name = job_name(generation)
        stored = storage.read_if_there(name)
        return None if stored is None else cls.parse(stored, storage.path(name))

    @classmethod
    def parse(cls, stored: bytes, path: str) -> Job:
        """The job of a record; raises OutputError, with the path, if it is unreadable."""
        found = super().parse(stored, path)
        return replace(found, files=below_roots(found.generations, found.files))


def load_redaction(storage: Storage, number: int, generation: Generation) -> Redaction:
    """What a generation redacted, from its job record; raises OutputError if that is damaged."""
    job = Job.load(storage, number)
    redaction = None if job is None else job.redaction
    if redaction is None or redaction.sha256() != generation.redaction_sha256:
        raise OutputError(
            f"{storage.path(job_name(number))} is missing or damaged, so nothing says which "
            "documents were redacted. Make it again with fineshards repair."
        )
    return redaction


def of_earlier_jobs(job: Job, metadata: Iterable[MetadataFile]) -> list[MetadataFile]:
    """Those of the generation before `job` that only the job of their generation makes."""
    kept = (*CURATED_FOLDERS, *block_tables(job.generations[:-1]).values())
    return [file for file in metadata if file.name.startswith(kept)]


def metadata_files(
    storage: Storage, job: Job, reports: Iterable[FileReport]
) -> Iterator[MetadataFile]:
    """The record of each file in `metadata/` that exists before the manifest does.

    reports: of the source files. Raises OutputError for a tokenizer or template that is not the
    job's, and for lists of rejected rows that have not as many as the reports.
    """
    from fineshards.storage.checksums import checksum_to_base64, crc32c  # loading lacks it

    settings, hashes = job.settings, [job.settings.tokenizer.vocabulary_sha256]
    if settings.chat is not None:
        hashes.append(settings.chat.template_sha256)
    expected = dict(zip(settings.stored_files, hashes, strict=True))
    rejected = sorted(entry.name for entry in storage.entries(REJECTED_FOLDER))
    records = [job_name(number) for number in range(1, job.generation + 1)]
    kept = [kept_name(number) for number in range(1, job.generation)]
    listed = Counter[str]()
    for name in (*records, *expected, *rejected, *kept):
        content = storage.read(name)
        found = hashlib.sha256(content).hexdigest()
        if found != expected.get(name, found):
            raise OutputError(
                f"{storage.path(name)} has sha256 {found}, expected that of the job, "
                f"{expected[name]}. Someone changed the folder while the job ran; start again with "
                "--overwrite."
            )
        if name in rejected:  # one line per row; the name says of which source file
            listed[name.rpartition("-")[0]] += content.count(b"\n")
        yield MetadataFile(name, len(content), checksum_to_base64(crc32c(content)))
    counted = {f"{REJECTED_FOLDER}/{each.file:05d}": each.counts.listed for each in reports}
    for name in sorted({*listed, *counted}):
        if listed[name] != counted.get(name, 0):
            raise OutputError(
                f"{storage.path(name)}-*.jsonl list {listed[name]:,} rejected rows, expected "
                f"{counted.get(name, 0):,}. Someone changed the folder while the job ran; start "
                "again with --overwrite."
            )


def _deciding(file: SourceFile) -> SourceFile:
    """What of a file's record is part of the fingerprint."""
    return replace(file.recorded(), trusted=None)


def _as_begun(now: SourceFile, was: SourceFile) -> SourceFile:
    """A file with the identity that it had, and its version as trusted, if that is another."""
    if (now.name, now.size) != (was.name, was.size):
        return now
    trusted = was.trusted if now.version == was.version else now.version
    return replace(now, identity=was.identity, trusted=trusted)


def _end(file: SourceFile) -> str:
    return "with its last row" if file.stop_row is None else f"before row {file.stop_row}"
