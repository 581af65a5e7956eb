"""The user's own modules that a function depends on: its module, and what that imports.

Imports are read from the sources and not from what is loaded, so those in functions count too.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions
from typing import Any

# Where a module has one of these, any of its texts may name a module or a folder of modules.
_DYNAMIC = re.compile(
    rb"import_module|importlib\.(util|machinery)|from importlib import|__import__|pkgutil|runpy"
    rb"|sys\.path|__path__|exec\("
)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_LIBRARY = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))


def own_modules(roots: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of modules and of the user's own that they import, in turn, by file name.

    A name is as pkg/helper.py; the first is that of the first root. The standard library and
    installed packages are not the user's own, but for those that were installed with a root.
    """
    roots = list(roots)
    tops = {name.partition(".")[0] for name in roots}
    if any(_INSTALLED.search(getattr(_find(name), "origin", None) or "") for name in roots):
        by_top = packages_distributions()
        mine = {each for top in tops for each in by_top.get(top, ())}
        tops |= {top for top, names in by_top.items() if not mine.isdisjoint(names)}
    found: dict[str, tuple[str, bytes]] = {}
    for texts in (False, True):
        found, left = {}, roots[::-1]
        while left:
            spec = _find(name := left.pop())
            if spec is None or name in found or not (name in roots or _is_own(spec, tops)):
                continue
            found[name] = _file(spec)
            left += [*_imports(spec, found[name][1], tops, texts), name.rpartition(".")[0]]
        if not any(_DYNAMIC.search(content) for _, content in found.values()):
            break
    named = {file: content for file, content in found.values() if file}
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
    installed = [_INSTALLED.search(f"{each}/") or each.startswith(_LIBRARY) for each in folders]
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


def _imports(spec: ModuleSpec, content: bytes, tops: set[str], texts: bool) -> Iterator[str]:
    """Names that a module may import; many may be no modules. texts: those in texts too."""
    package = spec.name if spec.submodule_search_locations is not None else spec.parent or ""
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError):  # a compiled module
        nodes = []
    if texts and _DYNAMIC.search(content):
        yield from _below(package, tops, os.path.dirname(spec.origin or "."))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level else []
            parts = parts[: len(parts) + 1 - node.level] if node.level else parts
            base = ".".join([*parts, *filter(None, [node.module])])
            yield from (base, *(f"{base}.{alias.name}".strip(".") for alias in node.names))
            if any(alias.name == "*" for alias in node.names):
                yield from _below(base, tops)
        elif texts and isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = re.sub(r"\.py$|:.*", "", node.value).replace("/", ".").strip(".")
            if re.fullmatch(r"[\w-]+(\.[\w-]+)*", name):
                for each in (name, f"{package}.{name}".strip(".")):
                    yield from (each, *_below(each, tops))


def _below(package: str, tops: set[str], folder: str | None = None) -> Iterator[str]:
    """The modules of a package, and of folders with modules in it. folder: where a module is."""
    spec = _find(package)
    places = [] if spec or folder is None else [folder]
    if spec is not None and _is_own(spec, tops):
        places = list(spec.submodule_search_locations or ())
    for place in filter(os.path.isdir, places):
        names = sorted(os.listdir(place))
        for name in names if any(each.endswith(".py") for each in names) else ():
            each = f"{package}.{name.partition('.')[0]}".strip(".")
            if name.endswith(".py"):
                yield each
            elif package and name.isidentifier() and name != "__pycache__":
                yield from _below(each, tops)
