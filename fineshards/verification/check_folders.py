"""Which files lie in a dataset's folders, as part of verify."""

from __future__ import annotations

from collections.abc import Iterator

from fineshards.publishing.sums import CARD_NAME, PUBLISHED
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.job.curated_files import CURATED_FOLDERS
from fineshards.shards.job.generations import GENERATIONS_FOLDER, kept_name
from fineshards.shards.job.job import JOB_NAME, Job
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.layout import MASKS_FOLDER, SPLITS, table_name
from fineshards.shards.tables.rejected_rows import REJECTED_FOLDER
from fineshards.storage.base import TEMPORARY, Storage

_FOLDERS = (*SPLITS, "metadata")
# Folders in `metadata/`.
_INNER = {"metadata/documents", MASKS_FOLDER, *CURATED_FOLDERS, REJECTED_FOLDER, GENERATIONS_FOLDER}


class Folders:
    """What lies in a dataset's folders.

    files: the names of all files in `test/`, `train/` and `metadata/`. others: what else is there,
    as in `Storage.others`. expected: the names of the files that the manifest asks for.
    """

    def __init__(self, storage: Storage, manifest: Manifest, following: Job | None) -> None:
        """manifest: of the latest generation. following: the job that is to make the next one."""
        self._storage = storage
        self._job = following or manifest.job
        self._following = following
        self.files = {entry.name for folder in _FOLDERS for entry in storage.entries(folder)}
        self.others = {name: kind for folder in _FOLDERS for name, kind in storage.others(folder)}
        self.expected = {MANIFEST_NAME, JOB_NAME, *manifest.settings.stored_files}
        kept = kept_name(manifest.generation)
        # An append keeps the first manifest just before it writes its own.
        if manifest.generation > 1 or (following is not None and kept in self.files):
            self.expected.add(kept)
        for shard in manifest.shards:
            self.expected |= {table_name(shard.name), *(name for name, _, _ in shard.files())}
        self.expected |= {file.name for file in manifest.metadata}

    def _is_of_following(self, name: str) -> bool:
        """Whether a file may be of the next generation, which is being made."""
        job = self._following
        if job is None:
            return False
        # What an append has written so far is checked when it is finished.
        made = (*(f"{split}/{split}_" for split in SPLITS), "metadata/documents/", REJECTED_FOLDER)
        made = (*made, f"{MASKS_FOLDER}/", *CURATED_FOLDERS)
        records = (
            job.record_name,
            *(kept_name(number) for number in (job.generation, job.generation - 1)),
        )
        return name in records or name.startswith(made)

    def problems(self) -> Iterator[str]:
        """Every file of the dataset exists, and there is nothing else."""
        for name in sorted(self.expected - self.files):
            kind = self.others.get(name)
            yield f"{name} is missing" if kind is None else f"{name} is {kind}, not a file"
        foreign = {name for name in self.files - self.expected if not self._is_of_following(name)}
        foreign -= {*PUBLISHED}
        for name, kind in self.others.items():
            if name not in self.expected and (name not in _INNER or kind != "a folder"):
                foreign.add(f"{name}/" if kind == "a folder" else name)
        known = {*(f"{name}/" for name in (*_FOLDERS, CHECKPOINTS)), CARD_NAME, *PUBLISHED}
        # What begins with a dot is a tool's own, such as .gitattributes of a repository.
        foreign |= {
            name
            for name in self._storage.names("")
            if name not in known and not name.startswith(".")
        }
        # A job that was killed just after it wrote its manifest leaves checkpoints and unfinished
        # files behind; a job with --keep_checkpoints keeps them. Those of other jobs do not belong.
        found = set(self._storage.names(f"{CHECKPOINTS}/")) - {f"{TEMPORARY}/"}
        if found:
            jobs = (self._job.at(number) for number in range(1, self._job.generation + 1))
            found -= {f"{CHECKPOINTS}/{job.fingerprint()}/" for job in jobs}
        foreign |= found
        for name in sorted(foreign):
            warning = "; readers that list shards by prefix would load it"
            yield f"{name} does not belong to the dataset" + warning * name.startswith(SPLITS)
