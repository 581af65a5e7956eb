"""Files that one worker reads alone for long, because they cannot be split: named at launch."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fineshards.shards.job.records import SourceFile
from fineshards.wording import counted, duration, size

# Formats of which a file is one block.
_WHOLE = frozenset(("jsonl", "csv", "tsv", "text", "warc", "wet"))
# Bytes of text per byte, as web text usually is. An assumption, for a warning.
_RATIO = {"none": 1, "gzip": 3, "zstd": 4, "xz": 4, "bzip2": 4}
# Of one core (benchmarks/results/2026-11-21-2GB.json). Steps and HTML make it slower.
_TEXT_PER_SECOND = 57e6
_LONG_SECONDS = 600.0

_log = logging.getLogger("fineshards")


def warn_of_long_files(files: Sequence[SourceFile]) -> None:
    """Logs which files cannot be split, if a worker needs ten minutes or more for one."""
    seconds = {
        file: file.size * _RATIO[file.compression] / _TEXT_PER_SECOND
        for file in files
        if file.format in _WHOLE and file.stop_row is None
    }
    found = [file for file in seconds if seconds[file] >= _LONG_SECONDS]
    if not found:
        return
    longest = max(found, key=lambda file: seconds[file])
    others = f" and {counted(len(found) - 1, 'other file')}" if len(found) > 1 else ""
    _log.warning(
        "%s (%s)%s cannot be split: one worker reads a file to its end, this one for about %s or "
        "longer, and begins again if it is lost. Split them into files of about 1 GB, or convert "
        "them to Parquet, so that more workers can help.",
        *(longest.path, size(longest.size), others, duration(seconds[longest])),
    )
