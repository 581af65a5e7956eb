"""Checks of a dataset's folders and of the records in `metadata/`, as part of verify."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from fineshards.commands.wording import counted
from fineshards.errors import OutputError
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.job import JOB_NAME, Job
from fineshards.shards.layout import SPLITS, table_name
from fineshards.shards.manifest import MANIFEST_NAME, Manifest
from fineshards.shards.rejected import REJECTED_FOLDER, rejected_paths
from fineshards.storage.base import TEMPORARY, Storage


def check_folders(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """Every file of the dataset exists, and no other."""
    expected = {shard.name for shard in manifest.shards}
    expected |= {table_name(shard.name) for shard in manifest.shards}
    expected |= {MANIFEST_NAME, JOB_NAME, manifest.settings.tokenizer.file}
    found = {entry.name for folder in (*SPLITS, "metadata") for entry in storage.entries(folder)}
    rejected = {name for name in found if name.startswith(f"{REJECTED_FOLDER}/")}
    for name in sorted(expected - found):
        yield f"{name} is missing"
    for name in sorted(found - expected - rejected):
        yield f"{name} does not belong to the dataset"
    yield from _check_rejected(storage, manifest, rejected)
    # A job that was killed just after it wrote its manifest leaves checkpoints and unfinished files
    # behind; a job with --keep_checkpoints keeps them. Those of other jobs do not belong here.
    own = (f"{CHECKPOINTS}/{manifest.fingerprint}/", f"{TEMPORARY}/")
    for name in sorted(storage.names(f"{CHECKPOINTS}/")):
        if name not in own:
            yield f"{name} does not belong to the dataset"
    # Readers list shards by prefix. So the neighbours of the split folders count as well, and so
    # does whatever is not a file in them: folders, dangling links.
    for split in SPLITS:
        neighbours = {name for name in storage.names(split) if name != f"{split}/"}
        inside = set(storage.names(f"{split}/")) - found
        for name in sorted(neighbours | inside):
            yield (
                f"{name} does not belong to the dataset; readers that list shards by prefix would "
                "load it"
            )


def _check_rejected(storage: Storage, manifest: Manifest, names: set[str]) -> Iterator[str]:
    """As many rejected rows are listed for each file as the manifest says."""
    listed = dict.fromkeys((file.path for file in manifest.files), 0)
    for name in sorted(names):
        try:
            for path in rejected_paths(storage, name):
                listed[path] += 1
        except (ValueError, KeyError, TypeError) as error:
            yield f"{name} is not a list of rejected rows of this dataset's files ({error!r})"
    for file, report in zip(manifest.files, manifest.reports, strict=True):
        if listed[file.path] != report.counts.rejected:
            yield (
                f"{REJECTED_FOLDER}/ lists {counted(listed[file.path], 'row')} of {file.path}; the "
                f"manifest says {report.counts.rejected}"
            )


def check_records(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """The files in `metadata/` describe one job, and agree on it."""
    content = json.loads(storage.read(MANIFEST_NAME))
    derived = json.loads(json.dumps(manifest.to_json()))
    for key in sorted(content.keys() | derived.keys()):
        if content.get(key) != derived.get(key):
            yield f"{MANIFEST_NAME}: {key!r} does not match the numbers that it is derived from"
    # The versions of job record and manifest have gone up together.
    job = Job(manifest.settings, manifest.files, manifest.origin, manifest.version)
    if job.fingerprint() != manifest.fingerprint:
        yield (
            f"{MANIFEST_NAME}: its fingerprint is {manifest.fingerprint}, but its settings and "
            f"files give {job.fingerprint()}"
        )
    try:
        if Job.load(storage) not in (job, None):
            yield f"{JOB_NAME} and {MANIFEST_NAME} describe different jobs"
    except OutputError as error:
        yield str(error)
    tokenizer = manifest.settings.tokenizer
    if storage.size(tokenizer.file) is not None:
        found = hashlib.sha256(storage.read(tokenizer.file)).hexdigest()
        if found != tokenizer.vocabulary_sha256:
            yield (
                f"{tokenizer.file} has sha256 {found}; the manifest says "
                f"{tokenizer.vocabulary_sha256}"
            )
