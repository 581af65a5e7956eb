"""Where the tokens of redacted documents are: from the job records, which need no Arrow.

A redacted document is a run of EOTs in its old place. An EOT starts a document, so the tokens alone
would make a document of each.
"""

from __future__ import annotations

import numpy as np

from fineshards.loader.boundaries import Bools
from fineshards.loader.sample_sources import Numbers
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards.job.job import Job, job_name, load_redaction
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.job.manifest_part import ManifestPart


class RedactedTokens:
    """The tokens of all documents of a split that were redacted, in whatever generation.

    Also those of a redaction that is not finished, for its shards are replaced one by one. Records
    are read when they are first needed. Threads can share it.
    """

    def __init__(self, split: SplitShards) -> None:
        self._split = split
        # The generation after the latest, the versions of the records, and the ranges. Replaced
        # together, so that threads need no lock.
        self._known: tuple[int, list[str | None], Numbers] | None = None
        # The last shard that was opened when the versions were compared.
        self._compared: object = None

    def ranges(self) -> Numbers:
        """Ranges `[begin, end)` of the split's tokens: int64, shape (n, 2), ascending."""
        return (self._known or self._load())[2]

    def within(self, places: Numbers) -> Bools:
        """Which tokens are in a redacted document, behind its first one: bool, shape (n,).

        places: EOTs of the split that follow an EOT: of a redacted document, or of a document
        behind one without text.
        """
        found = _within(self.ranges(), places)
        rest = places[~found]
        # Two in a row: a document that has been redacted since the records were read.
        if (np.diff(rest) == 1).any() and self._is_old():
            found = _within(self._load()[2], places)
        return found

    def _is_old(self) -> bool:
        known, opened = self._known, self._split.last_opened()
        # In a store all reads of an opened shard are of one version, and a comparison is requests.
        if opened is self._compared and not self._split.storage.supports_mmap:
            return False
        if known is None or self._versions(known[0]) != known[1]:
            return True
        self._compared = opened
        return False

    def _load(self) -> tuple[int, list[str | None], Numbers]:
        storage, found = self._split.storage, list[tuple[str, int, int]]()
        generations = ManifestPart.load_finished(storage).generations
        following = len(generations) + 1
        versions = self._versions(following)
        for number, generation in enumerate(generations, 1):
            if generation.redacted:
                found += load_redaction(storage, number, generation).ranges
        job = Job.load(storage, following)
        if job is not None and job.redaction is not None:
            found += job.redaction.ranges
        ranges = sorted({(begin, end) for split, begin, end in found if split == self._split.name})
        known = following, versions, np.array(ranges, np.int64).reshape(-1, 2)
        self._known = known
        return known

    def _versions(self, following: int) -> list[str | None]:
        names = MANIFEST_NAME, job_name(following)
        return [self._split.storage.version(name) for name in names]


def _within(ranges: Numbers, places: Numbers) -> Bools:
    at = np.searchsorted(ranges[:, 0], places) - 1
    found: Bools = at >= 0
    found[found] = places[found] < ranges[at[found], 1]
    return found
