"""Which files of a dataset are not what its manifest says; `repair.py` makes them again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from fineshards.cores import usable_cores
from fineshards.errors import OutputError
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.dataset_files import expected_files
from fineshards.shards.job.generations import GENERATIONS_FOLDER, kept_name
from fineshards.shards.job.job import Job, job_name
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.job.seal import seal_holds
from fineshards.storage.base import TEMPORARY, Storage
from fineshards.verification.check_files import check_names
from fineshards.verification.check_published import check_published


def restore_manifests(storage: Storage) -> list[str]:
    """Puts manifests back that are lost, damaged or in each other's place; returns their names."""
    names = [MANIFEST_NAME, *(entry.name for entry in storage.entries(GENERATIONS_FOLDER))]
    names = [name for name in names if not name.endswith(".job.json")]
    stored = {name: storage.read(name) if storage.size(name) else b"" for name in names}
    found = [Manifest.parse(each, "a copy") for each in stored.values() if seal_holds(each)]
    wanted = {kept_name(each.generation): each.to_bytes() for each in found}
    unfinished = any(name != f"{TEMPORARY}/" for name in storage.names(f"{CHECKPOINTS}/"))
    # A job that makes a generation keeps its manifest before it is the latest: it will finish that.
    if not wanted or (unfinished and seal_holds(stored[MANIFEST_NAME])):
        return []
    latest = max(each.generation for each in found)
    wanted[MANIFEST_NAME] = wanted[kept_name(latest)]
    lost = wanted[MANIFEST_NAME] != stored[MANIFEST_NAME] and storage.size(job_name(latest + 1))
    if lost and not unfinished:
        raise OutputError(
            f"{storage.path(MANIFEST_NAME)} and {kept_name(latest + 1)} are both damaged. Copy one "
            "of them from its origin. Nothing was repaired."
        )
    wrong = [name for name in stored if wanted.get(name, stored[name]) != stored[name]]
    for name in wrong:
        storage.write(name, wanted[name], over=storage.version(name))
    return wrong


def find_damaged(storage: Storage, manifest: Manifest) -> list[str]:
    """The names of the files that are missing or have another content than the manifest says."""
    with ThreadPoolExecutor(usable_cores()) as pool:
        checked = pool.map(
            lambda file: (file[0], is_whole(storage, *file)), expected_files(manifest)
        )
        return [name for name, whole in checked if not whole]


def is_whole(storage: Storage, name: str, size: int, checksum: str) -> bool:
    """Whether a file is there, with this size and CRC-32C."""
    with suppress(OutputError, OSError):
        return storage.matches(name, size, checksum)
    return False


def left_wrong(storage: Storage, manifest: Manifest) -> list[str]:
    """What is wrong in a dataset whose files are whole, a sentence each."""
    following = Job.load(storage, manifest.generation + 1)
    _, found = check_names(storage, manifest, following)
    if not found and following is None:
        found += check_published(storage, manifest, hashes=False)
    return found
