"""From a sample to the whole input: pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """What a sample's files of one format came to.

    bytes: in the measure of `Block.bytes`; text_bytes, tokens: as a build counted them.
    """

    bytes: int
    text_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a build of the whole input comes to, about.

    seconds: from the command to the end, start-up included. output_bytes: of the shards.
    free_bytes: that the disk must have: while the job runs, tokens lie there twice.
    """

    text_bytes: int
    tokens: int
    seconds: float
    output_bytes: int
    free_bytes: int

    @classmethod
    def of_build(
        cls, text_bytes: int, tokens: int, token_bytes: int, seconds: float
    ) -> Expectation:
        """The expectation of another build like one that took `seconds`."""
        shards = tokens * token_bytes
        return cls(text_bytes, tokens, seconds, output_bytes=shards, free_bytes=2 * shards)


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured. Rates are tokens a second.

    start_up: seconds of a build of next to nothing. discovery: seconds to look at all files.
    rate: of all workers together. reading: bytes (see `Seen.bytes`) a second that one worker
    reads from a place that the sample was not read from, the hub; None if it is the same.
    largest: the largest block's share of the input, from 0 to 1: one worker does all of it.
    """

    start_up: float
    discovery: float
    rate: float
    workers: int
    reading: float | None
    largest: float


def expect(
    totals: Mapping[str, int], seen: Mapping[str, Seen], costs: Costs, token_bytes: int
) -> Expectation:
    """The expectation for `totals`, bytes by format, from what was seen of each format.

    token_bytes: of a token on the disk.
    """
    text_bytes = tokens = 0
    for name, total in totals.items():
        if total and (sample := seen.get(name)) and sample.bytes:
            text_bytes += round(total * sample.text_bytes / sample.bytes)
            tokens += round(total * sample.tokens / sample.bytes)
    one_worker = tokens / (costs.rate / costs.workers)
    if costs.reading:
        # A worker reads, then encodes; they do not wait for each other.
        one_worker += sum(totals.values()) / costs.reading
    work = one_worker * max(1 / costs.workers, costs.largest)
    seconds = costs.start_up + costs.discovery + work
    return Expectation.of_build(text_bytes, tokens, token_bytes, seconds)
