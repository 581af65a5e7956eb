"""What a recipe does to a sample of the input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fineshards.config import BuildConfig
from fineshards.errors import UsageError
from fineshards.pipeline.sample import build_sample
from fineshards.storage.open import open_storage
from fineshards.storage.temporary import scratch_folder
from fineshards.worker.fresh_interpreter import call_in_fresh_interpreter

if TYPE_CHECKING:
    from fineshards.inspection.dropped import DroppedDocuments
    from fineshards.inspection.stats import Stats


@dataclass(frozen=True, slots=True)
class Check:
    """What a recipe does to a sample of the input.

    sample_share: the sample's share of the input, 0 to 1. stats: of the sample. dropped: for each
    step, some of the documents that it dropped or cut.
    """

    sample_share: float
    stats: Stats
    dropped: list[DroppedDocuments]

    def __str__(self) -> str:
        from fineshards.inspection.dropped import describe_dropped

        examples = ["\n".join(describe_dropped(each)) for each in self.dropped if each.shown]
        return "\n\n".join([str(self.stats), *examples])


def check(config: BuildConfig, examples: int) -> Check:
    """Builds a sample in a temporary folder; returns its statistics, and examples of each step."""
    if not config.curates:
        raise UsageError("give a recipe, or --where, --dedup or --decontaminate.")
    with scratch_folder() as folder:
        return call_in_fresh_interpreter(_check, config, examples, folder)


def _check(config: BuildConfig, examples: int, folder: str) -> Check:
    manifest, parts, part = build_sample(replace(config, statistics=True), folder)
    # Steps load libraries, which the build's workers must not find here.
    from fineshards.inspection.dropped import show_dropped
    from fineshards.inspection.stats import stats
    from fineshards.shards.dataset_files import Dataset

    dataset, recipe = Dataset.open(open_storage(folder)), manifest.settings.recipe
    steps = range(1, 1 + len(recipe.steps if recipe else ()))
    dropped = [show_dropped(dataset, None, step, None, examples) for step in steps]
    more = ""
    if parts and recipe and recipe.keyed:
        more = ", of which the whole has more duplicates"
    name = f"a build of {part:.2%} of the input{more}"
    return Check(part, replace(stats(folder), folder=name), dropped)
