"""A kind of place for source files, and which files in it a pattern or a folder means.

Patterns work as for local files, whatever the place.
"""

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from fineshards.errors import InputError, UsageError
from fineshards.shards.job.records import SourceFile, describe_state

WILDCARDS = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as its store lists or describes it.

    path: its URL. name: its path below the root of the store. identity: see `SourceFile`.
    within: its path below the folder that matches a pattern, empty if it matches itself. With the
    name of what matches, if the pattern does not give the beginning of that name.
    """

    path: str
    name: str
    size: int
    identity: str
    within: str = ""


# (prefix of names, whether deeper folders too) -> the files with that prefix, and the names of
# folders that were not listed, which end with a slash.
List = Callable[[str, bool], tuple[list[FoundFile], set[str]]]


class Place(Protocol):
    """A kind of place. Its libraries are imported when a file is read from it.

    Failures that may pass are tried again, and what stays is raised as InputError or UsageError.

    pinned: whether files are of a commit, so that none can be another one than it was. is_light:
    whether finding files imports no libraries that are large or start threads.
    """

    pinned: bool = False
    is_light: bool = False

    def find(self, pattern: str, /) -> list[FoundFile]:
        """The files that a URL, pattern or folder means, as they are now, sorted by name.

        A folder means all files below it, also one of several that match a pattern.
        """
        ...

    def state(self, file: SourceFile, /) -> tuple[int, str] | None:
        """The size and the identity of a file now; None if it is not there any more."""
        ...

    def read(self, file: SourceFile, start: int, stop: int, /) -> bytes:
        """Bytes `[start, stop)` of a file in its version, by one request. Threads may call it."""
        ...


def find_matches(wanted: str, list_files: List) -> list[FoundFile]:
    """The files that a pattern means, sorted by name: those that match, or lie in a match.

    wanted: the pattern below the root of the store, such as a bucket.
    """
    wanted = wanted.rstrip("/")
    prefix = WILDCARDS.split(wanted, maxsplit=1)[0]
    rest, pattern = wanted.removeprefix(prefix), wanted.split("/") if wanted else []
    # Deeper folders are not listed if nothing in them can match.
    files, folders = list_files(prefix, not wanted or "/" in rest or "**" in rest)
    for folder in sorted(folders):
        if matches(folder.rstrip("/").split("/"), pattern):
            files += list_files(folder, True)[0]
    candidates = [(file, _within(file.name, pattern)) for file in files]
    matching = [replace(file, within=within) for file, within in candidates if within is not None]
    if not matching and rest:  # a name may contain brackets, which are special in a pattern
        matching = [file for file in files if file.name == wanted]
        below = () if matching else list_files(f"{wanted}/", True)[0]
        matching += [replace(file, within=file.name.removeprefix(f"{wanted}/")) for file in below]
    return sorted(matching, key=lambda file: file.name)


def check_same(file: SourceFile, now: tuple[int, str] | None) -> None:
    """Raises InputError if a file has not the size and version that it had at launch.

    now: the size and version that it has; None if it is not there any more.
    """
    if now is None:
        raise InputError(
            f"{file.path} was deleted since the job was launched: it had {file.described()}. Put "
            "it back, or start over with --overwrite."
        )
    if now != (file.size, file.version):
        advice = "Put the old file back, or start over with --overwrite."
        if now[0] == file.size:
            advice = "If its content is the same, run the same command again with --trust_input."
        raise InputError(
            f"{file.path} changed since the job was launched: it had {file.described()}, now "
            f"{describe_state(*now)}. {advice}"
        )


def split_root(url: str) -> tuple[str, str]:
    """Splits a URL into its root, such as `gs://bucket`, and the name or pattern below it.

    Raises UsageError for a URL that is none of files, or with wildcards in the root.
    """
    scheme, _, rest = url.partition("://")
    root, _, name = rest.partition("/")
    if not rest or WILDCARDS.search(root):
        raise UsageError(
            f"--input {url}: expected {scheme}://bucket-or-host/folder/*.parquet, without "
            "wildcards in the first part."
        )
    return f"{scheme}://{root}", name


def stands_for_any(part: str) -> bool:
    """Whether a part of a pattern gives neither the beginning nor the ending of a name."""
    return bool(WILDCARDS.match(part)) and part.endswith("*")


def _within(name: str, pattern: list[str]) -> str | None:
    """See `FoundFile.within`; None for a file that neither matches nor lies in a match."""
    parts = name.split("/")
    is_any = any(map(stands_for_any, pattern[-1:]))
    for depth in (len(parts), *range(len(parts))):
        if matches(parts[:depth], pattern):
            return "/".join(parts[depth - is_any :])
    return None


def matches(name: list[str], pattern: list[str]) -> bool:
    """Whether a name matches, as a path does in `glob.glob(pattern, recursive=True)`.

    Both are split at slashes. A part that begins with a dot only matches a pattern with that dot.
    """
    if pattern == ["**"]:
        return bool(name) and not any(part.startswith(".") for part in name)
    if not name or not pattern:
        return not name and not pattern
    if pattern[0] == "**" and matches(name, pattern[1:]):
        return True
    if name[0].startswith(".") and not pattern[0].startswith("."):
        return False
    if pattern[0] == "**":
        return matches(name[1:], pattern)
    return fnmatch.fnmatchcase(name[0], pattern[0]) and matches(name[1:], pattern[1:])
