"""Drops documents that other datasets, or other files, have already."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fineshards.curation.batch import Batch
from fineshards.curation.recipe import NamedStep, make_step
from fineshards.curation.step import Keyed, KeyedSpans, Keys
from fineshards.errors import UsageError


@dataclass(frozen=True)
class SeenIn(Keyed, name="seen_in"):
    """Drops documents that have a key of a document in other datasets or files.

    Documents of the job are not compared with each other, and keys decide alone. The texts of
    `files` are taken as they are: the steps before this one are not applied to them. An index of
    other documents comes before all documents of the job, so a witness is named by the number of
    the index and its row there.

    Args:
        datasets: Folders of datasets that fineshards built with `--keep_keys` and the same keyed
            step. Their keys are read, and no texts.
        files: Files of documents, as `--input` takes them.
        by: What is compared: exact (the same text) or minhash (nearly the same).
        options: Parameters of that step, as a table.

    Example:
        >>> step = SeenIn(files=("old/*.parquet",), options={"by": "url"})
        >>> step.columns
        ('url',)
    """

    datasets: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    by: Literal["exact", "minhash"] = "exact"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.datasets and not self.files:
            raise UsageError("give datasets or files, lists of what documents are looked up in.")
        if getattr(self.inner.step, "rule", "earlier") != "earlier":
            raise UsageError('the rule must be "earlier": indexes are not joined into components.')
        if self.options.get("within") == "file":
            raise UsageError('within must not be "file": other datasets have other files.')
        if self.options.get("verify", "none") != "none":
            raise UsageError('verify must be "none": texts of other datasets are not compared.')

    @cached_property
    def inner(self) -> NamedStep:
        """The step whose keys are compared."""
        # Keys decide alone.
        verify = {"verify": "none"} if self.by == "minhash" else {}
        return make_step(self.by, verify | dict(self.options), f"by = {self.by!r}")

    @property
    def _keyed(self) -> Keyed:
        step = self.inner.step
        assert isinstance(step, Keyed)
        assert not isinstance(step, KeyedSpans)
        return step

    @property
    def key_bits(self) -> int:
        return self._keyed.key_bits

    @property
    def columns(self) -> tuple[str, ...]:
        return self._keyed.columns

    def pins(self) -> dict[str, str]:
        return self._keyed.pins()

    def keys(self, batch: Batch) -> Keys:
        return self._keyed.keys(batch)
