"""What a build of an input will give, take and cost: the arithmetic, and the words for it.

`pipeline/probe.py` measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

from fineshards.inspection.dataflow_cost import Dataflow
from fineshards.shards.job.records import SourceFile
from fineshards.wording import approximately, counted, duration, share, size

# That the hub answers in five minutes: without a token, and with that of a free account.
_HUB_REQUESTS, _HUB_REQUESTS_WITH_TOKEN = 3000, 5000
_GOLDEN_RATIO = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class StepShare:
    """Documents of a probe that reach a step, and that it keeps. name: with its number, from 1."""

    name: str
    documents: int
    kept: int


@dataclass(frozen=True, slots=True)
class Curation:
    """What the steps of a recipe do to a probe.

    steps: those that judge documents one by one. keyed: the names of the others, which are left
    out. bytes_per_second: text of the input that a core takes through the steps.
    """

    steps: tuple[StepShare, ...]
    keyed: tuple[str, ...]
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a build of the whole input gives and takes.

    exact: whether the probe was the whole input. tokens_range: the lowest and the highest number
    that is likely; None if too little was read to tell. rejected: rows of the probe that cannot be
    encoded. seconds: of a build on this machine. memory_bytes: at most, at the peak. output_bytes:
    of the finished dataset. peak_bytes: on the disk at most, with checkpoints.
    probe_share: the probe's share of the tokens, 0 to 1. hub: what the hub's limit means for it.
    curation: of a build with a recipe. Without its keyed steps tokens are an upper bound.
    """

    exact: bool
    tokens: int
    tokens_range: tuple[int, int] | None
    documents: int
    rejected: int
    seconds: float
    cores: int
    memory_bytes: int
    output_bytes: int
    peak_bytes: int
    probe_share: float
    dataflow: Dataflow
    hub: str | None = None
    curation: Curation | None = None

    def __repr__(self) -> str:
        about = "" if self.exact else "about "
        return (
            f"Estimate: {about}{self.tokens:,} tokens of {self.documents:,} documents, "
            f"{size(self.output_bytes)}, {duration(self.seconds)} on {counted(self.cores, 'core')}"
        )


def hub_limit(files: Iterable[SourceFile]) -> str | None:
    """How long the hub's limit alone makes a build take; None if the files are within it.

    Each file takes a request at least. Source: https://huggingface.co/docs/hub/rate-limits
    """
    count = sum(file.path.startswith("hf://") for file in files)
    if count <= _HUB_REQUESTS:
        return None
    without, with_token = (
        duration(count / requests * 300) for requests in (_HUB_REQUESTS, _HUB_REQUESTS_WITH_TOKEN)
    )
    return (
        f"{count:,} files take at least {without} at the hub's limit of {_HUB_REQUESTS:,} requests "
        f"in 5 minutes from an address, {with_token} with a token (HF_TOKEN)"
    )


def spread(count: int) -> list[int]:
    """The numbers below `count`, in an order in which every prefix is spread evenly over them."""
    return sorted(range(count), key=lambda number: number * _GOLDEN_RATIO % 1)


def scaled(
    parts: Sequence[tuple[str, float, int]], totals: Mapping[str, int]
) -> tuple[int, tuple[int, int] | None]:
    """The amount in the whole input, and its range of two standard errors.

    parts: (kind, bytes, amount) of each part of a probe. totals: bytes of each kind. The range is
    None if there is a single part of a kind, and more of the input.
    """
    amount = variance = 0.0
    for kind, total in totals.items():
        of_kind = [(size, found) for name, size, found in parts if name == kind]
        size = sum(size for size, _ in of_kind)
        if not size:  # nothing but empty files
            continue
        ratio = sum(found for _, found in of_kind) / size
        amount += ratio * total
        unseen = max(0.0, 1 - size / total)
        if unseen:
            count, squares = len(of_kind), sum((f - ratio * s) ** 2 for s, f in of_kind)
            spread = squares * count / (count - 1) if count > 1 else inf
            variance += (total / size) ** 2 * spread * unseen
    if variance == inf:
        return round(amount), None
    error = 2 * sqrt(variance)
    return round(amount), (round(max(0.0, amount - error)), round(amount + error))


def describe_estimate(found: Estimate) -> list[str]:
    """The estimate in a few lines."""
    cloud, about = found.dataflow, "{:,}".format if found.exact else approximately
    likely = ", from too few places to tell how precisely"
    at_most = "up to " if found.curation and found.curation.keyed else ""
    if found.tokens_range:
        likely = ", likely {} to {}".format(*map(approximately, found.tokens_range))
    lines = [
        f"from a probe of {100 * found.probe_share:.2f} % of the input",
        f"  tokens     {at_most}{about(found.tokens)}{'' if found.exact else likely}",
        f"  documents  {at_most}{about(found.documents)}",
        f"  time       {duration(found.seconds)} on this machine ({counted(found.cores, 'core')}), "
        "as busy as it is now",
        f"  memory     up to {size(found.memory_bytes)}",
        f"  disk       {size(found.output_bytes)} when finished, {size(found.peak_bytes)} before",
        f"  Dataflow   {duration(cloud.seconds)} with {counted(cloud.workers, 'worker')} "
        f"({cloud.machine}): {cloud.machine_hours:,.1f} machine hours, ${cloud.dollars:,.2f};",
        f"             then ${cloud.dollars_per_month:,.2f} per month for the dataset",
    ]
    if found.hub is not None:
        lines.append(f"  hub        {found.hub}")
    if found.curation is not None:
        lines += _curation_lines(found.curation)
    if found.rejected:
        lines.append(
            f"  bad rows   {found.rejected:,} in the probe; a build needs --max_bad_rows, or fails"
        )
    return lines


def _curation_lines(found: Curation) -> Iterator[str]:
    if found.steps:
        first, last = found.steps[0], found.steps[-1]
        yield (
            f"  recipe     keeps {share(last.kept, first.documents)} of the documents, at "
            f"{size(round(found.bytes_per_second))} of text per second and core"
        )
    widest = max((len(step.name) for step in found.steps), default=0)
    for step in found.steps:
        yield f"             {step.name:<{widest}}  keeps {share(step.kept, step.documents)}"
    if found.keyed:
        names = ", ".join(found.keyed)
        yield f"  left out   {names}: a probe cannot show what is equal in the whole input, so"
        yield "             tokens are an upper bound, and the time is without comparisons"
