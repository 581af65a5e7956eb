"""The steps of recipes, one per file, which pyproject.toml lists by name; here by class."""


def __getattr__(name: str) -> object:
    # Imported when first used, as each needs other libraries.
    from fineshards.curation.recipe import STEPS

    if name == "__all__":  # what help() shows
        return __dir__()
    if name == "UserFunction":
        from fineshards.curation.steps.user_function import UserFunction

        return UserFunction
    if name == "PerLanguage":
        from fineshards.curation.per_language import PerLanguage

        return PerLanguage
    for use, point in STEPS.own.items():
        if point.attr == name:
            return STEPS[use]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from fineshards.curation.recipe import STEPS

    return sorted(["PerLanguage", "UserFunction", *(point.attr for point in STEPS.own.values())])
