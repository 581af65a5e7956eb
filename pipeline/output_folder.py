"""The output folder of a job: whether it is free, this job's or another's, and how it is taken.

A folder is taken by writing the job record into it, after everything else that a job needs there.
"""

import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from fineshards.config import BuildConfig
from fineshards.errors import OutputError, UsageError
from fineshards.publishing import dataset_card
from fineshards.publishing.sums import CARD_NAME, PUBLISHED
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.job import JOB_NAME, Job, job_name
from fineshards.shards.job.manifest_file import EXPORT_NAME, MANIFEST_NAME
from fineshards.shards.job.records import GENERATIONS_FOLDER, SourceFile, blocks_name, copy_name
from fineshards.shards.job.runs import is_running
from fineshards.shards.job.settings import STORED_FILES
from fineshards.shards.layout import (
    CURATED_FOLDERS,
    MASKS_FOLDER,
    REJECTED_FOLDER,
    SHARD_NAME,
    SPLITS,
)
from fineshards.shards.record import replace
from fineshards.sources.roots import job_with_sources
from fineshards.storage.base import TEMPORARY, Storage

_log = logging.getLogger("fineshards")
_CHECKPOINT_FOLDER = re.compile(rf"{TEMPORARY}/|{CHECKPOINTS}/[0-9a-f]{{64}}/")


def refuse_foreign_files(storage: Storage) -> None:
    """Raises UsageError if an output folder holds what no job has written."""
    if storage.size(EXPORT_NAME) is not None:
        raise UsageError(f"{storage.root} holds an export. Choose another --output.")
    for split in SPLITS:
        for name in storage.names(split):
            if name != f"{split}/":
                raise UsageError(
                    f"{storage.path(name)} is in the way: readers that list shards by prefix "
                    "would read it. Move it away, or choose another --output."
                )
        for name in storage.names(f"{split}/"):
            if not re.fullmatch(SHARD_NAME, name):
                raise UsageError(
                    f"{storage.path(name)} is not a shard, but readers load every file in "
                    f"{split}/. Move it away, or choose another --output."
                )
    for name in storage.names(f"{CHECKPOINTS}/"):
        if not _CHECKPOINT_FOLDER.fullmatch(name):
            raise UsageError(
                f"{storage.path(name)} belongs to no fineshards job, and {CHECKPOINTS}/ is "
                "deleted at the end. Move it away, or choose another --output."
            )


class _TakenError(UsageError):
    """Another launch has written or deleted the job record since this one looked."""


def take_folder(
    storage: Storage, job: Job, stored: Sequence[bytes], config: BuildConfig
) -> tuple[Job, str]:
    """Makes the output folder this job's; returns the job, and how one that it replaces differed.

    stored: the contents of its `stored_files`. The job is the one on record.

    Raises UsageError if the folder is another job's, also if that was launched at the same moment.
    """
    try:
        return _take_as_found(storage, job, stored, config)
    except _TakenError as error:
        now = Job.load(storage)
        if now is None:
            raise
        if now.fingerprint() == job.as_begun(now).fingerprint():
            # Another launch of this very job was faster.
            return resumed(storage, now, job, config, storage.version(JOB_NAME)), ""
        raise UsageError(
            f"{storage.root} was taken by another job while this one was launched: "
            f"{'; '.join(now.differences(job))}. Let one job finish before you start another with "
            "the same --output."
        ) from error


def _take_as_found(
    storage: Storage, job: Job, stored: Sequence[bytes], config: BuildConfig
) -> tuple[Job, str]:
    overwrite, record = config.overwrite, storage.version(JOB_NAME)

    def check(expected: str | None = record) -> None:
        if storage.version(JOB_NAME) != expected:
            raise _TakenError(
                f"{storage.root} is being replaced by another launch. Run again when it is done, "
                "or choose another --output."
            )

    replaces = ""
    existing = None if overwrite else on_record(storage, job, record)
    if existing is not None:
        begun = job.as_begun(existing)
        same = (begun.settings, begun.files) == (existing.settings, existing.files)
        if same or _has_results(storage, existing):
            if conflict := _conflict(storage, existing, begun):
                raise UsageError(conflict)
            return resumed(storage, existing, job, config, record), ""
        replaces = "; ".join(existing.differences(job))
    # A first try that failed at once, for a misspelt column say, needs no --overwrite.
    if overwrite or existing is not None:
        _clear(storage, check)
        check(None)
    _refuse_shards_without_job(storage)
    try:
        storage.make_folders((*SPLITS, CHECKPOINTS))
        for name, content in zip(job.settings.stored_files, stored, strict=True):
            storage.write(name, content)
        storage.write(job.record_name, job.to_bytes())
    except OutputError:
        check(None)  # On gs:// a record that is there by now is the reason.
        raise
    return job, replaces


def on_record(storage: Storage, job: Job, record: str | None) -> Job | None:
    """The job on record, of a version; a damaged record of this very job is written again."""
    try:
        return Job.load(storage, job.generation)
    except OutputError:
        if not any(storage.names(f"{Checkpoints.of(storage, job).folder}/files/")):
            raise
        _log.warning("%s is damaged; it is written again", storage.path(job.record_name))
        storage.replace(job.record_name, job.to_bytes(), record)
        return job


def begun(
    storage: Storage, generation: int, config: BuildConfig, patterns: Sequence[str]
) -> Job | None:
    """The job on record that a launch may resume, with its files where they are now."""
    with suppress(OutputError):  # a damaged record is reported when the folder is taken
        job = None if config.overwrite else Job.load(storage, generation)
        return job and job_with_sources(job, config.sources, patterns)
    return None


def _conflict(storage: Storage, existing: Job, job: Job) -> str:
    """Why the job in the output folder cannot be taken for this one; empty if it can."""
    if existing.fingerprint() != job.fingerprint():
        differences = "; ".join(existing.differences(job))
        return (
            f"{storage.root} holds another job: {differences}. Choose another --output, "
            "or delete what is there with --overwrite."
        )
    if storage.size(MANIFEST_NAME) is None and storage.size(job_name(2)) is not None:
        # As an --overwrite leaves it that was interrupted, or someone who deleted the manifest.
        return (
            f"{storage.root} holds what is left of a dataset that had grown: {GENERATIONS_FOLDER}/ "
            f"is there, but {MANIFEST_NAME} is missing. Put it back with fineshards repair, or "
            "start again with --overwrite."
        )
    return ""


def resumed(
    storage: Storage, existing: Job, job: Job, config: BuildConfig, record: str | None
) -> Job:
    """The job on record with its files as they are now, which the record of an unfinished job says.

    job: the same one, with the files as they were found. record: the version of the record's file.
    Raises UsageError as `refuse_other_version` does.
    """
    ours = job.as_begun(existing)
    pairs = zip(existing.files + existing.left_out, ours.files + ours.left_out, strict=True)
    for was, now in pairs:
        refuse_other_version(was, now, config)
    ours = replace(existing, files=ours.files, generations=ours.generations)
    # Once there is a manifest, which has its checksum, the record stays.
    if ours != existing and storage.size(copy_name(existing.generation)) is None:
        storage.replace(existing.record_name, ours.to_bytes(), record)
    return ours


def refuse_other_version(was: SourceFile, now: SourceFile, config: BuildConfig) -> None:
    """Raises UsageError for a file of another version or place, unless --trust_input is given.

    It may be at another place if --sources is given.
    """
    moved = was.path != now.path and not config.sources
    if not config.trust_input and (moved or was.version != now.version):
        raise UsageError(
            f"{now.path} is not the file that the job began with, which was {was.path}: that had "
            f"{was.described()}, this one has {now.described()}. Give --trust_input if the content "
            "is the same, put the old file back, or start over with --overwrite."
        )


def missing_folders(storage: Storage) -> list[Path]:
    """The output folder and those above it that are not there, the innermost first."""
    root = Path(storage.root)
    return [p for p in (root, *root.parents) if storage.on_disk and not os.path.lexists(p)]


def withdraw(storage: Storage, job: Job, made: Sequence[Path]) -> None:
    """Takes back a job that has finished nothing, unless another process works on it too.

    made: folders that it made. Raises OutputError if another job has the output folder.
    """
    checkpoints, record = Checkpoints.of(storage, job), storage.version(JOB_NAME)

    def check() -> None:
        if storage.version(JOB_NAME) is not None:
            checkpoints.job()

    busy = is_running(storage, checkpoints.folder) or _has_results(storage, job)
    if (made or record) and not busy:
        _clear_job(storage, check)
        with suppress(OSError):  # on a store, and where something else is in them
            for folder in (Path(storage.root, "metadata"), *made):
                folder.rmdir()


def _has_results(storage: Storage, job: Job) -> bool:
    """Whether a job has finished a block or a shard."""
    shards = any(True for split in SPLITS for _ in storage.entries(split))
    return shards or Checkpoints.of(storage, job).has_finished_blocks()


def _refuse_shards_without_job(storage: Storage) -> None:
    names = [name for split in SPLITS for name in storage.names(f"{split}/")]
    if storage.size(MANIFEST_NAME) is not None:
        names.append(MANIFEST_NAME)
    if names:
        raise UsageError(
            f"{storage.root} already holds {min(names)}, but no record of the job that wrote it. "
            "Choose another --output, or delete what is there with --overwrite."
        )


def _clear(storage: Storage, check: Callable[[], object]) -> None:
    """Deletes a dataset: the manifest, then the checkpoints, and last the job record.

    Without the checkpoints, where every file of a running job begins, its workers finish no shard
    behind our back.

    check: raises if the job record is no longer the one that was found. On gs:// a late launch
    deletes nothing of a job that has taken the folder: its record is written before any other
    file of it, and deletes name the generations that were listed before the check.
    """
    for name in (MANIFEST_NAME, *PUBLISHED):
        storage.delete(name, check)
    with suppress(OutputError):  # what is no file that can be read is its owner's, and no card
        card = storage.read_if_there(CARD_NAME)
        if card is not None and dataset_card.is_unchanged(card):
            storage.delete(CARD_NAME, check)
    _clear_job(storage, check)


def _clear_job(storage: Storage, check: Callable[[], object]) -> None:
    """Deletes what a job writes before its manifest."""
    lists = ("metadata/documents", MASKS_FOLDER, REJECTED_FOLDER, GENERATIONS_FOLDER)
    for folder in (CHECKPOINTS, *SPLITS, *lists, *CURATED_FOLDERS):
        storage.delete_folder(folder, check)
    for name in (*STORED_FILES, blocks_name(1)):
        storage.delete(name, check)
    storage.delete(JOB_NAME, check)
