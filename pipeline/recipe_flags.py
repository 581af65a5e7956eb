"""Recipes by path or name, and the flags that they give. Cheap to import."""

import os
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from fineshards.config import BuildConfig, refuse_decided
from fineshards.errors import UsageError, did_you_mean
from fineshards.flags import flags_of

# Recipes in the package.
_SHIPPED = files("fineshards.curation").joinpath("recipes")
# Flags that a recipe cannot give.
_NOT_IN_RECIPES = ("recipe", "append", "overwrite", "share")


def shipped_recipes() -> dict[str, str]:
    """The recipes that fineshards has: their content by name."""
    recipes = sorted(_SHIPPED.iterdir(), key=lambda recipe: recipe.name.removesuffix(".toml"))
    return {recipe.name.removesuffix(".toml"): recipe.read_text("utf-8") for recipe in recipes}


def read_recipe(place: str) -> str:
    """The content of a recipe, by path, gs:// or name; raises UsageError if there is none.

    What has several lines is the content itself.
    """
    if "\n" in place:
        return place
    if "://" in place:
        from fineshards.storage.open import open_storage

        folder, _, name = place.rpartition("/")
        return open_storage(folder).read(name).decode("utf-8-sig", "replace")
    if os.path.isfile(place):
        with open(place, encoding="utf-8-sig", errors="replace") as file:
            return file.read()
    shipped = shipped_recipes()
    if place not in shipped:
        raise UsageError(
            f"--recipe {place}: there is no such file, and fineshards has no recipe of that name; "
            f"it has {', '.join(shipped)}.{did_you_mean(place, shipped)}"
        )
    return shipped[place]


def recipe_shown(place: str, everything: bool) -> str:
    """A recipe as TOML: one by name or path as it is written, or the steps of a dataset.

    everything: of a dataset, also the parameters that have their default.

    Raises UsageError for a recipe that cannot be used, or a dataset without one.
    """
    if place.endswith(".toml") or not ("://" in place or os.path.isdir(place)):
        content = read_recipe(place)
        if place not in shipped_recipes():
            from fineshards.curation.recipe import parse_recipe

            parse_recipe(content, place)
        return content
    from fineshards.curation.recipe_text import recipe_text
    from fineshards.job_status.status import latest_job
    from fineshards.shards.job.manifest import Manifest
    from fineshards.storage.open import open_storage

    storage = open_storage(place)
    job = latest_job(storage, Manifest.load(storage))
    if job is None:
        raise UsageError(f"{storage.root} holds no fineshards job. Give its folder, or a recipe.")
    if job.settings.recipe is None:
        raise UsageError(f"{storage.root} was built without steps: there is no recipe to show.")
    return recipe_text(job.settings.recipe, f"the steps of {storage.root}", everything)


def shown_place(place: str) -> str:
    """What messages call a recipe."""
    return "the recipe" if "\n" in place else place


def flags_of_recipes() -> list[str]:
    """The flags of `build` that a recipe can give."""
    return [flag.name for flag in flags_of(BuildConfig) if flag.name not in _NOT_IN_RECIPES]


def with_recipe(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of flags, with those of the recipe that they name, if they name one.

    What is given itself wins. Raises UsageError for a recipe that gives anything but flags.
    """
    if given.get("append"):
        refuse_decided(given)  # also where a value is the default, which a configuration has anyway
    if not given.get("recipe"):
        return dict(given)
    place = os.path.expanduser(os.fspath(given["recipe"]))
    from fineshards.curation.recipe import read_tables

    # Without making the steps, whose libraries do not survive a fork.
    build, place = read_tables(read_recipe(place), shown_place(place))[0], shown_place(place)
    allowed = flags_of_recipes()
    for name in build:
        if name not in allowed:
            raise UsageError(
                f"{place}: build.{name} is not a flag of fineshards build that a recipe can give."
                f"{did_you_mean(name, allowed)}"
            )
    both = {"test_fraction", "test_shards"}
    overridden = both if both & given.keys() else set()
    if {"input", "dataset"} & given.keys():
        overridden |= {"input", "dataset", "dataset_config", "dataset_revision"}
    return {name: value for name, value in build.items() if name not in overridden} | dict(given)
