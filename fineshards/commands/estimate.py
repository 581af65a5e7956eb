"""What a build of an input will give, take and cost: the arithmetic, and the words for it.

`pipeline/estimate.py` measures. The formula for Dataflow is in docs/dataflow.md, with the sources
of its prices.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import ceil, inf, sqrt
from pathlib import Path

from fineshards.commands.wording import approximately, counted, duration
from fineshards.shards.job import Settings
from fineshards.shards.records import SourceFile

_MACHINE, _VCPUS = "n2-standard-4", 4
# Dollars per vCPU hour with 4 GB and 12.5 GB of disk, per thousand requests, per GiB hour stored.
_VCPU_HOUR = 0.056 + 4 * 0.003557 + 12.5 * 0.000054
_CLASS_A, _CLASS_B, _GIB_HOUR = 0.005, 0.0004, 0.000027397
# Assumed: the share of its time that a vCPU works, and the hours until a worker has started.
_BUSY, _START_HOURS = 0.5, 0.1


@dataclass(frozen=True, slots=True)
class Dataflow:
    """What a build on Dataflow takes.

    machine_hours: of all workers together. dollars: for the build. dollars_per_month: for keeping
    the dataset on Cloud Storage.
    """

    workers: int
    machine: str
    seconds: float
    machine_hours: float
    dollars: float
    dollars_per_month: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a build of the whole input gives and takes.

    exact: whether the probe was the whole input. tokens_range, documents_range: the lowest and the
    highest number that is likely; None if too little was read to tell. rejected: rows of the probe
    that cannot be encoded. seconds: of a build on this machine. memory_bytes: at most, at the peak.
    output_bytes: of the finished dataset. peak_bytes: on the disk just before the end, with
    checkpoints. probe_share: the probe's share of the tokens, 0 to 1. probe_seconds: of its build.
    """

    exact: bool
    tokens: int
    tokens_range: tuple[int, int] | None
    documents: int
    documents_range: tuple[int, int] | None
    text_bytes: int
    rejected: int
    seconds: float
    cores: int
    memory_bytes: int
    output_bytes: int
    peak_bytes: int
    probe_share: float
    probe_seconds: float
    dataflow: Dataflow


def scaled(
    parts: Iterable[tuple[str, int, int]], totals: Mapping[str, int]
) -> tuple[int, tuple[int, int] | None]:
    """The amount in the whole input, and its range of two standard errors.

    parts: (kind, bytes, amount) of each part of a probe. totals: bytes of each kind. The range is
    None if there is a single part of a kind, and more of the input.
    """
    kinds: dict[str, list[tuple[int, int]]] = {}
    for kind, size, found in parts:
        kinds.setdefault(kind, []).append((size, found))
    amount = variance = 0.0
    for kind, of_kind in kinds.items():
        size, found = (sum(numbers) for numbers in zip(*of_kind, strict=True))
        if not size:  # nothing but empty files
            continue
        amount += found / size * totals[kind]
        unseen = max(0.0, 1 - size / totals[kind])
        squares = sum((each - found / size * part) ** 2 for part, each in of_kind)
        count = len(of_kind)
        if unseen:
            spread = squares * count / (count - 1) if count > 1 else inf
            variance += (totals[kind] / size) ** 2 * spread * unseen
    if variance == inf:
        return round(amount), None
    error = 2 * sqrt(variance)
    return round(amount), (round(max(0.0, amount - error)), round(amount + error))


def on_dataflow(
    tokens: int,
    text_bytes: int,
    token_bytes: int,
    rate: float,
    workers: int | None,
    block_bytes: int,
    shard_tokens: int,
) -> Dataflow:
    """The cost by the formula of docs/dataflow.md.

    rate: tokens per second and vCPU. workers: None for as many as finish in about an hour.
    """
    work = tokens / (3600 * rate * _BUSY)
    workers = workers or min(max(1, ceil(work / _VCPUS)), 1000)
    hours = work + workers * _VCPUS * _START_HOURS
    wall = work / (workers * _VCPUS) + _START_HOURS
    blocks, shards = text_bytes / block_bytes, tokens / shard_tokens
    requests = (4 * blocks + 8 * shards) * _CLASS_A + 10 * blocks * _CLASS_B
    stored = tokens * token_bytes / 2**30 * _GIB_HOUR
    return Dataflow(
        workers=workers,
        machine=_MACHINE,
        seconds=wall * 3600,
        machine_hours=hours / _VCPUS,
        dollars=hours * _VCPU_HOUR + requests / 1000 + stored * wall,
        dollars_per_month=stored * 730,
    )


def describe_estimate(estimate: Estimate) -> list[str]:
    """The estimate in a few lines."""
    found, cloud = estimate, estimate.dataflow
    if found.exact:
        lines = ["the input is small: all of it was built"]
    else:
        lines = [f"from a probe of {found.probe_share:.1%} of the input"]
    for noun in ("tokens", "documents"):
        amount, likely = getattr(found, noun), getattr(found, f"{noun}_range")
        if found.exact:
            lines.append(f"  {noun:<10} {amount:,}")
            continue
        between = "from too few places to tell how precisely"
        if likely:
            between = f"likely {approximately(likely[0])} to {approximately(likely[1])}"
        lines.append(f"  {noun:<10} {approximately(amount)}, {between}")
    lines += [
        f"  time       {duration(found.seconds)} on this machine ({counted(found.cores, 'core')}), "
        "as busy as it is now",
        f"  memory     up to {found.memory_bytes / 1e9:,.1f} GB",
        f"  disk       {_size(found.output_bytes)} when finished, {_size(found.peak_bytes)} before",
        f"  Dataflow   {duration(cloud.seconds)} with {counted(cloud.workers, 'worker')} "
        f"({cloud.machine}): {cloud.machine_hours:,.1f} machine hours, ${cloud.dollars:,.2f};",
        f"             then ${cloud.dollars_per_month:,.2f} per month for the dataset",
    ]
    if found.rejected:
        lines.append(
            f"  bad rows   {found.rejected:,} in the probe; a build needs --max_bad_rows, or fails"
        )
    return lines


def _size(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def remember(estimate: Estimate, files: Sequence[SourceFile], settings: Settings) -> None:
    """Keeps an estimate for the summary of a build; does nothing where that is impossible."""
    with suppress(OSError, RuntimeError):
        path = _path(files, settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(estimate)))


def recall(files: Sequence[SourceFile], settings: Settings) -> str | None:
    """What an earlier `estimate` said of these files with this tokenizer, as a phrase."""
    with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
        found = json.loads(_path(files, settings).read_text())
        return f"{approximately(found['tokens'])} tokens, {duration(found['seconds'])}"
    return None


def _path(files: Sequence[SourceFile], settings: Settings) -> Path:
    what = [[asdict(file) for file in files], asdict(settings.columns), asdict(settings.tokenizer)]
    name = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "fineshards" / "estimates" / f"{name}.json"
