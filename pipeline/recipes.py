"""The steps that a command asks for: a recipe by path or name, and the short forms of flags."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fineshards.config import BuildConfig, flags
from fineshards.errors import UsageError
from fineshards.suggestions import did_you_mean

if TYPE_CHECKING:
    from fineshards.curation.recipe import NamedStep, Recipe
    from fineshards.curation.seen_in import SeenIn
    from fineshards.shards.recipes import RecipeRecord
    from fineshards.shards.records import SourceFile

# Recipes in the package.
_SHIPPED = files("fineshards.curation").joinpath("recipes")
# Flags that a recipe cannot give.
_NOT_IN_RECIPES = ("recipe", "append", "overwrite")


def shipped_recipes() -> dict[str, str]:
    """The recipes that fineshards has: their content by name."""
    found = sorted(_SHIPPED.iterdir(), key=lambda each: each.name)
    return {each.name.removesuffix(".toml"): each.read_text("utf-8") for each in found}


def read_recipe(place: str) -> str:
    """The content of a recipe, by path, gs:// or name; raises UsageError if there is none."""
    if "://" in place:
        from fineshards.storage.base import open_storage

        folder, _, name = place.rpartition("/")
        return open_storage(folder).read(name).decode("utf-8", "replace")
    if os.path.isfile(place):
        with open(place, encoding="utf-8", errors="replace") as file:
            return file.read()
    shipped = shipped_recipes()
    if place not in shipped:
        raise UsageError(
            f"--recipe {place}: there is no such file, and fineshards has no recipe of that name; "
            f"it has {', '.join(shipped)}.{did_you_mean(place, shipped)}"
        )
    return shipped[place]


def recipe_shown(place: str, everything: bool = False) -> str:
    """A recipe as TOML: one by name or path as it is written, or the steps of a dataset.

    everything: of a dataset, also the parameters that have their default.

    Raises UsageError for a recipe that cannot be used, or a dataset without one.
    """
    if place.endswith(".toml") or not _is_folder(place):
        content = read_recipe(place)
        if place not in shipped_recipes():
            from fineshards.curation.recipe import parse_recipe

            parse_recipe(content, place)
        return content
    from fineshards.commands.status import latest_job
    from fineshards.curation.recipe_text import recipe_text
    from fineshards.storage.base import open_storage

    storage = open_storage(place)
    job = latest_job(storage)
    if job is None:
        raise UsageError(f"{storage.root} holds no fineshards job. Give its folder, or a recipe.")
    if job.settings.recipe is None:
        raise UsageError(f"{storage.root} was built without steps: there is no recipe to show.")
    return recipe_text(job.settings.recipe, f"the steps of {storage.root}", everything)


def _is_folder(place: str) -> bool:
    return "://" in place or os.path.isdir(place)


def load_recipe(place: str) -> Recipe:
    """A recipe by path or name; raises UsageError for anything that it may not hold."""
    from fineshards.curation.recipe import parse_recipe

    return parse_recipe(read_recipe(place), place)


def flags_of_recipes() -> list[str]:
    """The flags of `build` that a recipe can give."""
    return [flag.name for flag in flags() if flag.name not in _NOT_IN_RECIPES]


def with_recipe(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of flags, with those of the recipe that they name, if they name one.

    What is given itself wins. Raises UsageError for a recipe that gives anything but flags.
    """
    if not given.get("recipe"):
        return dict(given)
    place = os.path.expanduser(os.fspath(given["recipe"]))
    build = load_recipe(place).build
    known = flags_of_recipes()
    for name in build:
        if name not in known:
            raise UsageError(
                f"{place}: build.{name} is not a flag of fineshards build that a recipe can give."
                f"{did_you_mean(name, known)}"
            )
    both = {"test_fraction", "test_shards"}
    overridden = both if both & given.keys() else set()
    if {"input", "dataset"} & given.keys():
        overridden |= {"input", "dataset", "dataset_config", "dataset_revision"}
    return {name: value for name, value in build.items() if name not in overridden} | dict(given)


def steps_of(config: BuildConfig) -> list[NamedStep]:
    """All steps of a job: --where, those of the recipe, --dedup, --decontaminate.

    Raises UsageError for a step that cannot be made.
    """
    if not config.curates:
        return []
    from fineshards.curation.recipe import make_step

    steps = []
    if config.where is not None:
        steps.append(make_step("where", {"sql": config.where}, "--where"))
    if config.recipe is not None:
        steps += load_recipe(os.fspath(config.recipe)).steps
    if config.dedup is not None:
        steps.append(make_step(config.dedup, {}, "--dedup"))
    if config.decontaminate is not None:
        patterns = {"files": [config.decontaminate]}
        steps.append(make_step("decontaminate", patterns, "--decontaminate"))
    return steps


def columns_of_steps(steps: Iterable[NamedStep]) -> tuple[str, ...]:
    """The columns that steps read, beside the text."""
    return tuple(sorted({column for each in steps for column in each.step.columns}))


def describe_steps(steps: list[NamedStep], keep_keys: bool) -> RecipeRecord | None:
    """The record of a job's steps; None if it has none."""
    if not steps:
        return None
    from fineshards.curation.curator import describe

    recipe = replace(describe(steps), keep_keys=keep_keys, indexes=tuple(_indexes(steps)))
    if keep_keys and not any(step.compares for step in recipe.steps):
        raise UsageError("--keep_keys goes with deduplication, and no step compares documents.")
    return recipe


def _indexes(steps: Iterable[NamedStep]) -> Iterator[tuple[int, SourceFile]]:
    """What each step `seen_in` looks documents up in, numbered."""
    from fineshards.curation.seen_in import SeenIn
    from fineshards.sources.finding import find_files

    for number, each in enumerate(steps):
        if isinstance(each.step, SeenIn):
            keys = [file for folder in each.step.datasets for file in _keys_in(folder, each.step)]
            files = [*keys, *(find_files(each.step.files) if each.step.files else ())]
            for index, file in enumerate(files):
                yield number, replace(file, index=index)


def _keys_in(folder: str, step: SeenIn) -> Iterator[SourceFile]:
    """The files of a dataset's keys; raises UsageError if it has none of that kind."""
    from fineshards.shards.curated_files import keys_name
    from fineshards.shards.manifest import Manifest
    from fineshards.shards.records import SourceFile
    from fineshards.storage.base import open_storage

    storage = open_storage(folder)
    manifest = Manifest.load_finished(storage)
    recipe, wanted = manifest.settings.recipe, step.inner.record()
    found = [
        number
        for number, record in enumerate(recipe.steps if recipe and recipe.keep_keys else ())
        if record == wanted
    ]
    if not found:
        raise UsageError(
            f"{storage.root} has no keys of a step {wanted.use} with the parameters "
            f"{wanted.parameters}. Build it with that step and --keep_keys, or give its source "
            "files as files."
        )
    metadata = {file.name: file for file in manifest.metadata}
    for file in manifest.files:
        record = metadata.get(keys_name(file.index, found[0]))
        if record is not None:
            path, identity = storage.path(record.name), f"crc32c:{record.crc32c}"
            yield SourceFile(0, path, record.bytes, identity, "keys", "none")
