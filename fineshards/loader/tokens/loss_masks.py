"""Which tokens of a split are learned, and which are of redacted documents.

A redacted document is a run of EOTs in its old place. An EOT starts a document, so the tokens alone
would make a document of each: the job records, which need no Arrow, say where they are.
"""

import numpy as np

from fineshards.loader.boundaries import Bools, joined_ranges
from fineshards.loader.sample_sources import Numbers
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.loader.tokens.token_stream import Reading, ReadingOrder, TokenStream
from fineshards.shards.job.job import Job, job_name, load_redaction
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME


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

    def within(self, places: Numbers) -> Bools:
        """Which tokens are in a redacted document, behind its first one: bool, shape (n,).

        places: EOTs of the split that follow an EOT: of a redacted document, or of a document
        behind one without text.
        """
        found = _within((self._known or self._load())[2], places)
        rest = places[~found]
        # Two in a row: a document that has been redacted since the records were read.
        if (np.diff(rest) == 1).any() and self._is_old():
            found = _within(self._load()[2], places)
        return found

    def _is_old(self) -> bool:
        known, opened = self._known, self._split.last_opened()
        # In a store all reads of an opened shard are of one version, and a comparison is requests.
        if opened is self._compared and not self._split.storage.on_disk:
            return False
        if known is None or self._versions(known[0]) != known[1]:
            return True
        self._compared = opened
        return False

    def _load(self) -> tuple[int, list[str | None], Numbers]:
        storage, found = self._split.storage, list[tuple[str, int, int]]()
        generations = Manifest.load_finished(storage).generations
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


class LearnedTokens:
    """The learned bits of a split's tokens. Threads can share it; it can be pickled.

    The masks beside the shards are read as shards of bytes: fetched, cached and checked as these.
    """

    def __init__(self, split: SplitShards, length: int, reading: Reading) -> None:
        masks = split.of_masks()
        self._begins = split.layout.begins(split.name)
        # The bits with which shards begin, and how many more there are before each than tokens.
        self._gaps = 8 * masks.layout.begins(split.name) - self._begins
        self._stream = TokenStream(masks, 0, -(-length // 8) + 1, reading)
        self._used = False

    def of(self, starts: Numbers, stops: Numbers) -> Bools:
        """Which tokens of ranges are learned, one range after the other."""
        self._used = True
        begins, ends = self._bits(starts, stops)
        low, high = begins // 8, -(-ends // 8)
        bits = np.unpackbits(self._stream.join(low, high).view(np.uint8), bitorder="little").data
        moved = 8 * (np.cumsum(high - low) - high)
        places = zip((begins + moved).tolist(), (ends + moved).tolist(), strict=True)
        return np.frombuffer(b"".join([bits[begin:end] for begin, end in places]), np.bool_)

    def request(self, starts: Numbers, stops: Numbers) -> None:
        """Asks far storage for the bits of ranges of tokens, once any were needed."""
        if self._used:
            begins, ends = self._bits(starts, stops)
            self._stream.request(begins // 8, -(-ends // 8))

    def expect(self, order: ReadingOrder) -> None:
        """Reads for an order from now on."""
        self._stream.expect(order)

    def close(self) -> None:
        """Closes all files. The next use reopens them."""
        self._stream.close()

    def _bits(self, starts: Numbers, stops: Numbers) -> tuple[Numbers, Numbers]:
        """Where the bits of ranges begin and end, among those of all masks.

        Those of a shard begin with a byte, so a range is cut where a shard begins.
        """
        first, last = (np.searchsorted(self._begins, at, "right") for at in (starts, stops - 1))
        shards, parts = joined_ranges(first, last + 1) - 1, last + 1 - first
        begins = np.maximum(np.repeat(starts, parts), self._begins[shards])
        ends = np.minimum(np.repeat(stops, parts), self._begins[shards + 1])
        return begins + self._gaps[shards], ends + self._gaps[shards]
