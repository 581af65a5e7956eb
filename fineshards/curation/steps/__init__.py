"""The steps of recipes, one per file, which pyproject.toml lists by name; here by class."""

from importlib import import_module

# In addition to those that recipes name.
_OTHERS = {"PerLanguage": "per_language", "UserFunction": "steps.user_function"}


def __getattr__(name: str) -> object:
    # Imported when first used, as each needs other libraries.
    from fineshards.curation.recipe import STEPS

    if name == "__all__":  # what help() shows
        return __dir__()
    if name in _OTHERS:
        return getattr(import_module(f"fineshards.curation.{_OTHERS[name]}"), name)
    for use, point in STEPS.own.items():
        if point.attr == name:
            return STEPS[use]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from fineshards.curation.recipe import STEPS

    return sorted([*_OTHERS, *(point.attr for point in STEPS.own.values())])
