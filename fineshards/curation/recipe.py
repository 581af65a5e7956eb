"""Recipes: which steps documents pass, in which order, with which parameters.

A recipe is a TOML file:

    [build]                     # optional: flags of `fineshards build`
    tokenizer = "cl100k_base"

    [[steps]]
    use = "gopher_quality"      # the name of a step, or package.module:function
    min_doc_words = 30          # its parameters; `false` switches a rule off

docs/recipe.schema.json describes it.
"""

import inspect
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, replace
from typing import Any

from fineshards.curation.parameters import check_effects, idle, parameters_of_class
from fineshards.curation.per_language import PerLanguage
from fineshards.curation.step import Judge, Keyed, Scorer, Step
from fineshards.errors import FineshardsError, UsageError, did_you_mean
from fineshards.plugin_registry import Plugins
from fineshards.shards.job.settings import StepRecord

_TABLES = ("description", "build", "steps")
# What filters and rewrites take in addition to their own parameters.
PER_LANGUAGE, _COLUMN, _LABEL = "per_language", "language_column", "label"
# In recipes of the package: what is the user's, such as the path of a model.
_PLACEHOLDER = "REPLACE-ME"

# By the name that follows `use =` in a recipe.
STEPS: Plugins[type[Step]] = Plugins("steps")


@contextmanager
def named_in_errors(where: str) -> Iterator[None]:
    """Puts where a step stands before the messages of errors."""
    try:
        yield
    except FineshardsError as error:
        raise type(error)(f"{where}: {error}") from error


@dataclass(frozen=True, slots=True)
class NamedStep:
    """A step, and the name that a recipe uses for it. where: it stands, for messages."""

    use: str
    step: Step
    where: str = field(default="", compare=False)

    def record(self) -> StepRecord:
        """All that the step decides by; raises FineshardsError if something of it is missing."""
        step, package = self.step, None if ":" in self.use else STEPS.package(self.use)
        with named_in_errors(self.where):
            pins = step.pins() | ({"package": package} if package else {})
        return StepRecord.of(
            self.use, parameters_of(step), step.VERSION, pins, isinstance(step, Keyed)
        )


@dataclass(frozen=True, slots=True)
class Recipe:
    """What documents pass before they are tokenized, as a recipe file has it.

    Args:
        steps: In order: steps of `fineshards.curation.steps`, and functions of a module that
            workers can import, as `UserFunction(function, columns, parameters, batch)` if need be.
        build: Values of options of `fineshards.build`, by name. What is given itself wins.
        description: A line for people.

    Raises:
        UsageError: For anything else, or a function that workers cannot import.

    Example:
        >>> import fineshards
        >>> from fineshards.curation.steps import Length, MinHash
        >>> recipe = fineshards.Recipe([Length(min_chars=500), MinHash(threshold=0.7)])
        >>> manifest = fineshards.build(
        ...     input="samples/debian_text.parquet", output=folder, recipe=recipe
        ... )
        >>> manifest.totals["documents"]
        907
    """

    steps: Sequence[NamedStep]
    build: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.steps, Iterable) or not isinstance(self.build, Mapping):
            raise UsageError("a Recipe takes a list of steps, and a dict of options of build.")
        steps = [
            replace(named, where=named.where or f"step {number} ({named.use})")
            for number, named in enumerate(map(named_step, self.steps), 1)
        ]
        object.__setattr__(self, "steps", tuple(steps))


def named_step(step: object) -> NamedStep:
    """A step with its name; raises UsageError for anything else."""
    if isinstance(step, NamedStep):
        return step
    use = getattr(step, "use", getattr(step, "NAME", ""))
    if isinstance(step, Step) and (":" in use or use in STEPS):
        _check_effects(step)
        return NamedStep(use, step)
    if not inspect.isfunction(step):
        raise UsageError(
            f"{step!r} is not a step: give a function, one of fineshards.curation.steps, or one "
            "that an installed package names; UserFunction takes a function with parameters."
        )
    from fineshards.curation.steps.user_function import UserFunction

    return named_step(UserFunction(step))


def parse_recipe(content: str, path: str) -> Recipe:
    """Reads a recipe; raises UsageError, with the path, for anything that it may not hold."""
    build, steps, description = read_tables(content, path)
    named = []
    for number, parameters in enumerate(steps, 1):
        use = parameters.pop("use", None)
        if not isinstance(use, str):
            raise UsageError(f'{path}, step {number}: give the step\'s name, use = "NAME".')
        where = f"{path}, step {number} ({use})"
        for name, value in parameters.items():
            if _PLACEHOLDER in (value.values() if isinstance(value, dict) else [value]):
                raise UsageError(
                    f"{where}: {name} still says {_PLACEHOLDER}. Write your own value there, in a "
                    "copy of the recipe, as fineshards recipe show prints it."
                )
        named.append(make_step(use, parameters, where))
    return Recipe(tuple(named), build, description)


def read_tables(content: str, path: str) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """The tables of a recipe, without making its steps: build, steps, and the description."""
    try:
        tables = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}.") from error
    for name in tables:
        if name not in _TABLES:
            raise UsageError(
                f"{path}: unknown key {name!r}; a recipe has {', '.join(_TABLES)}."
                f"{did_you_mean(name, _TABLES)}"
            )
    steps, build = tables.get("steps", []), tables.get("build", {})
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise UsageError(f"{path}: steps must be tables, each begun by a line [[steps]].")
    if not isinstance(build, dict):
        raise UsageError(f"{path}: build must be a table, begun by a line [build].")
    return build, steps, str(tables.get("description", ""))


def make_step(use: str, parameters: Mapping[str, Any], where: str) -> NamedStep:
    """The step of a name with the given parameters, and defaults for the others.

    where: begins the message of an error.

    Raises UsageError for an unknown step or parameter, or for a value that it cannot have.
    """
    with named_in_errors(where):
        step = _make(use, parameters)
        _check_effects(step)
    return NamedStep(use, step, where)


def load_steps(records: Iterable[StepRecord]) -> list[NamedStep]:
    """The steps of a job's record, which may hold what a recipe is now refused for."""
    named = []
    for number, record in enumerate(records, 1):
        package = f", of {record.pins['package']}" if "package" in record.pins else ""
        where = f"step {number} ({record.use}) of the job{package}"
        with named_in_errors(where):
            named.append(NamedStep(record.use, _make(record.use, record.parameters), where))
    return named


def parameters_of(step: Step) -> dict[str, Any]:
    """All parameters of a step, as values of JSON."""
    if isinstance(step, PerLanguage):
        return _parameters_per_language(step)
    values = {name: getattr(step, name) for name in parameters_of_class(type(step))}
    if "parameters" in values:
        # Other people's code. What it is called stands in the recipe's `use`.
        own = {name: values.get(name) for name in ("columns", "batch")}
        given = {name: value for name, value in own.items() if value is not None}
        values = given | dict(values["parameters"])
    return {name: _plain(value) for name, value in values.items()}


def _parameters_per_language(step: PerLanguage) -> dict[str, Any]:
    """The tables of languages have what differs, so that records of many of them stay small."""
    others = parameters_of(step.others)
    tables = [
        {_LABEL: label}
        | {
            name: value
            for name, value in parameters_of(one).items()
            # Without the language, it would be the label.
            if others[name] != value or (name == "language" and name not in idle(one))
        }
        for label, one in step.steps.items()
    ]
    return others | {_COLUMN: step.language_column, PER_LANGUAGE: tables}


def default_parameters(use: str) -> dict[str, Any]:
    """The defaults of the parameters of a step, as values of JSON; those without one are left out.

    Empty for steps that are other people's code. Raises UsageError if there is no such step.
    """
    if ":" in use:
        return {}
    defaults: dict[str, Any] = {}
    for name, parameter in parameters_of_class(step_class(use)).items():
        factory = parameter.default_factory
        default = parameter.default if factory is MISSING else factory()
        if default is not MISSING:
            defaults[name] = _plain(default)
    return defaults


def step_class(use: str) -> type[Step]:
    """The class of a step that a recipe can name; raises UsageError if there is none."""
    if use not in STEPS:
        raise UsageError(
            f"there is no step {use!r}. fineshards recipe steps lists them; a function of your own "
            f"is package.module:function.{did_you_mean(use, STEPS)}"
        )
    return STEPS[use]


def _check_effects(step: Step) -> None:
    """Raises UsageError for a parameter that has no effect for any language with its value."""
    others: Any = step.others if isinstance(step, PerLanguage) else step
    names = idle_in_all = {*parameters_of_class(type(others))}
    for label, one in step.steps.items() if isinstance(step, PerLanguage) else ():
        own = {name for name in names if getattr(one, name) != getattr(others, name)}
        with named_in_errors(f"{PER_LANGUAGE} ({label})"):
            check_effects(one, own)
        idle_in_all = idle_in_all & (own | {*idle(one)})
    check_effects(others, idle_in_all)


def _make(use: str, parameters: Mapping[str, Any]) -> Step:
    if ":" in use:
        from fineshards.curation.steps.user_function import UserFunction

        # All other parameters are those of other people's code.
        others = dict(parameters)
        columns, batch = others.pop("columns", ()), others.pop("batch", None)
        return UserFunction(use, columns, others, batch)
    kind = step_class(use)
    also = (PER_LANGUAGE, _COLUMN) if takes_languages(kind) else ()
    if not parameters.keys().isdisjoint(also):
        return _make_per_language(use, dict(parameters))
    known = [*parameters_of_class(kind)]
    for name in parameters:
        if name not in known:
            raise UsageError(
                f"unknown parameter {name!r}; it has {', '.join(known) or 'none'}."
                f"{did_you_mean(name, [*known, *also])}"
            )
    for name in known:
        if name not in parameters and name not in default_parameters(use):
            raise UsageError(f"give the parameter {name}.")
    return kind(**parameters)


def takes_languages(kind: type[Step]) -> bool:
    """Whether a step may have other parameters by language: filters and rewrites."""
    return issubclass(kind, Judge) and not issubclass(kind, Scorer)


def _make_per_language(use: str, parameters: dict[str, Any]) -> PerLanguage:
    """A step with tables for languages; what a table does not say is as for other languages."""
    column, tables = parameters.pop(_COLUMN, None), parameters.pop(PER_LANGUAGE, None)
    if not isinstance(column, str) or not isinstance(tables, list) or not tables:
        raise UsageError(
            f'give {_COLUMN} = "NAME", a column of the input or a score, and tables of languages, '
            f"each begun by a line [[steps.{PER_LANGUAGE}]]."
        )
    others: Any = _make(use, parameters)
    has_language = "language" in parameters_of_class(type(others))
    steps: dict[str, Any] = {}
    for number, table in enumerate(tables, 1):
        label = table.get(_LABEL) if isinstance(table, dict) else None
        if not isinstance(label, str) or label in steps:
            raise UsageError(
                f"table {number} of {PER_LANGUAGE}: {_LABEL} is {label!r}, expected a language as "
                f"{column} names it, and not twice."
            )
        own = {name: value for name, value in table.items() if name != _LABEL}
        with named_in_errors(f"table {number} of {PER_LANGUAGE} ({label})"):
            one: Any = _make(use, parameters | own)
            if has_language and "language" not in own and "language" not in idle(one):
                one = _make(use, parameters | own | {"language": label})
        steps[label] = one
    return PerLanguage(steps, others, column)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
