"""Which file is the manifest of a generation, and what to say where it is missing."""

from fineshards.shards.job.records import copy_name
from fineshards.storage.base import TEMPORARY, Storage

MANIFEST_NAME = "metadata/manifest.json"
# What the folder of a finished export has instead.
EXPORT_NAME = "export.json"


def forgotten(storage: Storage, latest: int, stored: bytes) -> str:
    """The message if a manifest is older than one that is kept; empty if it is the latest.

    stored: its content. While a job makes the next generation, that may be kept already.
    """
    name = copy_name(latest + 1)
    if storage.size(name) is None or has_checkpoints(storage):
        return ""
    if storage.read_if_there(MANIFEST_NAME) != stored:
        return ""  # that job has finished meanwhile
    return (
        f"{storage.path(MANIFEST_NAME)} is the manifest of generation {latest}, but {name} is "
        "there: an older manifest took the place of the latest. Put it back with fineshards repair."
    )


def has_checkpoints(storage: Storage) -> bool:
    """Whether a job has begun, or has kept its checkpoints; unfinished files alone are none."""
    return bool({*storage.names("checkpoints/")} - {"checkpoints/", f"{TEMPORARY}/"})


def unfinished(storage: Storage) -> str:
    """The message for an output folder without a manifest."""
    if storage.size(copy_name(1)) is not None and not has_checkpoints(storage):
        return (
            f"{storage.path(MANIFEST_NAME)} is missing. Put it back from its copy with fineshards "
            "repair."
        )
    if storage.size(EXPORT_NAME) is not None:
        return (
            f"{storage.root} is an export, not a dataset: {EXPORT_NAME} says of what. Give the "
            "folder of the dataset that it was made of. fineshards verify checks an export."
        )
    return (
        f"{storage.root} holds no finished dataset: {MANIFEST_NAME} is missing. Check the path: a "
        "dataset's folder holds metadata/ and train/. If a build was interrupted, run it again to "
        "finish it; fineshards status shows its progress."
    )
