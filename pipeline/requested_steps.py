"""The steps that a command asks for, and their record."""

import os
from collections.abc import Iterable, Iterator

from fineshards.config import BuildConfig
from fineshards.curation.curator import describe, rewrites
from fineshards.curation.per_language import PerLanguage
from fineshards.curation.recipe import NamedStep, make_step, named_in_errors, parse_recipe
from fineshards.curation.step import Scorer
from fineshards.curation.steps.other_datasets import SeenIn
from fineshards.errors import UsageError
from fineshards.flags import local_path
from fineshards.pipeline.recipe_flags import read_recipe, shown_place
from fineshards.shards import record
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import RecipeRecord, StepRecord
from fineshards.shards.layout import keys_name
from fineshards.sources.files import find_files
from fineshards.storage.open import open_storage

# Parameters of keyed steps that decide no key.
_NO_KEYS = ("within", "verify", "threshold", "candidates")


def steps_of(config: BuildConfig) -> list[NamedStep]:
    """All steps of a job: --where, those of the recipe, --dedup, --decontaminate.

    Raises UsageError for a step that cannot be made.
    """
    if not config.curates:
        return []
    steps = []
    if config.where is not None:
        steps.append(make_step("where", {"sql": config.where}, "--where"))
    if config.recipe is not None:
        place = os.fspath(config.recipe)
        steps += parse_recipe(read_recipe(place), shown_place(place)).steps
    if config.dedup is not None:
        steps.append(make_step(config.dedup, {}, "--dedup"))
    if config.decontaminate is not None:
        patterns = {"files": [config.decontaminate]}
        steps.append(make_step("decontaminate", patterns, "--decontaminate"))
    if config.chat_template is not None:
        for named in steps:
            if rewrites(named.step):
                raise UsageError(
                    f"{named.where} rewrites texts, and with --chat_template a text is the JSON "
                    "of a conversation, which it may break. Leave the step out, or rewrite the "
                    "messages before the build."
                )
    return steps


def columns_of_steps(steps: Iterable[NamedStep]) -> tuple[str, ...]:
    """The columns of the input that steps read, in addition to the text.

    Raises UsageError for a score that no step can read, or whose name is taken.
    """
    columns: set[str] = set()
    scores: dict[str, str] = {}
    for named in steps:
        where, step = named.where, named.step
        scored = {column for column in step.columns if column.lower() in scores}
        if wrong := sorted(scored.difference(step.reads_scores)):
            raise UsageError(
                f"{where} reads {', '.join(wrong)}, which is a score. Only where, and the "
                "language_column of filters, can read scores; a rewrite takes a column of the "
                "input. Give the score another name if the column is meant."
            )
        label = step.language_column if isinstance(step, PerLanguage) else None
        if label is not None and scores.get(label.lower()) == "double":
            raise UsageError(
                f"{where}: language_column is {label!r}, a score that is a number. Name "
                "one that is a label."
            )
        columns |= set(step.columns) - scored
        if isinstance(step, Scorer):
            if step.name in {*scores, *(column.lower() for column in columns)}:
                raise UsageError(
                    f"{where}: name is {step.name!r}, which an earlier step gives, or reads from "
                    "the input. Choose another name, or put the score before the reader."
                )
            scores[step.name] = str(step.score_type)
    return tuple(sorted(columns))


def describe_steps(
    steps: list[NamedStep], keep_keys: bool, curate_test: bool
) -> RecipeRecord | None:
    """The record of a job's steps; None if it has none."""
    if not steps:
        return None
    recipe = describe(steps, keep_keys, tuple(_indexes(steps)), curate_test)
    if keep_keys and not any(step.compares for step in recipe.steps):
        raise UsageError("--keep_keys goes with deduplication, and no step compares documents.")
    return recipe


def _indexes(steps: Iterable[NamedStep]) -> Iterator[tuple[int, SourceFile]]:
    """What each step `seen_in` looks documents up in, numbered."""
    for number, named in enumerate(steps):
        if isinstance(step := named.step, SeenIn):
            with named_in_errors(named.where):
                keys = [file for folder in step.datasets for file in _keys_in(folder, step)]
                files = [*keys, *find_files([local_path(pattern) for pattern in step.files])]
            for index, file in enumerate(files):
                yield number, record.replace(file, index=index)


def _of_keys(step: StepRecord) -> StepRecord:
    """The record of a step without the parameters that decide no key."""
    left = {name: value for name, value in step.parameters.items() if name not in _NO_KEYS}
    return StepRecord.of(step.use, left, step.version, step.pins, step.keyed)


def _keys_in(folder: str, step: SeenIn) -> Iterator[SourceFile]:
    """The files of a dataset's keys; raises UsageError if it has none of that kind."""
    storage = open_storage(folder)
    manifest = Manifest.load_finished(storage)
    recipe, wanted = manifest.settings.recipe, _of_keys(step.inner.record())
    numbers = [
        number
        for number, record in enumerate(recipe.steps if recipe and recipe.keep_keys else ())
        if _of_keys(record) == wanted
    ]
    if not numbers:
        raise UsageError(
            f"{storage.root} has no keys of a step {wanted.use} with the parameters "
            f"{wanted.parameters}. Build it with that step and --keep_keys, or give its source "
            "files as files."
        )
    metadata = {file.name: file for file in manifest.metadata}
    for file in manifest.files:
        record = metadata.get(keys_name(file.index, numbers[0]))
        if record is not None:
            path, identity = storage.path(record.name), f"crc32c:{record.crc32c}"
            yield SourceFile(0, path, record.bytes, identity, "keys", "none")
