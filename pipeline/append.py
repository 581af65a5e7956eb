"""The launch of an append: new files for a finished dataset, as a new generation of it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from fineshards.config import BuildConfig
from fineshards.errors import FineshardsError, OutputError, UsageError
from fineshards.pipeline import output_folder
from fineshards.pipeline.input_files import (
    Patterns,
    find_input,
    new_generation,
    refuse_overlap,
    settle_input,
)
from fineshards.pipeline.launch import Launch, end_finished, refuse_damage
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.dataset_files import expected_files
from fineshards.shards.job.job import Job, job_name, of_generation
from fineshards.shards.job.manifest import Manifest, unfinished_redaction
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.job.records import SourceFile, blocks_name, copy_name
from fineshards.shards.layout import CURATED_FOLDERS, MASKS_FOLDER, REJECTED_FOLDER
from fineshards.shards.piece_plan import EarlierGeneration
from fineshards.shards.record import replace
from fineshards.shards.split_rule import ByInput
from fineshards.sources.roots import below_root, job_with_sources
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage
from fineshards.wording import describe_repeats
from fineshards.worker.documents import document_encoder

# The folders of shards, their tables and their masks.
_OF_SHARDS = ("test", "train", "metadata/documents", MASKS_FOLDER)


def prepare_append(config: BuildConfig) -> Launch:
    """Finds the new files, and claims the next generation of the dataset for them.

    Everything else is as the dataset was built. Raises UsageError for files that are in the dataset
    already, and OutputError if there is no finished dataset, or if another append is under way.
    """
    storage = open_storage(config.folder, config.s3_endpoint)
    version = storage.version(MANIFEST_NAME)
    manifest = Manifest.load_finished(storage)
    before = manifest.job
    _refuse_lost_keys(storage, before)
    roots = [generation.root for generation in before.generations]
    patterns = Patterns.of(config)
    files, origin = find_input(config, patterns, roots)
    refuse_overlap(storage, files, config.dataset, patterns)
    if config.has_test_files and not isinstance(before.settings.split, ByInput):
        raise UsageError(
            f"--test_input: {storage.root} was built with {before.settings.split.described()}, "
            "which decides for new documents too. Give all new files by --input."
        )
    output_folder.refuse_foreign_files(storage)
    config = read_as_before(config, before, files)
    named = patterns.train + patterns.test
    there = job_with_sources(before, config.sources, named)
    begun = output_folder.begun(storage, manifest.generation + 1, config, named) or there
    files, left_out = settle_input(files, before.settings.columns, config, begun)
    if not are_new(there, files, config):
        checkpoints = Checkpoints.of(storage, before)
        end_finished(manifest, checkpoints, config)
        if config.fail_on_repeats and manifest.repeats:
            raise FineshardsError(
                f"the append to {storage.root} is finished, but {describe_repeats(manifest)} "
                "(--fail_on_repeats)."
            )
        return Launch(before, checkpoints, manifest)
    number = manifest.generation + 1
    root, files = below_root(files, before.settings.columns, begun, before.files)
    job = Job(
        before.settings,
        (*before.files, *(replace(f, index=len(before.files) + f.index) for f in files)),
        before.origin | {name + of_generation(number): value for name, value in origin.items()},
        generations=(*before.generations, new_generation(files, left_out, root, config)),
    )
    # Also the check that this tokenizer gives the tokens that it gave when the dataset was built.
    document_encoder(job.settings, storage, config.tokenizer_engine)
    unchanged = (file for file in expected_files(manifest) if not file[0].startswith(_OF_SHARDS))
    refuse_damage(storage, unchanged, "nothing is added to the dataset")
    job = _claim(storage, manifest, version, job, config)
    return Launch(job, Checkpoints.of(storage, job), None, earlier=EarlierGeneration.of(manifest))


def withdraw(launch: Launch) -> None:
    """Takes back the claim of an append that has finished nothing, so that it changes nothing."""
    storage, job = launch.checkpoints.storage, launch.job
    version, record = storage.version(MANIFEST_NAME), storage.version(job.record_name)
    manifest = Manifest.load(storage)
    if record is None or manifest is None or manifest.generation >= job.generation:
        return
    if not launch.checkpoints.has_finished_blocks():
        launch.checkpoints.job()  # raises if it is another's
        # Not the folder of an append that takes its place meanwhile.
        _discard(storage, manifest, (version, record), launch.checkpoints.folder)


def read_as_before(config: BuildConfig, before: Job, files: Sequence[SourceFile]) -> BuildConfig:
    """The flags with those by which the dataset's files were read, where new ones need them."""
    earlier = {file.format: file.extraction for file in before.files if file.extraction}
    new, options = {file.format for file in files}, dict[str, Any]()
    if not new.isdisjoint(("csv", "tsv")):
        options["quoting"] = config.quoting or earlier.get("tsv") or earlier.get("csv")
    if "text" in new:
        options["text_separator"] = config.text_separator or earlier.get("text")
    if "warc" in new.intersection(earlier):
        options["extract"] = earlier["warc"].partition(":")[0]
    return dataclasses.replace(config, **options)


def _refuse_lost_keys(storage: Storage, before: Job) -> None:
    """Raises UsageError if new documents cannot be compared with those of the dataset."""
    recipe = before.settings.recipe
    if recipe is None or not any(step.compares for step in recipe.steps):
        return
    if not recipe.keep_keys:
        raise UsageError(
            f"{storage.root} was deduplicated without --keep_keys, so new documents cannot be "
            "compared with those in it. Build it again with all files, or with --keep_keys."
        )
    for number in recipe.keyed:
        if recipe.steps[number].rule == "components":
            raise UsageError(
                f"step {recipe.step_name(number)} of {storage.root} drops whole components, and a "
                "new document may join documents that are in the dataset already. Build it again "
                'with all files, or with rule = "earlier".'
            )


def are_new(before: Job, files: Sequence[SourceFile], config: BuildConfig) -> bool:
    """Whether files are new to a dataset; raises UsageError if some are and some are not."""
    earlier = {file.path: file for file in before.files}
    there = [file for file in files if file.path in earlier]
    for file in there:
        was = earlier[file.path]
        if was.size != file.size:
            raise UsageError(
                f"{file.path} is in the dataset already, and has changed since: it had "
                f"{was.described()}, now {file.described()}. A dataset grows by new files only."
            )
        output_folder.refuse_other_version(was, file, config)
        if file.test != was.test:
            split = "test" if was.test else "train"
            raise UsageError(f"{file.path} is in the dataset already, in {split}. Leave it out.")
        if (file.stop_row, file.extraction) != (was.stop_row, was.extraction):
            rows = "all rows" if was.stop_row is None else f"the rows before {was.stop_row}"
            raise UsageError(
                f"{file.path} is in the dataset already, with {rows} (--limit), or read in another "
                "way (--extract, --quoting, --text_separator). Give new files, or build it again."
            )
    if there and len(there) < len(files):
        new = next(file for file in files if file.path not in earlier)
        raise UsageError(
            f"{there[0].path} is in the dataset already, and {new.path} is not. Give the new files "
            "only."
        )
    return not there


def _claim(
    storage: Storage, manifest: Manifest, version: str | None, job: Job, config: BuildConfig
) -> Job:
    """Makes the next generation this job's; returns the job on record.

    version: of the manifest's file. Raises UsageError if another append has the generation.
    """
    record = storage.version(job.record_name)
    try:
        other = output_folder.on_record(storage, job, record)
    except OutputError:
        if not config.overwrite:
            raise
        other = None
    if problem := unfinished_redaction(storage, other):
        raise UsageError(problem)
    differs = other is None or other.fingerprint() != job.fingerprint()
    if record is not None and config.overwrite and differs:
        _discard(storage, manifest, (version, record), CHECKPOINTS)
        other = None
    claims = other is None
    if claims and storage.claim(job.record_name, job.to_bytes()):
        return job
    other = other or Job.load(storage, job.generation)
    if other is None or other.fingerprint() != job.as_begun(other).fingerprint():
        how = f": {'; '.join(other.differences(job)) or 'it does something else'}" if other else ""
        if claims:
            raise UsageError(_faster(storage, how))
        raise UsageError(
            f"another append to {storage.root} is not finished{how}. Finish it with its own "
            "command, or discard what it has done with --overwrite."
        )
    return output_folder.resumed(storage, other, job, config, storage.version(job.record_name))


def _faster(storage: Storage, how: str = "") -> str:
    return (
        f"another append to {storage.root} was launched at the same time, and was faster{how}. Run "
        "this one again when that one is done."
    )


def _discard(
    storage: Storage, manifest: Manifest, versions: tuple[str | None, str], folder: str
) -> None:
    """Deletes what an unfinished append has written: its checkpoints first, its record last.

    versions: of the manifest's file and of the record's. folder: of its checkpoints. Raises
    UsageError if either file is another by now.
    """
    generation = manifest.generation + 1
    record = job_name(generation)

    def check() -> None:
        # Looked at last: a job that was finished has no checkpoints either.
        now = storage.version(MANIFEST_NAME), storage.version(record)
        if now not in (versions, (versions[0], None)):  # a record that is gone was withdrawn
            raise UsageError(_faster(storage))

    # A manifest that is kept without checkpoints is that of a finished generation.
    storage.delete(copy_name(generation), check)
    storage.delete(blocks_name(generation), check)
    # First, so that workers of an append that still runs finish no shard behind our back.
    storage.delete_folder(folder, check)
    published = {name for shard in manifest.shards for name, *_ in shard.files()}
    published |= {file.name for file in manifest.metadata}
    for name in (*_OF_SHARDS, REJECTED_FOLDER, *CURATED_FOLDERS):
        for entry in list(storage.entries(name)):
            if entry.name not in published:
                storage.delete(entry.name, check)
    storage.delete(record, check)
