"""The launch of an append: new files for a finished dataset, as a new generation of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fineshards.config import BuildConfig
from fineshards.encoders.loading import load_reference
from fineshards.errors import OutputError, UsageError
from fineshards.pipeline.launch import (
    Launch,
    clear_checkpoints,
    find_input,
    refuse_foreign_files,
)
from fineshards.pipeline.overlap import refuse_overlap
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.generations import Generation
from fineshards.shards.job import FORMAT_VERSION, Job, job_name, of_generation
from fineshards.shards.layout import table_name
from fineshards.shards.manifest import Manifest, kept_name
from fineshards.shards.plan import Before
from fineshards.shards.records import SourceFile
from fineshards.shards.rejected import REJECTED_FOLDER
from fineshards.storage.base import Storage, open_storage


def prepare_append(config: BuildConfig) -> Launch:
    """Finds the new files, and claims the next generation of the dataset for them.

    Everything else is as the dataset was built. Raises UsageError for files that are in the dataset
    already, and OutputError if there is no finished dataset, or if another append is under way.
    """
    storage = open_storage(config.folder)
    manifest = _finished_dataset(storage)
    before = manifest.job
    files, origin = find_input(config)
    refuse_overlap(storage, files, (config.dataset,) if config.dataset else config.patterns)
    refuse_foreign_files(storage)
    if not _are_new(before, files):
        if Job.load(storage, manifest.generation + 1) is None:
            # A job that was killed just after its manifest leaves them behind.
            clear_checkpoints(Checkpoints.of(storage, before))
        return Launch(before, Checkpoints.of(storage, before), manifest)
    number = manifest.generation + 1
    job = Job(
        before.settings,
        (*before.files, *(replace(f, index=len(before.files) + f.index) for f in files)),
        (*before.origin, *((name + of_generation(number), value) for name, value in origin)),
        generations=(*before.generations, Generation(len(files))),
    )
    replaces = _claim(storage, manifest, job, config.overwrite)
    # Also the check that this tokenizer gives the tokens that it gave when the dataset was built.
    load_reference(job.settings.tokenizer, storage)
    return Launch(job, Checkpoints.of(storage, job), None, replaces, Before.of(manifest))


def _finished_dataset(storage: Storage) -> Manifest:
    manifest = Manifest.load_finished(storage)
    if manifest.version != FORMAT_VERSION:
        raise OutputError(
            f"{storage.root} was built by an earlier version of fineshards (format version "
            f"{manifest.version}, now {FORMAT_VERSION}), whose datasets cannot grow. Build it "
            "again with all files."
        )
    return manifest


def _are_new(before: Job, files: Sequence[SourceFile]) -> bool:
    """Whether files are new to a dataset; raises UsageError if some are and some are not."""
    known = {file.path: file for file in before.files}
    there = [file for file in files if file.path in known]
    for file in there:
        was = known[file.path]
        if (file.size, file.identity) != (was.size, was.identity):
            raise UsageError(
                f"{file.path} is in the dataset already, and has changed since: it had {was.size} "
                f"bytes and {was.identity}, now {file.size} bytes and {file.identity}. A dataset "
                "grows by new files only."
            )
    if there and len(there) < len(files):
        new = next(file for file in files if file.path not in known)
        raise UsageError(
            f"{there[0].path} is in the dataset already, and {new.path} is not. Give the new files "
            "only."
        )
    return not there


def _claim(storage: Storage, manifest: Manifest, job: Job, overwrite: bool) -> str:
    """Makes the next generation this job's; returns how a job that it replaces differed.

    Raises UsageError if another append has it.
    """
    replaces = ""
    other = Job.load(storage, job.generation)
    if other is not None and other.fingerprint() != job.fingerprint():
        differences = _differences(other, job)
        if not overwrite and Checkpoints.of(storage, other).has_finished_blocks():
            raise UsageError(
                f"another append to {storage.root} is not finished: {differences}. Finish it with "
                "its own command, or discard what it has done with --overwrite."
            )
        replaces = differences
        _discard(storage, manifest, other)
    if storage.claim(job.record_name, job.to_bytes()):
        return replaces
    winner = Job.load(storage, job.generation)
    if winner is not None and winner.fingerprint() == job.fingerprint():
        return replaces  # another launch of this very job was faster
    raise UsageError(
        f"another append to {storage.root} was launched at the same time, and was faster"
        + ("" if winner is None else f": {_differences(winner, job)}")
        + ". Run this one again when that one is done."
    )


def _differences(other: Job, job: Job) -> str:
    return "; ".join(other.differences(job)) or "it does something else"


def _discard(storage: Storage, manifest: Manifest, other: Job) -> None:
    """Deletes what an unfinished append has written; last its record.

    The last shards may be longer by now. They stay so: they begin as they did.
    """
    kept = {shard.name for shard in manifest.shards}
    kept |= {table_name(name) for name in kept}
    checkpoints = Checkpoints.of(storage, other)
    for folder in ("test", "train", "metadata/documents"):
        for entry in list(storage.entries(folder)):
            if entry.name not in kept:
                storage.delete(entry.name, checkpoints.job)
    listed = {file.name for file in manifest.metadata}
    for entry in list(storage.entries(REJECTED_FOLDER)):
        if entry.name not in listed:
            storage.delete(entry.name, checkpoints.job)
    storage.delete_folder(CHECKPOINTS, checkpoints.job)
    storage.delete(kept_name(other.generation), checkpoints.job)
    storage.delete(job_name(other.generation), checkpoints.job)
