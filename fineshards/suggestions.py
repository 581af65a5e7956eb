"""Near-misses: the word that a misspelt one was meant to be."""

from __future__ import annotations

from collections.abc import Iterable

# Below this share of common letters two words are not misspellings of each other.
_ALIKE = 0.7


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that names the known words most like a misspelt or shortened one; "" if none is.

    Example:
        >>> did_you_mean("--outptu", ["--input", "--output"])
        ' Did you mean --output?'
        >>> did_you_mean("--test", ["--test_fraction", "--test_shards"])
        ' Did you mean --test_fraction or --test_shards?'
        >>> did_you_mean("--verbose", ["--input", "--output"])
        ''
        >>> did_you_mean("--output", ["--input", "--output"])
        ''
    """
    from difflib import get_close_matches  # only mistakes pay for the import

    bare = {each.lstrip("-"): each for each in known}
    if word in bare.values():
        return ""  # known, but not here: not a misspelling
    wanted = word.lstrip("-").lower()
    close = get_close_matches(wanted, bare, n=1, cutoff=_ALIKE)
    if not close and len(wanted) > 2:
        close = sorted(each for each in bare if each.startswith(wanted))[:3]
    return f" Did you mean {' or '.join(bare[each] for each in close)}?" if close else ""
