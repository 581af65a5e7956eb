"""What a mixture will draw in a training run, as records and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What one source gives.

    weight: its share of the samples at the start. epochs: passes over its samples.
    first_repeated_step: the first step with a sample that was drawn before; None if none is.
    """

    name: str
    weight: float
    samples: int
    tokens: int
    epochs: float
    first_repeated_step: int | None


def table(plan: Sequence[SourcePlan], samples: int, batch_size: int) -> str:
    """The plan of so many samples as text."""
    rows = [("source", "weight", "samples", "tokens", "epochs", "first repeated step")]
    rows += [
        (
            each.name,
            f"{each.weight:.6g}",
            f"{each.samples:,}",
            f"{each.tokens:,}",
            f"{each.epochs:.3f}",
            "-" if each.first_repeated_step is None else f"{each.first_repeated_step:,}",
        )
        for each in plan
    ]
    tokens = sum(each.tokens for each in plan)
    rows.append((f"{samples / batch_size:,.15g} steps", "", f"{samples:,}", f"{tokens:,}", "", ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
