"""Where the source files of a dataset are: the root of its input, and where that is now."""

import os
from collections.abc import Sequence

from fineshards.errors import UsageError
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest, readable_manifest
from fineshards.shards.job.records import SourceFile, below_roots
from fineshards.shards.job.settings import Columns
from fineshards.shards.record import replace
from fineshards.sources.columns import folder_columns
from fineshards.sources.files import is_url
from fineshards.storage.base import Storage


def below_root(
    files: Sequence[SourceFile], columns: Columns, begun: Job | None, taken: Sequence[SourceFile]
) -> tuple[str, list[SourceFile]]:
    """The root of an input, and its files with their names below it.

    The root is the longest folder that holds all files, and is in no folder such as `lang=de/` that
    is one of the columns: names keep these, wherever the root is. begun: a job on record, with its
    files where they are now; its root stays if they are these files. taken: files that the dataset
    has already; the root is a folder above it while one of their names would be there twice.
    """
    paths = [file.path for file in files]
    # Not `commonpath`, which makes one slash of the two in a URL.
    root = _folder_of(os.path.commonprefix([path.partition("?")[0] for path in paths]))  # noqa: RUF071
    for folder in root.split("/"):
        if folder_columns([folder], columns):
            root = root.partition(f"/{folder}/")[0] + "/"
            break
    while root and not {path[len(root) :] for path in paths}.isdisjoint(of.name for of in taken):
        root = _folder_of(root[:-1])
    if begun and begun.settings.columns == columns:
        root = begun.new_files[0].root if [f.path for f in begun.new_files] == paths else root
    return root, [replace(file, root=root, name=file.path.removeprefix(root)) for file in files]


def moved(places: Sequence[str], sources: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """Where roots or patterns are now.

    sources: OLD=NEW, as `--sources` takes it: what is in the folder OLD is in NEW. others: what OLD
    may mean as well. Raises UsageError for one that is none of the places, nor above one.
    """
    now, known = [*places], [*places, *others]
    for pair in sources:
        cuts = (at for at, letter in enumerate(pair) if letter == "=")  # names may have one too
        for old, new in ((_folder(pair[:cut]), _folder(pair[cut + 1 :])) for cut in cuts):
            if old and new and any(_slashed(place).startswith(old) for place in known):
                for number, place in enumerate(places):
                    if _slashed(place).startswith(old):
                        now[number] = new + place[len(old) :]
                break
        else:
            raise UsageError(
                f"--sources {pair}: expected OLD=NEW, where OLD is a folder of the input or above "
                f"it, which is {', '.join(known)}, and NEW is where that is now."
            )
    return now


def moved_patterns(
    patterns: Sequence[str], sources: Sequence[str], roots: Sequence[str] = ()
) -> Sequence[str]:
    """What to look for in place of some patterns of an input; raises as `moved` does."""
    return moved(_absolute(patterns), sources, roots) if sources else patterns


def job_with_sources(job: Job, sources: Sequence[str], patterns: Sequence[str] = ()) -> Job:
    """A job whose files are read where they are now; raises as `moved` does.

    patterns: of an input that is to be appended, which `sources` may name too.
    """
    if not sources:
        return job
    roots = moved([of.root for of in job.generations], sources, _absolute(patterns))
    now = [replace(part, root=root) for part, root in zip(job.generations, roots, strict=True)]
    return replace(job, files=below_roots(now, job.files))


def with_sources(manifest: Manifest, sources: Sequence[str]) -> Manifest:
    """A manifest whose source files are read where they are now; raises as `moved` does."""
    return replace(manifest, files=job_with_sources(manifest.job, sources).files)


def opened(storage: Storage, generation: int | None, sources: Sequence[str]) -> Dataset:
    """A dataset whose source files are read where they are now.

    Raises as `Dataset.open` and `moved` do.
    """
    return Dataset(storage, with_sources(readable_manifest(storage, generation), sources))


def _absolute(patterns: Sequence[str]) -> list[str]:
    return [path if is_url(path) else os.path.abspath(path) for path in patterns]


def _folder_of(path: str) -> str:
    """The folder of a path with its last slash; empty for none."""
    return path[: path.rfind("/") + 1]


def _slashed(place: str) -> str:
    return place if place.endswith("/") else f"{place}/"


def _folder(place: str) -> str:
    """A folder that a user names, with its last slash; empty for none."""
    path = os.path.expanduser(place)
    return path and _slashed(path if is_url(path) else os.path.abspath(path))
