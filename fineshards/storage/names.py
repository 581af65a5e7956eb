"""Names of files below a folder: the one place that says which names stay in it.

Names come from records in the folder, which anyone can have written. A storage asks here for each
name that it gets, so no record leads out of the folder.
"""

import os

from fineshards.errors import OutputError

# No path of Linux is longer. Names of objects end at 1,024.
_MOST_BYTES = 4096
_MOST_SHOWN = 60


def is_below(name: str) -> bool:
    """Whether a name is that of a file below a folder, at any depth.

    Example:
        >>> is_below("train/train_0000.npy"), is_below("train//x"), is_below("a/../../x")
        (True, False, False)
    """
    try:
        is_short = len(name) <= _MOST_BYTES and len(os.fsencode(name)) <= _MOST_BYTES
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return False
    return is_short and "\0" not in name and {"", ".", ".."}.isdisjoint(name.split("/"))


def below(name: str, root: str) -> str:
    """The name, if it is that of a file or folder below a root, or empty for the root itself.

    Raises OutputError for any other, which nothing but a record that someone has changed can name.
    """
    if name and not is_below(name.removesuffix("/")):
        raise OutputError(
            f"a record in {root} names {shortened(name)}, which is not a file of this folder. "
            "Someone has changed the record. Copy the folder again, or make it again."
        )
    return name


def shortened(name: str) -> str:
    """A name as messages show it: quoted, escaped, and not longer than a line."""
    return ascii(name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}...")


def split_url(url: str) -> tuple[str, str]:
    """Bucket and key of `scheme://bucket/key`."""
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key
