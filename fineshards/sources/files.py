"""Source files, wherever they are: found by pattern or folder, described, opened, and compared.

No file is left out without a word. A pattern means the files that it matches; a folder, named or
matched, means all data files below it, at any depth. What lies beside data is left out, unless a
pattern gives the beginning of its name: see `is_beside_data`.
"""

import errno
import fnmatch
import glob
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import BinaryIO

from fineshards.credentials import refuse_secrets
from fineshards.errors import (
    FineshardsError,
    InputError,
    UnavailableError,
    UsageError,
    with_escaped_bytes,
)
from fineshards.plugin_registry import Plugins
from fineshards.shards.job.manifest_file import EXPORT_NAME
from fineshards.shards.job.records import INDEX, SourceFile
from fineshards.shards.record import replace
from fineshards.sources.formats.format import (
    FORMATS,
    companions_of,
    format_of,
    known_format,
    readable,
)
from fineshards.sources.places.http_files import MissingError, RefusedError
from fineshards.sources.places.place import (
    WILDCARDS,
    FoundFile,
    Place,
    check_same,
    is_hidden,
    left_open,
    split_path,
)
from fineshards.sources.places.stores import FsspecFiles
from fineshards.storage.ranges import RangeReader

# Beside data files: descriptions for people, and records of the Hugging Face hub and of tools.
_DESCRIPTION = re.compile(
    r"(readme|licen[cs]e|notice|changelog|citation)(\..*)?|.*\.(md|crc|lock)", re.IGNORECASE
)
_RECORDS = {
    *("config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "stats.json"),
    EXPORT_NAME,
}
_CACHED_COPY = re.compile(r"cache-[^/]*\.arrow")
_OF_SAVES = re.compile(r"state\.json|(cache-.*|data-\d+-of-\d+)\.arrow")
# The identity of a file that was named and is not there, or cannot even be described.
MISSING = "missing"
_PLACES: Plugins[Place] = Plugins("places", makes=True)
# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_LFS_POINTER, _LFS_POINTER_BYTES = b"version https://git-lfs.github.com/spec/v1\n", 1024


def place_of(url: str) -> Place:
    """Returns the place of a URL: that of its scheme, or fsspec's."""
    return _PLACES.get(url.partition("://")[0], FsspecFiles())


def is_url(path: str) -> bool:
    """Whether a path or pattern is not that of a local file."""
    return "://" in path


def without_scheme(path: str) -> str:
    """The local path that a URL of fsspec's names, such as local:///data; any other as it is."""
    scheme, separator, local = path.partition("://")
    return os.path.expanduser(local) if separator and scheme in ("file", "local") else path


def describe_files(paths: Iterable[str]) -> list[SourceFile]:
    """Returns local files with size and identity, numbered in the order given.

    Raises UsageError for a name of unknown format, and InputError for anything that is not a file
    with a name in UTF-8.
    """
    return [
        SourceFile(index, path, size, _with_index(path, identity), *format_of(path))
        for index, path in enumerate(paths)
        for size, identity in [local_state(path)]
    ]


def check_unchanged(file: SourceFile) -> None:
    """Raises InputError if the file has changed since launch."""
    check_same(file, state_of(file))


def state_of(file: SourceFile) -> tuple[int, str] | None:
    """The size and the identity of a file now; None if it is not there any more."""
    if is_url(file.path):
        state = place_of(file.path).state(file)
    else:
        state = local_state(file.path) if os.path.lexists(file.path) else None
    return state and (state[0], _with_index(file.path, state[1]))


def _with_index(
    path: str, identity: str, listed: Mapping[str, tuple[int, str]] | None = None
) -> str:
    """The identity of a file, and that of its index, if it is read by one that may change.

    listed: the states of files by path, for which no store is asked.
    """
    for index in companions_of(path):
        if is_url(path) and place_of(path).pinned:
            break
        with suppress(MissingError):
            state = (listed or {}).get(index)
            if state := state or state_of(SourceFile(0, index, 0, "", "text", "none")):
                return f"{identity}{INDEX}{state[0]} {state[1]}"
    return identity


def open_file(file: SourceFile, read_ahead: int | None = None) -> BinaryIO:
    """Opens the file's raw bytes for random access, within `explain_failures`.

    read_ahead: least bytes per request of a remote file, 0 for exactly the bytes read; None for
    those of its format. Raises InputError for a pointer of Git LFS.
    """
    if not is_url(file.path):
        opened: BinaryIO = open(file.path, "rb")  # noqa: SIM115
    else:
        alone = replace(file, identity=file.version.partition(INDEX)[0], trusted=None)
        read = partial(place_of(file.path).read, alone)
        ahead = FORMATS[file.format].read_ahead if read_ahead is None else read_ahead
        opened = RangeReader(file.size, read).buffered(ahead)
    if file.size < _LFS_POINTER_BYTES:
        if opened.read(len(_LFS_POINTER)) == _LFS_POINTER:
            opened.close()
            raise InputError(
                f"{file.path} is a Git LFS pointer, not the file itself: run git lfs pull where "
                "it was cloned."
            )
        opened.seek(0)
    return opened


def local_state(path: str) -> tuple[int, str]:
    """The size and the identity of a local file; raises InputError as `describe_files` does."""
    if (shown := with_escaped_bytes(path)) != path:
        raise InputError(f"{shown}: the name is not valid UTF-8. Rename the file or folder.")
    try:
        state = os.stat(path)
    except OSError as error:
        target = f" (it is a link to {os.readlink(path)})" if os.path.islink(path) else ""
        is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
        kind = InputError if is_missing else UnavailableError
        raise kind(f"{path} cannot be read: {error.strerror}{target}.") from error
    if not stat.S_ISREG(state.st_mode):
        raise InputError(f"{path} is not a file. Exclude it.")
    return state.st_size, f"mtime:{state.st_mtime_ns}"


@contextmanager
def explain_failures(file: SourceFile) -> Iterator[None]:
    """Turns errors of a disk, a connection or a library while it reads into UnavailableError."""
    try:
        yield
    except FineshardsError:
        raise
    except Exception as error:
        is_full = getattr(error, "errno", 0) == errno.ENOSPC  # of what is written meanwhile
        if is_full or not (isinstance(error, OSError) or is_url(file.path)):
            raise
        raise UnavailableError(
            f"{file.path} cannot be read: {type(error).__name__}: {error}. "
            "Check the disk or the network; run the same command again to resume the job."
        ) from error


def find_files(
    patterns: Sequence[str], test: Sequence[str] = (), may_be_missing: bool = False
) -> list[SourceFile]:
    """Returns the files of patterns, numbered, and before them those of the test split.

    They are in the order of the patterns, and sorted by name within each. Raises UsageError for a
    pattern without a match, a file matched twice or a name of unknown format, and InputError for a
    file, folder or bucket that cannot be inspected.

    may_be_missing: whether a file that cannot be inspected, or is named in full and is not there,
    is returned all the same, with the identity MISSING.
    """
    seen: dict[str, str] = {}
    files: list[SourceFile] = []
    for number, pattern in enumerate((*test, *patterns)):
        is_test = number < len(test)
        named = f"{'--test_input' if is_test else '--input'} {pattern}"
        for match in _find(named, pattern, may_be_missing):
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


def expand_lists(patterns: Sequence[str], flag: str = "--input") -> list[str]:
    """The patterns, with those in the file instead of `@FILE`: one per line, without blank lines.

    A list may be a pipe, so it is read once. flag: which names it. Raises InputError for a list
    that cannot be read, or is empty.
    """
    expanded = list[str]()
    for pattern in patterns:
        if not pattern.startswith("@"):
            expanded.append(pattern)
            continue
        try:
            with open(without_scheme(pattern[1:]), encoding="utf-8-sig") as opened:
                lines = [line.strip() for line in opened]
        except (OSError, ValueError) as error:
            raise InputError(
                f"{flag} {pattern}: the list cannot be read ({error}). Give a local file with a "
                "path, pattern or URL per line, or ./@NAME for input with such a name."
            ) from error
        if not any(lines):
            raise InputError(
                f"{flag} {pattern}: the list is empty. Write a path, pattern or URL per line."
            )
        expanded += [without_scheme(line) for line in lines if line]
    return expanded


def as_it_is(file: SourceFile, trust_input: bool = True) -> SourceFile:
    """A source file of a dataset in the version that it has now: it may have been copied.

    trust_input: whether another version of the same size may be read. Raises InputError if the
    file is not there any more, or has another size.
    """
    if place_of(file.path).pinned:
        return file
    state = state_of(file)
    if state is None or state[0] != file.size or not trust_input:
        check_same(file, state, is_built=True)
    assert state is not None
    return replace(file, trusted=state[1])


def is_beside_data(name: str) -> bool:
    """Whether a file is not data: name is its path below the folder, with `/`.

    These are files and folders whose names begin with a dot or an underscore, as in Spark and
    Arrow; README, LICENSE, NOTICE, CHANGELOG and CITATION; *.md, *.crc and *.lock; records of the
    hub, of datatrove and of an export.
    """
    parts = name.split("/")
    if any(map(is_hidden, parts)) or parts[-1] in _RECORDS:
        return True
    # README.json may be data, as it always was; plain text with such a name is not.
    about = bool(_DESCRIPTION.fullmatch(parts[-1]))
    return about and (not known_format(name) or not FORMATS[format_of(name)[0]].has_columns)


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
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        yield from (os.path.join(parent, name) for name in names if not is_beside_data(name))


def _find(named: str, pattern: str, may_be_missing: bool) -> list[SourceFile]:
    """The files of a pattern or folder, as of `find_files`. named: the flag with it."""
    place = place_of(refuse_secrets(pattern, "--input")) if is_url(pattern) else None

    def find(pattern: str) -> list[FoundFile]:
        try:
            matches = place.find(pattern) if place else _find_local(pattern, may_be_missing)
        except MissingError:
            if not may_be_missing:
                raise
            matches = []
        return [file for file in matches if not is_beside_data(file.within)]

    files = _as_saved(named, pattern, find)
    listed = {file.path: (file.size, file.identity) for file in files}
    is_named = known_format(pattern) and not WILDCARDS.search(pattern)
    if may_be_missing and is_named and not files:
        path = pattern if place else os.path.abspath(pattern)
        return [SourceFile(0, path, 0, MISSING, *format_of(path))]
    if not files:
        raise UsageError(
            f"{named}: no file matches. Check the path, and quote the pattern so that the shell "
            "does not expand it. Names that begin with . or _, README, LICENSE and *.md are left "
            "out unless they are given."
        )
    if any(not known_format(file.path) for file in files):
        along = {path for file in files for path in companions_of(file.path)}
        files = [file for file in files if file.path not in along]
    unknown = [file.path for file in files if not known_format(file.path)]
    if unknown:
        raise UsageError(
            f"{named}: cannot read {some(unknown)}; expected {readable()}. Move such files away, "
            "or give a pattern that leaves them out."
        )
    if not os.path.basename(pattern).startswith("cache-"):
        refuse_cached_copies(named, [file.path for file in files])
    return [
        SourceFile(0, f.path, f.size, _with_index(f.path, f.identity, listed), *format_of(f.path))
        for f in files
    ]


def refuse_cached_copies(named: str, paths: Sequence[str]) -> None:
    """Raises UsageError for caches of the datasets library, which hold the data once more."""
    copies = [path for path in paths if _CACHED_COPY.fullmatch(os.path.basename(path))]
    if copies:
        raise UsageError(
            f"{named}: {some(copies)}: what map or filter of the datasets library made of data "
            "that lies beside it, so documents would be in the dataset twice. Give the file that "
            "you want, such as --input json-train.arrow or --input 'cache-0f3a*.arrow'."
        )


def _as_saved(named: str, pattern: str, find: Callable[[str], list[FoundFile]]) -> list[FoundFile]:
    """The matches without those that lie beside what `save_to_disk` of the datasets library wrote.

    Its state.json lists the data files of its folder; caches and files of an earlier save are left
    out where the pattern does not name them. Raises InputError for a file that is listed and not
    there, and UsageError for other data.
    """
    matches = find(pattern)
    parent, wanted = os.path.split(pattern)
    states = [file for file in matches if file.within and file.path.endswith("/state.json")]
    names = (os.path.basename(file.path) for file in matches)
    if any(name.endswith(".arrow") and fnmatch.fnmatchcase(name, wanted) for name in names):
        with suppress(MissingError, RefusedError):  # which web servers answer where there is none
            states += find(os.path.join(parent, "state.json"))
    of_splits = [os.path.dirname(state.path) for state in states if "/" in state.within]
    for folder in sorted(set(map(os.path.dirname, of_splits))):
        for record in find(f"{glob.escape(folder)}/dataset_dict.json"):
            for split in splits_saved(_content(record)):
                if f"{folder}/{split}" not in of_splits:
                    raise missing_of_saved(f"{folder}/{split}/state.json", record.path)
    there, listed = {file.path for file in matches}, dict[str, set[str]]()
    for state in states:
        folder, saved = os.path.dirname(state.path), set[str]()
        with suppress(ValueError, KeyError, TypeError):  # another file of that name is data
            data_files = json.loads(_content(state))["_data_files"]
            saved = {str(data["filename"]) for data in data_files}
            listed[folder] = saved
        for name in sorted(saved):
            is_wanted = os.path.basename(state.within) or fnmatch.fnmatchcase(name, wanted)
            if is_wanted and f"{folder}/{name}" not in there:
                raise missing_of_saved(f"{folder}/{name}", state.path)
    data, unlisted = list[FoundFile](), list[str]()
    for match in matches:
        folder, name = os.path.split(match.path)
        is_named = not os.path.basename(match.within)
        is_copy = _CACHED_COPY.fullmatch(name)
        if folder not in listed or name in listed[folder] or (is_named and is_copy):
            data.append(match)
        elif known_format(name) and (is_named or not _OF_SAVES.fullmatch(name)):
            unlisted.append(match.path)
    if unlisted:
        raise UsageError(
            f"{named}: {some(unlisted)}: not listed by state.json beside it, and so no part of "
            "what save_to_disk wrote there. Move such files away, or give the files that you want."
        )
    return data


def splits_saved(content: bytes) -> list[str]:
    """The splits that a dataset_dict.json lists; none for another file of that name."""
    with suppress(ValueError, KeyError, TypeError):
        return [str(split) for split in json.loads(content)["splits"]]
    return []


def missing_of_saved(path: str, record: str) -> InputError:
    """The error for a part of a saved dataset that is not there."""
    return InputError(
        f"{path} is not there, although {record} lists it. Copy it, or save the dataset again."
    )


def _content(found: FoundFile) -> bytes:
    file = SourceFile(0, found.path, found.size, found.identity, *format_of(found.path))
    with explain_failures(file), open_file(file) as opened:
        return opened.read()


def _find_local(pattern: str, may_be_missing: bool) -> list[FoundFile]:
    # `glob` takes a folder that ** may stand for on trust.
    matching = [path for path in glob.glob(pattern, recursive=True) if os.path.lexists(path)]
    if not matching and os.path.lexists(pattern):
        matching, pattern = [pattern], glob.escape(pattern)  # a name may contain brackets
    wanted = split_path(pattern)
    within, seen = dict[str, str](), set[tuple[str, str]]()
    for path in sorted(matching):
        for below in walk(path) if os.path.isdir(path) else (path,):
            folder, name = os.path.split(below)
            place = os.path.realpath(folder), name
            left = left_open(split_path(below), wanted) or ""
            # Of a folder that links give several names, the first.
            if place not in seen and not is_beside_data(left):
                seen.add(place)
                within[os.path.abspath(below)] = left
    files = list[FoundFile]()
    for path, left in sorted(within.items()):
        try:
            state = local_state(path)
        except InputError as error:
            of_file = not isinstance(error, UnavailableError) and with_escaped_bytes(path) == path
            if not (may_be_missing and of_file):
                raise
            state = 0, MISSING
        files.append(FoundFile(path, path, *state, left))
    return files


def some(paths: Sequence[str]) -> str:
    """Up to three paths, and how many more there are."""
    more = f" and {len(paths) - 3:,} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more
