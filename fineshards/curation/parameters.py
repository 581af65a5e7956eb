"""Checks of a step's parameters: one sentence with the parameter, its value and what is allowed.

The annotation of a parameter says what is allowed, as a rule: `rate: Share`. A rule is a function
of the value. It returns what the step keeps, and raises ValueError with what it expects.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fineshards.errors import UsageError

Rule = Callable[[Any], Any]


def check(step: str, name: str, value: object, holds: bool, expected: str) -> None:
    """Raises UsageError unless `holds`."""
    if not holds:
        raise UsageError(f"{step}: {name} is {value!r}, expected {expected}.")


def check_parameters(step: Any, use: str) -> None:
    """Sets each parameter of a step as its annotation keeps it; raises UsageError for another one.

    As recipes have no null, False stands for None where a parameter may be None.

    use: what recipes call the step.
    """
    for name, (rules, types) in _rules(type(step)).items():
        value, optional = getattr(step, name), NoneType in types
        if value is False and optional and bool not in types:
            value = None
        if value is not None or not optional:
            for rule in rules:
                value = checked(use, name, value, rule, ", or false" * optional)
        if float in types and is_integer(value):
            value = float(value)
        for part, item in value.items() if isinstance(value, Mapping) else [(name, value)]:
            try:
                json.dumps(item, allow_nan=False)
            except (TypeError, ValueError):
                expected = "what JSON has: finite numbers, and dates as text, in quotes"
                check(use, part, item, False, expected)
        assign(step, name, _hashable(value))


def _hashable(value: Any) -> Any:
    """A value with tuples in place of lists, but those of tables, which functions get as given."""
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def checked(step: str, name: str, value: Any, rule: Rule, also: str = "") -> Any:
    """What a rule keeps of a value; raises UsageError if it does not allow the value."""
    try:
        return rule(value)
    except ValueError as error:
        raise UsageError(f"{step}: {name} is {value!r}, expected {error}{also}.") from None


class Unless:
    """Marks a parameter that has no effect while all of some others have one of their values."""

    def __init__(self, **others: tuple[Any, ...]) -> None:
        self.others = others


def idle(step: Any) -> dict[str, str]:
    """The parameters of a step that have no effect, and the values of others that are the cause."""
    causes: dict[str, str] = {}
    for name, hint in get_type_hints(type(step), include_extras=True).items():
        for mark in (part for part in _parts(hint) if isinstance(part, Unless)):
            values = {other: getattr(step, other) for other in mark.others}
            if all(value in mark.others[other] for other, value in values.items()):
                # A recipe says false where Python says None.
                texts = (json.dumps(False if x is None else x) for x in values.values())
                causes[name] = " and ".join(map(" = ".join, zip(values, texts, strict=True)))
    return causes


def check_effects(step: Any, names: Collection[str]) -> None:
    """Raises UsageError if one of these parameters has no effect, and not its default either."""
    parameters = parameters_of_class(type(step))
    for name, cause in idle(step).items():
        if name in names and getattr(step, name) != parameters[name].default:
            raise UsageError(f"{step.NAME}: {name} has no effect with {cause}. Leave it out.")


def assign(step: object, name: str, value: object) -> None:
    """Sets a field of a frozen dataclass, from its `__post_init__` alone."""
    object.__setattr__(step, name, value)


def parameters_of_class(kind: type[Any]) -> dict[str, Field[Any]]:
    """The fields of a step that a recipe may set, by name."""
    return {parameter.name: parameter for parameter in fields(kind) if parameter.init}


def _rules(kind: type[Any]) -> dict[str, tuple[list[Rule], list[Any]]]:
    """The rules of each parameter of a step, and the types that its annotation consists of."""
    hints = get_type_hints(kind, include_extras=True)
    rules_by_name: dict[str, tuple[list[Rule], list[Any]]] = {}
    for name in parameters_of_class(kind):
        parts = list(_parts(hints[name]))
        of_types: list[Rule] = [_OF_TYPES[part] for part in parts if part in _OF_TYPES]
        # A rule may be any callable, but types and generic types are callable too.
        rules = [part for part in parts if callable(part) and not isinstance(part, type)]
        given: list[Rule] = [part for part in rules if get_origin(part) is None]
        rules_by_name[name] = given or of_types, parts
    return rules_by_name


def _parts(hint: Any) -> Iterator[Any]:
    """The types and the rules that an annotation consists of."""
    origin = get_origin(hint)
    if origin in (Annotated, Union, UnionType):
        for part in (
            (hint.__origin__, *hint.__metadata__) if origin is Annotated else get_args(hint)
        ):
            yield from _parts(part)
    else:
        yield one_of(*get_args(hint)) if origin is Literal else hint


def rule(expected: str, holds: Callable[[Any], bool]) -> Rule:
    """A rule that keeps the values for which something holds."""

    def allowed(value: Any) -> Any:
        if not holds(value):
            raise ValueError(expected)
        return value

    return allowed


def is_number(value: object) -> bool:
    """Whether a value is an integer or a finite float. True and false are not numbers."""
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def is_integer(value: object) -> bool:
    """Whether a value is an integer. True and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def strings(value: object) -> tuple[str, ...]:
    """A rule: a list of strings, none of them empty, as a tuple. One string alone is no list."""
    if isinstance(value, list | tuple) and all(isinstance(one, str) and one for one in value):
        return tuple(value)
    raise ValueError("a list of strings that are not empty")


def some(what: str) -> Rule:
    """A rule: `strings`, at least one."""
    return lambda value: rule(f"at least one {what}", bool)(strings(value))


def whole(least: int, most: int | None = None) -> Rule:
    """A rule: a whole number that is not smaller, and not larger."""
    return rule(
        f"a whole number from {least:,}" + (f" to {most:,}" if most else ""),
        lambda value: is_integer(value) and least <= value and (most is None or value <= most),
    )


def nonempty(what: str) -> Rule:
    """A rule: a string that is not empty."""
    return rule(what, lambda value: isinstance(value, str) and value != "")


def one_of(*values: str) -> Rule:
    """A rule: one of some strings."""
    return rule(f"one of {', '.join(values)}", lambda value: value in values)


Count = Annotated[int, whole(0)]
Positive = Annotated[int, whole(1)]
Limit = Annotated[float, rule("a number from 0", lambda value: is_number(value) and value >= 0)]
Share = Annotated[
    float, rule("a number from 0 to 1", lambda value: is_number(value) and 0 <= value <= 1)
]
Seed = Annotated[
    int, rule("a whole number from 0 to 2**64 - 1", lambda v: is_integer(v) and 0 <= v < 1 << 64)
]

# What a type alone allows.
_OF_TYPES: dict[Any, Rule] = {
    bool: rule("true or false", lambda value: isinstance(value, bool)),
    int: rule("a whole number", is_integer),
    float: rule("a number", is_number),
    str: rule("a string", lambda value: isinstance(value, str)),
    tuple[str, ...]: strings,
    list[str]: strings,
    Mapping[str, Any]: rule("a table", lambda value: isinstance(value, Mapping)),
}
