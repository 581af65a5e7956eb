"""Finds the input files that patterns and folders name, on a disk or in any other place.

No file is left out without a word. A pattern means the files that it matches; a folder, named or
matched, means all data files below it, at any depth. What lies beside data is left out, unless a
pattern gives the beginning of its name: see `is_beside_data`.
"""

import glob
import os
import re
from collections.abc import Iterator, Sequence

from fineshards.credentials import refuse_secrets
from fineshards.errors import InputError, UsageError
from fineshards.shards.job.manifest_file import EXPORT_NAME
from fineshards.shards.job.records import SourceFile
from fineshards.shards.record import replace
from fineshards.sources.files import is_url, local_state, place_of, state_of, without_scheme
from fineshards.sources.formats.format import (
    FORMATS,
    companions_of,
    format_of,
    has_known_format,
    readable,
)
from fineshards.sources.places.place import FoundFile, stands_for_any

# Beside data files: descriptions for people, and records of the Hugging Face hub and of an export.
_DESCRIPTION = re.compile(
    r"(readme|licen[cs]e|notice|changelog|citation)(\..*)?|.*\.md", re.IGNORECASE
)
_HUB_RECORDS = {"config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json"}


def find_files(patterns: Sequence[str], test: Sequence[str] = ()) -> list[SourceFile]:
    """Returns the files of patterns, numbered, and before them those of the test split.

    They are in the order of the patterns, and sorted by name within each. Raises UsageError for a
    pattern without a match, a file matched twice or a name of unknown format, and InputError for a
    file, folder or bucket that cannot be inspected.
    """
    seen: dict[str, str] = {}
    files: list[SourceFile] = []
    for number, pattern in enumerate((*test, *patterns)):
        is_test = number < len(test)
        named = f"{'--test_input' if is_test else '--input'} {pattern}"
        for match in _find(named, pattern):
            # Links are resolved only to find duplicates: a link's target may have no extension.
            target = without_scheme(match.path)
            target = target if is_url(target) else os.path.realpath(target)
            if target in seen:
                raise UsageError(
                    f"{match.path} is matched twice, by {seen[target]} and {named}; its documents "
                    "would be in the dataset twice. Match it only once."
                )
            seen[target] = named
            files.append(replace(match, index=len(files), test=is_test))
    return files


def as_it_is(file: SourceFile, trust_input: bool = True) -> SourceFile:
    """A source file of a dataset in the version that it has now: it may have been copied.

    trust_input: whether another version of the same size may be read. Raises InputError if the
    file is not there any more, or has another size.
    """
    if place_of(file.path).pinned:
        return file
    state = state_of(file)
    if state is None:
        raise InputError(
            f"{file.path} is not there. Put it back, or say where it is with --sources OLD=NEW."
        )
    size, identity = state
    if size != file.size:
        raise InputError(
            f"{file.path} has changed since the dataset was built: it has {size:,} bytes, "
            f"expected {file.size:,}. Put the file back as it was."
        )
    now = replace(file, trusted=identity)
    if now.version != file.version and not trust_input:
        raise InputError(
            f"{file.path} has another version than the dataset was built from: it had "
            f"{file.described()}, now {now.described()}. Restore it, or give --trust_input if its "
            "content is the same."
        )
    return now


def is_beside_data(name: str) -> bool:
    """Whether a file is not data: name is its path below the folder, with `/`.

    These are files and folders whose names begin with a dot or an underscore, as in Spark and
    Arrow; README, LICENSE, NOTICE, CHANGELOG and CITATION; *.md; records of the hub and an export.
    """
    parts = name.split("/")
    hidden = any(part.startswith((".", "_")) for part in parts)
    if hidden or parts[-1] in (*_HUB_RECORDS, EXPORT_NAME):
        return True
    # README.json may be data, as it always was; plain text with such a name is not.
    about = bool(_DESCRIPTION.fullmatch(parts[-1]))
    return about and (not has_known_format(name) or not FORMATS[format_of(name)[0]].has_columns)


def walk(folder: str) -> Iterator[str]:
    """Yields the paths of all data files below a local folder, in any order. Follows links.

    Raises InputError for a folder that cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be listed: {error.strerror}.") from error

    seen = set()
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # a link to a folder that is above it, or that is listed as well
            folders.clear()
            continue
        seen.add(real)
        # In order, so that a folder with two names always has the same one.
        folders[:] = sorted(name for name in folders if not is_beside_data(name))
        yield from (os.path.join(parent, name) for name in names if not is_beside_data(name))


def _find(named: str, pattern: str) -> list[SourceFile]:
    """The files of a pattern or folder. named: the flag with it."""
    place = place_of(refuse_secrets(pattern, "--input")) if is_url(pattern) else None
    matches = place.find(pattern) if place else _find_local(pattern)
    files = [file for file in matches if not is_beside_data(file.within)]
    if not files:
        raise UsageError(
            f"{named}: no file matches. Check the path, and quote the pattern so that the shell "
            "does not expand it. Names that begin with . or _ are left out unless they are given."
        )
    if any(not has_known_format(file.path) for file in files):
        along = {path for file in files for path in companions_of(file.path)}
        files = [file for file in files if file.path not in along]
    unknown = [file.path for file in files if file.within and not has_known_format(file.path)]
    if unknown:
        raise UsageError(
            f"{named}: cannot read {some(unknown)}; expected {readable()}. Move such files away, "
            "or give a pattern that leaves them out."
        )
    return [SourceFile(0, f.path, f.size, f.identity, *format_of(f.path)) for f in files]


def _find_local(pattern: str) -> list[FoundFile]:
    # `glob` takes a folder that ** may stand for on trust.
    matching = [path for path in glob.glob(pattern, recursive=True) if os.path.lexists(path)]
    is_any = bool(matching) and stands_for_any(os.path.basename(pattern.rstrip("/")))
    if not matching and os.path.lexists(pattern):
        matching = [pattern]  # a name may contain brackets, which are special in a pattern
    within = dict[str, str]()
    for path in matching:
        name = os.path.basename(path.rstrip("/")) if is_any else ""
        if not os.path.isdir(path):
            within[os.path.abspath(path)] = name
        elif not is_beside_data(name):
            for below in walk(path):
                within.setdefault(os.path.abspath(below), os.path.relpath(below, path))
    return [
        FoundFile(path, path, *local_state(path), below) for path, below in sorted(within.items())
    ]


def some(paths: Sequence[str]) -> str:
    """Up to three paths, and how many more there are."""
    more = f" and {len(paths) - 3:,} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more
