"""The plan of a mixture: what a training run will draw from each source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What a training run draws from one source.

    Attributes:
        name: The source's name in the mixture.
        weight: Its share of the samples at the start, from 0 to 1.
        samples: Samples drawn from it.
        tokens: Tokens in these samples.
        epochs: Passes over its samples.
        first_repeated_step: The first step with a sample that was drawn before; None if no sample
            is repeated.
    """

    name: str
    weight: float
    samples: int
    tokens: int
    epochs: float
    first_repeated_step: int | None


@dataclass(frozen=True, slots=True)
class MixturePlan:
    """What a run of `samples` samples draws from each source, in order. As text it is a table."""

    sources: tuple[SourcePlan, ...]
    samples: int
    batch_size: int

    def __str__(self) -> str:
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
            for each in self.sources
        ]
        steps = f"{self.samples / self.batch_size:,.15g} steps"
        tokens = sum(each.tokens for each in self.sources)
        rows.append((steps, "", f"{self.samples:,}", f"{tokens:,}", "", ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if column else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )
