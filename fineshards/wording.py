"""Counts and durations as people write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fineshards.shards.job.manifest import Manifest
    from fineshards.shards.job.records import Leaks
    from fineshards.shards.split_rule import SplitRule

# A warning: a step drops more than this part of so many documents of a source. At most so many.
_NEARLY_ALL, _LEAST_DOCUMENTS, _MOST_WARNINGS = 0.9, 100, 3
_PLURALS = {"process": "processes"}


def counted(count: int, noun: str) -> str:
    """A count with its noun.

    Example:
        >>> counted(1, "file"), counted(2000, "file")
        ('1 file', '2,000 files')
    """
    return f"{count:,} {noun if count == 1 else _PLURALS.get(noun, f'{noun}s')}"


def approximately(count: int) -> str:
    """A count to three digits.

    Example:
        >>> approximately(98_557_363), approximately(999_600), approximately(7)
        ('98.6M', '1M', '7')
    """
    return _in_units(count, ("T", "B", "M", "k")) or f"{count:.3g}"


def size(count: int) -> str:
    """Bytes in the unit that fits.

    Example:
        >>> size(917), size(2_217_541), size(999_999), size(60 * 10**12)
        ('917 bytes', '2.22 MB', '1 MB', '60 TB')
    """
    return _in_units(count, (" PB", " TB", " GB", " MB", " kB")) or f"{count:,} bytes"


def _in_units(count: int, units: Sequence[str]) -> str:
    """A count to three digits in the unit that fits, of some that end with that of thousands."""
    rounded = float(f"{count:.3g}")
    for power, unit in zip(range(len(units), 0, -1), units, strict=True):
        if rounded >= 1000**power:
            return f"{rounded / 1000**power:g}{unit}"
    return ""


def share(part: int, whole: int) -> str:
    """A part of a whole in percent.

    Example:
        >>> share(1, 3), share(3, 3), share(0, 0)
        ('33.33 %', '100.00 %', '–')
    """
    return f"{100 * part / whole:.2f} %" if whole else "–"


def shortened(text: str, most: int = 250) -> str:
    """The beginning of a text that may be of any length, such as a name, a label or an id."""
    return text if len(text) <= most else f"{text[:most]} …"


def duration(seconds: float) -> str:
    """Seconds in the unit that fits.

    Example:
        >>> duration(45), duration(700), duration(12_000), duration(187_200)
        ('45 s', '12 min', '3 h 20 min', '2 days 4 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"


def describe_leaks(leaks: Leaks) -> str:
    """How many documents have a text that is in both splits."""
    if not leaks.test_documents:
        return "no text is in both splits"
    has = "has" if leaks.test_documents == 1 else "have"
    return (
        f"{counted(leaks.test_documents, 'test document')} {has} the same text as "
        f"{counted(leaks.train_documents, 'train document')}"
    )


def warn_of_leaks(leaks: Leaks, rule: SplitRule) -> str:
    """One sentence about leaks: how many, what they mean, what to do."""
    return (
        f"{describe_leaks(leaks)}, so a test measures what was memorized: build with "
        f"{rule.flags_against_leaks} to keep exact duplicates in one split"
    )


def describe_repeats(manifest: Manifest) -> str:
    """How many documents of the latest append have a text that the dataset had before."""
    added = [generation.files for generation in manifest.generations if generation.files][-1]
    new = sum(report.counts.documents for report in manifest.reports[-added:])
    has = "has" if manifest.repeats == 1 else "have"
    return (
        f"{manifest.repeats or 0:,} of {counted(new, 'new document')} {has} the text of a document "
        "that was in the dataset before"
    )


def warn_of_steps(manifest: Manifest, only: int | None = None) -> list[str]:
    """The largest files and dumps of which a step, or the `only` one, from 1, drops nearly all."""
    steps, warnings = manifest.settings.recipe.steps if manifest.settings.recipe else (), []
    count, files = len(steps), manifest.files
    dumps = manifest.counts(judged=True).by_step(count)
    parts = [(f"dump {dump}", sums) for dump, sums in dumps.items() if dump is not None]
    parts += [(files[r.file].path, r.counts.by_step(count)[None]) for r in manifest.reports]
    for source, sums in parts:
        for number, (reach, gone) in enumerate(sums, 1):
            if reach >= _LEAST_DOCUMENTS and gone > _NEARLY_ALL * reach and only in (None, number):
                warnings.append((-gone, source, number, reach))
    lines = [
        f"step {number} {steps[number - 1].use} dropped {-gone:,} of {reach:,} documents "
        f"({share(-gone, reach)}) of {shortened(source)}"
        for gone, source, number, reach in sorted(warnings)[:_MOST_WARNINGS]
    ]
    if more := len(warnings) - len(lines):
        lines.append(f"and {more:,} more, each over 90 %")
    return lines


def describe_splits(splits: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Documents, tokens and shards of each split, one line per split, with its share.

    Example:
        >>> test = {"documents": 1, "tokens": 30, "shards": 1}
        >>> train = {"documents": 7, "tokens": 970, "shards": 2}
        >>> print("\\n".join(describe_splits({"test": test, "train": train})))
          test       1 document (12.50 %), 30 tokens (3.00 %), 1 shard
          train      7 documents (87.50 %), 970 tokens (97.00 %), 2 shards
    """
    lines = []
    for split, sums in splits.items():
        parts = []
        for what in ("documents", "tokens"):
            whole = sum(other[what] for other in splits.values())
            parts.append(f"{counted(sums[what], what[:-1])} ({share(sums[what], whole)})")
        lines.append(f"  {split:<10} {', '.join(parts)}, {counted(sums['shards'], 'shard')}")
    return lines
