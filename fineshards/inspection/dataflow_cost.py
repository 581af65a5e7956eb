"""What a build on Dataflow costs, by the formula of docs/cloud.md, which has the sources."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

_MACHINE, _VCPUS = "n2-standard-4", 4
# Dollars per vCPU hour with 4 GB and 12.5 GB of disk, per thousand requests, per GiB hour stored.
_VCPU_HOUR = 0.056 + 4 * 0.003557 + 12.5 * 0.000054
_CLASS_A, _CLASS_B, _GIB_HOUR = 0.005, 0.0004, 0.000027397
# Assumed: the share of its time that a vCPU works, and the hours until a worker has started.
_BUSY, _START_HOURS = 0.5, 0.1


@dataclass(frozen=True, slots=True)
class Dataflow:
    """What a build on Dataflow takes; machine_hours and dollars are of all workers together."""

    workers: int
    machine: str
    seconds: float
    machine_hours: float
    dollars: float
    dollars_per_month: float


def on_dataflow(
    tokens: int, token_bytes: int, rate: float, workers: int | None, blocks: float, shards: float
) -> Dataflow:
    """The cost by the formula of docs/cloud.md.

    rate: tokens per second and vCPU. workers: None for as many as finish in about an hour.
    """
    work = tokens / (3600 * rate * _BUSY)
    workers = workers or min(max(1, ceil(work / _VCPUS)), 1000)
    hours = work + workers * _VCPUS * _START_HOURS
    wall = work / (workers * _VCPUS) + _START_HOURS
    requests = (4 * blocks + 8 * shards) * _CLASS_A + 11 * blocks * _CLASS_B
    stored = tokens * token_bytes / 2**30 * _GIB_HOUR
    return Dataflow(
        workers=workers,
        machine=_MACHINE,
        seconds=wall * 3600,
        machine_hours=hours / _VCPUS,
        dollars=hours * _VCPU_HOUR + requests / 1000 + stored * wall,
        dollars_per_month=stored * 730,
    )
