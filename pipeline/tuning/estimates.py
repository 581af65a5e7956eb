"""Estimates for the whole input, from the build of a probe. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FormatTotals:
    """Totals of the probe's files of one format.

    bytes: in the measure of `Block.bytes`. text_bytes, tokens: as a build counted them.
    """

    bytes: int
    text_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Expectation:
    """Estimates for a build of the whole input.

    seconds: from the command to the end, start-up included. output_bytes: size of the shards.
    free_bytes: free disk space needed; while the job runs, the tokens are on the disk twice.
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
        """The expectation for a repetition of a build that took `seconds`."""
        shards = tokens * token_bytes
        return cls(text_bytes, tokens, seconds, output_bytes=shards, free_bytes=2 * shards)


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured.

    start_up: seconds of a build of a tiny input. discovery: seconds to read the metadata of all
    files. rate: tokens per second of all workers together. reading: bytes per second (see
    `FormatTotals.bytes`) that one worker reads from remote storage; None for a local input.
    largest: the largest block's share of the input, 0 to 1; one worker does all of it.
    """

    start_up: float
    discovery: float
    rate: float
    workers: int
    reading: float | None
    largest: float


def expect(
    totals: Mapping[str, int], probe: Mapping[str, FormatTotals], costs: Costs, token_bytes: int
) -> Expectation:
    """The expectation for `totals`, bytes by format, from the probe's totals by format.

    token_bytes: bytes of one token in the shards.
    """
    text_bytes = tokens = 0
    for name, total in totals.items():
        if total and (part := probe.get(name)) and part.bytes:
            text_bytes += round(total * part.text_bytes / part.bytes)
            tokens += round(total * part.tokens / part.bytes)
    one_worker = tokens / (costs.rate / costs.workers)
    if costs.reading:
        # A worker reads, then encodes; workers do not wait for each other.
        one_worker += sum(totals.values()) / costs.reading
    work = one_worker * max(1 / costs.workers, costs.largest)
    seconds = costs.start_up + costs.discovery + work
    return Expectation.of_build(text_bytes, tokens, token_bytes, seconds)
