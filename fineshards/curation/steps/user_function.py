"""A function of the user's own as a step: `use = "package.module:function"`.

docs/curation.md says what it gets and returns. With `batch`, how documents fall into lists follows
from the format and the blocks, and must not matter.
"""

import ast
import hashlib
import importlib
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions
from inspect import isfunction
from types import FunctionType, ModuleType
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from fineshards.curation.batch import Batch
from fineshards.curation.column_values import values_of
from fineshards.curation.parameters import Positive, assign, check, check_parameters
from fineshards.curation.step import Judge, Outcome
from fineshards.errors import InputError, UsageError

FUNCTION_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_LIBRARY = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
# Names that the dict has anyway.
_GIVEN = ("text", "file", "row")

Read = TypeVar("Read")


@dataclass(frozen=True)
class UserFunction(Judge):
    """Keeps, drops or rewrites documents as a function of the user's says.

    The function is imported from the installed packages or the current folder. On workers its
    package must be installed, with the same source.

    Args:
        use: Where the function is, `package.module:function`; or the function.
        columns: Columns that the function sees in addition to the text.
        parameters: Keyword arguments of the function: the other parameters in the recipe.
        batch: The most documents that the function takes at a time, in a list; None where it takes
            one, and no list.

    Example:
        >>> step = UserFunction("builtins:bool")
        >>> step.apply(Batch.of_texts(["any"])).reasons
        [None]
    """

    GOLDEN: ClassVar[bool] = False
    REWRITES: ClassVar[bool] = True

    use: Any
    columns: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    batch: Positive | None = None

    def __post_init__(self) -> None:
        if isfunction(self.use):
            assign(self, "use", _name_of(self.use))
        fits = isinstance(self.use, str) and FUNCTION_NAME.fullmatch(self.use) is not None
        check("step", "use", self.use, fits, "package.module:function")
        check_parameters(self, self.use)
        if reserved := sorted({"columns", "batch"}.intersection(self.parameters)):
            others = f"others than {', '.join(reserved)}, which are arguments of their own"
            check(self.use, "parameters", dict(self.parameters), False, others)
        if given := sorted(set(self.columns) & set(_GIVEN)):
            others = f"other columns than {', '.join(given)}, which the function gets anyway"
            check(self.use, "columns", list(self.columns), False, others)

    def pins(self) -> dict[str, str]:
        """See Step. Raises UsageError if there is no such function.

        Pins are its module's source and those of the user's own modules that it imports.
        """
        module, function = _function(self.use)
        while isinstance(function, partial):
            function = function.func
        origin = sys.modules.get(getattr(function, "__module__", ""), module)
        main, *others = own_modules(dict.fromkeys((module.__name__, origin.__name__))).items()
        return {self.use: main[1]} | {f"{self.use} in {file}": sha256 for file, sha256 in others}

    @property
    def advice(self) -> str:
        if self.batch is None:
            return super().advice
        return (
            "The second time it was in another batch. So the result of "
            f"{self.use} depends on the other documents in its batch, or on a clock, on chance or "
            "on earlier documents: pad, round and score each document by itself."
        )

    def apply(self, batch: Batch) -> Outcome:
        judged = list(self.answers(batch, self._read))
        texts = [left for _, left in judged]
        rewritten = any(left is not text for left, text in zip(texts, batch.strings, strict=True))
        return Outcome([reason for reason, _ in judged], texts if rewritten else None)

    def answers(self, batch: Batch, read: Callable[[object, str], Read]) -> Iterator[Read]:
        """What `read` makes of the function's answer and the text, document by document.

        Raises InputError, with the row, if either of them fails.
        """
        _, function = _function(self.use)
        columns = {name: values_of(batch, name) for name in self.columns}
        rows, size = batch.rows.tolist(), self.batch or 1
        for first in range(0, len(rows), size):
            given = range(first, min(first + size, len(rows)))
            documents = [
                {name: values[index] for name, values in columns.items()}
                | {"text": batch.strings[index], "file": batch.file, "row": rows[index]}
                for index in given
            ]
            place = batch.place(rows[first])
            if len(given) > 1:
                place += f" to row {rows[given[-1]]}"
            judged = []
            try:
                for index, answer in zip(given, self._called(function, documents), strict=True):
                    place = batch.place(rows[index])
                    judged.append(read(answer, batch.strings[index]))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # sys.exit() would end a job as if it were finished
                advice = ". If it is a column, name it in columns" * isinstance(error, KeyError)
                raise InputError(
                    f"{place}: {self.use} failed with {type(error).__name__}: {error}{advice}"
                ) from error
            yield from judged

    def _called(
        self, function: Callable[..., object], documents: list[dict[str, Any]]
    ) -> list[object]:
        """What a function returns for each document; without `batch` there is one."""
        if self.batch is None:
            return [function(documents[0], **self.parameters)]
        answers = function(documents, **self.parameters)
        if isinstance(answers, list) and len(answers) == len(documents):
            return answers
        returned = f"{type(answers).__name__} {answers!r:.100}"
        if isinstance(answers, list):
            returned = f"a list of {len(answers)}"
        raise TypeError(f"it returned {returned}, expected a list of {len(documents)} verdicts")

    def _read(self, answer: object, text: str) -> tuple[str | None, str]:
        """The reason to drop, or None, and the text, from what a function returned."""
        name = self.use.rpartition(":")[2]
        if answer is None:
            return name, text
        if isinstance(answer, str):
            answer.encode()  # a lone surrogate cannot be stored
            return None, answer
        keep, reason = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, name)
        if not isinstance(keep, bool) or not isinstance(reason, str | None):
            raise TypeError(
                f"it returned {answer!r:.100}, expected True, False, (True or False, reason), a "
                "text or None"
            )
        if reason is not None:
            reason.encode()
        return (None if keep else reason or name), text


def _name_of(function: FunctionType) -> str:
    use = f"{function.__module__}:{function.__qualname__}"
    if function.__module__ == "__main__" or "<" in use:
        raise UsageError(
            f"workers cannot import {use}: put the function into a module, such as my_steps.py in "
            "the current folder."
        )
    return use


@lru_cache(maxsize=64)
def _function(use: str) -> tuple[ModuleType, Callable[..., object]]:
    """The module and the function that a name stands for."""
    name, _, path = use.partition(":")
    try:
        module = _imported(name)
        function: Any = module
        for part in path.split("."):
            function = getattr(function, part)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of what the module does when it is imported
        is_clear = isinstance(error, ImportError | AttributeError | SyntaxError)
        message = str(error) if is_clear else f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{use} cannot be imported: {message}. Install its package, or start the job in "
            "the folder where it is."
        ) from error
    with suppress(ImportError):  # which a process of ours has kept from pyarrow
        pa.array([]).to_pandas()
    if not callable(function):
        raise UsageError(f"{use} is {type(function).__name__}, expected a function.")
    return module, function


def _imported(name: str) -> ModuleType:
    """Imports a module, from the current folder too, as `python -m` does."""
    folder = os.getcwd()
    if folder in sys.path or "" in sys.path:
        return importlib.import_module(name)
    sys.path.insert(0, folder)
    try:
        importlib.invalidate_caches()
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def own_modules(roots: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of modules and of the user's own that they import, in turn, by file name.

    Imports are read from the sources and not from what is loaded, so those in functions count too;
    modules that are imported by computed names do not. A name is as pkg/helper.py; the first is
    that of the first root. The standard library and installed packages are not the user's own, but
    for those that were installed with a root.
    """
    left = [*roots][::-1]
    known, tops = {*left}, {name.partition(".")[0] for name in left}
    if any(_INSTALLED.search(getattr(_find(name), "origin", None) or "") for name in left):
        by_top = packages_distributions()
        mine = {package for top in tops for package in by_top.get(top, ())}
        tops |= {top for top, names in by_top.items() if not mine.isdisjoint(names)}
    files: dict[str, tuple[str, bytes]] = {}
    while left:
        spec = _find(name := left.pop())
        if spec is None or name in files or not (name in known or _is_own(spec, tops)):
            continue
        files[name] = _file(spec)
        left += [*_imports(spec, files[name][1]), name.rpartition(".")[0]]
    named = {file: content for file, content in files.values() if file}
    return {file: hashlib.sha256(content).hexdigest() for file, content in named.items()}


def _find(name: str) -> ModuleSpec | None:
    """Where a module is, without importing it; None if there is none."""
    spec: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
    parent = name.rpartition(".")[0]
    above = _find(parent) if parent and spec is None else None
    places: list[Any] = [None, [os.getcwd()]]
    if parent:
        places = [list(above.submodule_search_locations or ())] if above else []
    for finder in sys.meta_path if name and spec is None else ():
        for place in places:
            spec = spec or finder.find_spec(name, place)
    return spec


def _is_own(spec: ModuleSpec, tops: set[str]) -> bool:
    top = spec.name.partition(".")[0]
    folders = [spec.origin or ""] if spec.has_location else spec.submodule_search_locations or ()
    installed = [_INSTALLED.search(f"{at}/") or at.startswith(_LIBRARY) for at in folders]
    return top in tops or not (top == "fineshards" or all(installed))


def _file(spec: ModuleSpec) -> tuple[str, bytes]:
    """A module's file, named from the folder of its package; empty for a namespace package."""
    if not spec.has_location or spec.origin is None:
        version = "" if spec.origin is None else f"built into Python {sys.version.split()[0]}"
        return spec.origin or "", version.encode()
    loader: Any = spec.loader
    is_package = spec.submodule_search_locations is not None
    folders = spec.name.split(".")[: None if is_package else -1]
    return "/".join([*folders, os.path.basename(spec.origin)]), loader.get_data(spec.origin)


def _imports(spec: ModuleSpec, content: bytes) -> Iterator[str]:
    """Names that a module may import; many may be no modules."""
    package = spec.name if spec.submodule_search_locations is not None else spec.parent or ""
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError):  # a compiled module
        nodes = []
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level else []
            parts = parts[: len(parts) + 1 - node.level] if node.level else parts
            base = ".".join([*parts, *filter(None, [node.module])])
            yield from (base, *(f"{base}.{alias.name}".strip(".") for alias in node.names))
