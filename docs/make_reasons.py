"""Writes the table of all reasons for drops, read from the code of the steps: `… FILE`.

Run by `make site`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from fineshards.curation.recipe import STEPS, step_class
from fineshards.curation.recipe_text import describe_step
from fineshards.curation.step import Keyed

_HEAD = """# Reasons

Why steps drop documents, in the words of decisions, `stats`, `inspect --dropped` and reports. In
brackets: the parameter with the bound, unless the reason is its name. A function of yours names its
own reasons, or its name is the reason.

| step | | reasons |
|---|---|---|
"""
# What makes a reason of a measured value; the last argument names the parameter.
_MEASURED = ("above", "below", "not_above")
_REASON = re.compile(r"(< )?[a-zN][a-z_:N ]+[a-zN]")


def page() -> str:
    """The whole page."""
    rows = []
    for step in sorted(STEPS.own):
        shown = [
            f"`{reason}`" + (f" ({parameter})" if parameter else "")
            for reason, parameter in reasons(step).items()
        ]
        if shown:
            rows.append(f"| `{step}` | {describe_step(step).summary} | {', '.join(shown)} |\n")
    return _HEAD + "".join(rows)


def reasons(step: str) -> dict[str, str]:
    """The reasons of a step, with the names of parameters; "" where none is named."""
    made = step_class(step)
    by_name = issubclass(made, Keyed) and made.reason is Keyed.reason
    found: dict[str, str] = {step: ""} if by_name else {}
    for kind in made.__mro__:
        if kind.__module__.startswith("fineshards.curation.steps"):
            source = Source(kind)
            for reason, parameter in source.reasons():
                found[reason] = found.get(reason) or parameter
    return found


def _is_rule(node: ast.AST) -> bool:
    """Whether it is a row of a table of rules: a parameter, below or above, a reason, …"""
    compares = isinstance(node, ast.Tuple) and len(node.elts) > 2 and ast.unparse(node.elts[1])
    return compares in ("below", "above")


class Source:
    """The code of a step: its class, and the functions and private classes of its module."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._names = vars(importlib.import_module(kind.__module__))
        tree = ast.parse(inspect.getsource(importlib.import_module(kind.__module__)))
        others = {each.__name__ for each in STEPS.values()} - {kind.__name__}
        bodies = [node for node in tree.body if getattr(node, "name", "") not in others]
        self._rules = [node for body in bodies for node in ast.walk(body) if _is_rule(node)]
        self._functions = [
            node for body in bodies for node in ast.walk(body) if isinstance(node, ast.FunctionDef)
        ]

    def reasons(self) -> Iterator[tuple[str, str]]:
        """Each reason and its parameter."""
        for rule in self._rules:
            parameter, _, reason = map(ast.unparse, rule.elts[:3])
            yield ast.literal_eval(reason), ast.literal_eval(parameter)
        for function in self._functions:
            for node in ast.walk(function):
                for expression, parameter in self._given(node, function):
                    for text in self._texts(expression, function):
                        if _REASON.fullmatch(text):
                            yield text, parameter

    def _given(self, node: ast.AST, function: ast.FunctionDef) -> Iterator[tuple[ast.expr, str]]:
        """Expressions whose texts are reasons."""
        returns = ast.unparse(function.returns) if function.returns else ""
        is_reason = function.name == "reason" or "str | None" in returns
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name in _MEASURED:
                reason, parameter = node.args[0], node.args[-1]
                is_it = ast.unparse(reason) == ast.unparse(parameter)
                yield reason, "" if is_it else ", ".join(self._texts(parameter, function))
            elif name == "Reason":
                said = "".join(self._texts(node.args[1], function))
                yield node.args[0], said.partition(": ")[2]
            elif name == "Outcome" and node.args and not isinstance(node.args[0], ast.Name):
                yield node.args[0], ""
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "reasons.append":
            yield node.args[0], ""
        elif isinstance(node, ast.Return) and node.value is not None and is_reason:
            yield node.value, ""

    def _texts(self, node: ast.expr, function: ast.FunctionDef) -> list[str]:
        """What an expression may be, as far as that is a text in the code."""
        match node:
            case ast.Constant(value=str()):
                return [node.value]
            case ast.JoinedStr():
                parts = [
                    self._texts(part, function)
                    if isinstance(part, ast.Constant)
                    else self._texts(part.value, function) or ["N"]
                    for part in node.values
                    if isinstance(part, ast.Constant | ast.FormattedValue)
                ]
                texts = [""]
                for part in parts:
                    texts = [text + each for text in texts for each in part]
                return texts
            case ast.Name():
                inner = self._values(node, function)
                value = self._names.get(node.id)
                if not inner and isinstance(value, str):
                    return [value]
            case ast.Attribute(value=ast.Name(id="self")):
                value = getattr(self._kind, node.attr, None)
                return [value] if isinstance(value, str) else []
            case ast.IfExp():
                inner = [node.body, node.orelse]
            case ast.BoolOp():
                inner = node.values
            case ast.List() | ast.Tuple():
                inner = node.elts
            case ast.ListComp():
                inner = [node.elt]
            case _:
                inner = []
        return [text for each in inner for text in self._texts(each, function)]

    def _values(self, name: ast.Name, function: ast.FunctionDef) -> list[ast.expr]:
        """What a name was last assigned before a place in a function, or goes through in a loop."""
        found: list[ast.expr] = []
        statements = (n for n in ast.walk(function) if isinstance(n, ast.Assign | ast.For))
        for each in sorted(statements, key=lambda statement: statement.lineno):
            if isinstance(each, ast.Assign) and each.lineno <= name.lineno:
                pairs = [(each.targets[0], each.value)]
            elif isinstance(each, ast.For):
                iterated = each.iter
                if isinstance(iterated, ast.Name):
                    items = self._names.get(iterated.id, ())
                    pairs = [(each.target, ast.Constant(item)) for item in items]
                else:
                    pairs = [(each.target, item) for item in getattr(iterated, "elts", ())]
            else:
                continue
            given = [
                value
                for target, whole in pairs
                for part, value in zip(
                    getattr(target, "elts", [target]),
                    getattr(whole, "elts", [whole]) if hasattr(target, "elts") else [whole],
                    strict=False,
                )
                if isinstance(part, ast.Name) and part.id == name.id
            ]
            found = given or found
        return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
