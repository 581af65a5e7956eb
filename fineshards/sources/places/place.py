"""A kind of place for source files, and which files in it a pattern or a folder means.

Patterns work as for local files, whatever the place.
"""

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from fineshards.errors import InputError, UsageError
from fineshards.shards.job.records import SourceFile, describe_state

WILDCARDS = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as its store lists or describes it.

    path: its URL. name: its path below the listed folder. identity: see `SourceFile`.
    encoding: its Content-Encoding, empty for none.
    """

    path: str
    name: str
    size: int
    identity: str
    encoding: str = ""


# (prefix of names, whether deeper folders too) -> the files with that prefix, and the names of
# folders that were not listed, which end with a slash.
List = Callable[[str, bool], tuple[list[FoundFile], set[str]]]


@dataclass(frozen=True, slots=True)
class Matches:
    """What a pattern or a folder means.

    files: sorted by name. beside: those that do not match, but lie in a folder that does.
    is_folder: whether it names a folder, all of whose files these are.
    """

    files: list[FoundFile]
    beside: list[FoundFile] = field(default_factory=list)
    is_folder: bool = False


class Place(Protocol):
    """A kind of place. Its libraries are imported when a file is read from it.

    Failures that may pass are tried again, and what stays is raised as InputError or UsageError.

    pinned: whether files are of a commit, so that none can be another one than it was. is_light:
    whether finding files imports no libraries that are large or start threads.
    """

    pinned: bool = False
    is_light: bool = False

    def find(self, pattern: str, /) -> Matches:
        """Returns the files that a URL, pattern or folder means, as they are now."""
        ...

    def state(self, file: SourceFile, /) -> tuple[int, str] | None:
        """The size and the identity of a file now; None if it is not there any more."""
        ...

    def read(self, file: SourceFile, start: int, stop: int, /) -> bytes:
        """Bytes `[start, stop)` of a file in its version, by one request. Threads may call it."""
        ...


def find_matches(wanted: str, list_files: List) -> Matches:
    """Returns what a pattern means in a store, from one listing if it matches.

    wanted: the pattern below the root of the store, such as a bucket.
    """
    prefix = WILDCARDS.split(wanted, maxsplit=1)[0]
    rest = wanted.removeprefix(prefix)
    parts = wanted.split("/")
    # Deeper folders are not listed if nothing in them can match.
    listed, folders = list_files(prefix, "/" in rest or "**" in rest)
    listed.sort(key=lambda file: file.name)
    matching = [file for file in listed if matches(file.name.split("/"), parts)]
    # A name may contain brackets, which are special in a pattern.
    matching = matching or [file for file in listed if file.name == wanted]
    names = {file.name for file in matching}
    beside = []
    for file in listed:
        folder = None if file.name in names else _matching_folder(file.name, parts)
        if folder is not None:
            beside.append(replace(file, name=file.name.removeprefix(folder)))
    for folder in sorted(folders) if rest else ():
        if matches(folder.rstrip("/").split("/"), parts):
            beside += _find_below(folder, list_files)
    if not matching and (inside := _find_below(wanted, list_files)):
        return Matches(inside, beside, is_folder=True)
    return Matches(matching, beside)


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


def _find_below(folder: str, list_files: List) -> list[FoundFile]:
    """All files below a folder, sorted by name."""
    prefix = f"{folder.rstrip('/')}/" if folder else ""
    found = sorted(list_files(prefix, True)[0], key=lambda file: file.name)
    return [replace(file, name=file.name.removeprefix(prefix)) for file in found]


def _matching_folder(name: str, pattern: list[str]) -> str | None:
    """The first of the folders that hold a file which matches a pattern, with a slash."""
    parts = name.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        if matches(parts[:depth], pattern):
            return "/".join(parts[:depth]) + "/"
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
