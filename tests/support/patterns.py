"""Names of files with all that is special in patterns, and patterns for them."""

import glob
from pathlib import Path

from hypothesis import strategies as st

from fineshards.errors import UsageError
from fineshards.sources.files import find_files

NAMES = [
    f"{folder}{name}"
    for folder in ("", "a/", "a/b/", "ab/", ".h/", "a/.h/b/", "[a]/", "a/b/ab/", "*/")
    for name in ("a.jsonl", "b.jsonl", "ab.jsonl", "a[1].jsonl", ".h.jsonl", "!.jsonl", "*.jsonl")
]
_PARTS = ["*", "?", "**", "a", "b", "ab", "a*", "?b", "[ab]", "[!a]", "[[]a]", "[a]", ".*", ".h"]
_ENDS = ["*", "**", "*.jsonl", "a.jsonl", "?.jsonl", "a[1].jsonl", "a[[]1].jsonl", "[!b]*", ".h*"]

patterns = st.builds(
    lambda parts, end: "/".join(["in", *parts, end]),
    st.lists(st.sampled_from(_PARTS), max_size=3),
    st.sampled_from(_ENDS),
)


def write_names(folder: Path) -> Path:
    """Makes empty files of all names in the folder `in` of a folder."""
    for name in NAMES:
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "in" / name).touch()
    return folder


def matches_as_for_local_files(root: str, folder: Path, pattern: str) -> None:
    """A pattern finds the same files in a store as in a local folder, or is refused alike."""

    def found(root: str) -> list[str] | str:
        try:
            return [file.path.partition("/in/")[2] for file in find_files([f"{root}/{pattern}"])]
        except UsageError as error:
            return str(error).replace(root, "")

    assert found(root) == found(glob.escape(str(folder)))
