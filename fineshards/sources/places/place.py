"""A kind of place for source files, and which files in it a pattern or a folder means.

Patterns work as for local files, whatever the place.
"""

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fineshards.errors import UnavailableError, UsageError
from fineshards.shards.job.records import SourceFile, describe_state

WILDCARDS = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as its store lists or describes it.

    path: its URL. name: its path below the root of the store. identity: see `SourceFile`.
    within: the parts of its path that the pattern leaves open, such as those below a folder that
    matches; see `open_parts`.
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

    Failures that may pass are tried again, and what stays is raised: a file that is not there as
    InputError, failures of the place as UnavailableError, wrong usage as UsageError.

    pinned: whether files are of a commit, so that none can be another one than it was.
    """

    pinned: bool = False

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
    prefix = WILDCARDS.split(wanted, maxsplit=1)[0]
    rest, pattern = wanted.removeprefix(prefix), split_path(wanted)
    # Deeper folders are not listed if nothing in them can match.
    is_folder = wanted == "" or wanted.endswith("/")
    files, folders = list_files(prefix, is_folder or "/" in rest or "**" in rest)
    for folder in sorted(folders):
        if any(True for _ in open_parts(split_path(folder), pattern)):
            files += list_files(folder, True)[0]
    matching = [
        replace(file, within=within)
        for file in files
        if (within := left_open(split_path(file.name), pattern)) is not None
    ]
    if not matching and rest:  # a name may contain brackets, which are special in a pattern
        folder = wanted.rstrip("/") + "/"
        matching = [file for file in files if file.name == wanted]
        below = () if matching else list_files(folder, True)[0]
        matching += [replace(file, within=file.name.removeprefix(folder)) for file in below]
    return sorted(matching, key=lambda file: file.name)


def check_same(file: SourceFile, now: tuple[int, str] | None, is_built: bool = False) -> None:
    """Raises UnavailableError if a file has not the size and version that it had at launch.

    now: the size and version that it has; None if it is not there any more. is_built: whether the
    dataset is finished.
    """
    since, again = "the job was launched", "start over with --overwrite"
    if is_built:
        since, again = "the dataset was built", "say where it is with --sources OLD=NEW"
    if now is None:
        raise UnavailableError(
            f"{file.path} was deleted since {since}: it had {file.described()}. Put it back, or "
            f"{again}."
        )
    if now != (file.size, file.version):
        advice = f"Put the old file back, or {again}."
        if now[0] == file.size:
            advice = "If its content is the same, give --trust_input."
        raise UnavailableError(
            f"{file.path} changed since {since}: it had {file.described()}, now "
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


def is_hidden(name: str) -> bool:
    """Whether a name is not of data, as in Spark and Arrow."""
    return name.startswith((".", "_"))


def split_path(path: str) -> list[str]:
    """The parts of a path or pattern; the last one is empty after a slash."""
    return [part for part in path.split("/")[:-1] if part] + path.split("/")[-1:]


def left_open(path: Sequence[str], pattern: Sequence[str]) -> str | None:
    """See `FoundFile.within`; None for a file that neither matches nor lies in a match.

    Of several ways to match, one that leaves no hidden name open.
    """
    ways = [*open_parts(path, pattern)]
    if not ways:
        return None
    return "/".join(min(ways, key=lambda parts: any(map(is_hidden, parts)))).lstrip("/")


def open_parts(path: Sequence[str], pattern: Sequence[str]) -> Iterator[list[str]]:
    """The parts of a path that a pattern leaves open, for each way in which the path matches.

    A path matches as in `glob.glob(pattern, recursive=True)`, or if a folder above it does. Open
    are the names below that folder, and those for which `**`, or a part such as `*`, stands: it
    gives neither the beginning nor the ending of a name. Others are empty. A pattern that ends with
    a slash means folders alone.
    """
    if not pattern or (path and pattern == [""]):
        yield [*path]
        return
    if not path:
        return
    part, rest = pattern[0], pattern[1:]
    if part == "**" and rest:
        yield from open_parts(path, rest)
    if path[0].startswith(".") and not part.startswith("."):
        return
    if part == "**":
        deeper = open_parts(path[1:], pattern) if rest else [[*path[1:]]]
        yield from ([path[0], *names] for names in deeper)
    elif fnmatch.fnmatchcase(path[0], part):
        is_any = WILDCARDS.match(part) and part.endswith("*")
        yield from ([path[0] if is_any else "", *names] for names in open_parts(path[1:], rest))
