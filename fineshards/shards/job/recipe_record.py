"""The steps of a recipe, as the job record and the manifest have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import json

from fineshards.errors import clipped, contrasted, contrasted_texts
from fineshards.shards.job.records import SourceFile
from fineshards.shards.record import Count, Record, canonical


class StepRecord(Record, frozen=True):
    """A step, with everything that it decides by.

    Args:
        use: The step's name, as a recipe gives it.
        parameters: All parameters by name, with those that the recipe leaves out.
        version: The version of the step's code.
        pins: What else decides, by name: versions, SHA-256 of files.
        keyed: Whether the step compares keys of all documents.
    """

    use: str
    parameters: dict[str, Any]
    version: Count
    pins: dict[str, str]
    keyed: bool = False

    @classmethod
    def of(
        cls,
        use: str,
        parameters: Mapping[str, Any],
        version: int,
        pins: Mapping[str, str],
        keyed: bool,
    ) -> StepRecord:
        """The record of a step; parameters must be values that JSON has."""
        return cls(
            use, json.decode(canonical(parameters)), version, dict(sorted(pins.items())), keyed
        )

    @property
    def rule(self) -> str:
        """The rule of a keyed step."""
        return str(self.parameters.get("rule", "earlier"))

    @property
    def verifies(self) -> bool:
        """Whether a keyed step compares texts before it drops one."""
        return self.keyed and self.parameters.get("verify", "none") != "none"

    @property
    def compares(self) -> bool:
        """Whether documents of the dataset are compared with each other."""
        return self.keyed and self.use != "seen_in"

    @property
    def score(self) -> str | None:
        """The name of the score that the step gives documents; None if it gives none."""
        return str(self.parameters.get("name")) if self.use == "score" else None


class RecipeRecord(Record, frozen=True):
    """The steps that a job's documents pass before they are tokenized.

    Args:
        steps: The steps, in order.
        golden_sha256: SHA-256, as hex, of what the steps make of the golden documents.
        keep_keys: Whether the keys of documents stay with the dataset, for appends.
        indexes: What `seen_in` looks documents up in, by the number of the step: source files, and
            files of keys of other datasets, whose format is `keys`.
    """

    steps: tuple[StepRecord, ...]
    golden_sha256: str
    keep_keys: bool = False
    indexes: tuple[tuple[Count, SourceFile], ...] = ()

    @property
    def keyed(self) -> tuple[int, ...]:
        """The numbers of the keyed steps."""
        return tuple(number for number, step in enumerate(self.steps) if step.keyed)

    @property
    def scores(self) -> dict[str, int]:
        """The scores that documents get, by name: the number of the step that gives each."""
        return {name: number for number, step in enumerate(self.steps) if (name := step.score)}

    def step_name(self, number: int) -> str:
        """A step's number, from 1, and name, as people see it: `3 gopher_quality`."""
        return f"{number + 1} {self.steps[number].use}"

    def differences(self, other: RecipeRecord) -> list[str]:
        """How another recipe differs, for an error message; empty if it does not."""
        mine, others = [each.use for each in self.steps], [each.use for each in other.steps]
        if mine != others:
            return [f"steps: {contrasted_texts(', '.join(mine), ', '.join(others))}"]
        found = []
        for number, (old, new) in enumerate(zip(self.steps, other.steps, strict=True)):
            for what, was, now in (
                ("parameters", old.parameters, new.parameters),
                ("pins", old.pins, new.pins),
            ):
                found += [
                    f"{what[:-1]} {clipped(name)} of step {clipped(self.step_name(number))}: "
                    f"{contrasted(was.get(name), now.get(name))}"
                    + " (put that file back to go on)"
                    * (what == "pins" and ":" in name)
                    for name in sorted({*was, *now})
                    if was.get(name) != now.get(name)
                ]
            if old.version != new.version:
                name = clipped(self.step_name(number))
                found.append(f"version of step {name}: was {old.version}, now {new.version}")
        if self.indexes != other.indexes:
            found.append("what seen_in looks documents up in: other files, or they have changed")
        if self.keep_keys != other.keep_keys:
            found.append(f"--keep_keys: was {self.keep_keys}, now {other.keep_keys}")
        if not found and self.golden_sha256 != other.golden_sha256:
            found.append(
                "what the steps make of the golden documents: was "
                f"{self.golden_sha256[:12]}, now {other.golden_sha256[:12]}"
            )
        return found
