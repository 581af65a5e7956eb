"""Formats, places, steps, encoders and exports by name: entry points of installed packages.

Those of fineshards are in its pyproject.toml. Looking up one imports no other.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

from fineshards.errors import MissingLibraryError, UsageError
from fineshards.extras import missing_extra

_OURS = "fineshards"
_Plugin = TypeVar("_Plugin")


class Plugins(Mapping[str, _Plugin]):
    """The plug-ins of a group, by name. makes: whether they are objects of the classes named."""

    def __init__(self, group: str, makes: bool = False) -> None:
        self.group, self._makes = group, makes
        self._loaded: dict[str, _Plugin] = {}

    @cached_property
    def own(self) -> dict[str, Any]:
        """The entry points of fineshards; raises UsageError for an installation without them."""
        from importlib.metadata import distributions  # --help needs none

        dist: Any = next(iter(distributions(name=_OURS)), None)
        points = dist.entry_points.select(group=f"{_OURS}.{self.group}") if dist else ()
        if not points:
            raise UsageError(
                f"fineshards is installed without its {self.group}, so its installation is older "
                "than its code: install it again, as in a checkout with pip install --no-deps -e ."
            )
        return {point.name: point for point in sorted(points)}

    @cached_property
    def _all(self) -> dict[str, Any]:
        """The entry points of all installed packages; raises UsageError for a name twice."""
        from importlib.metadata import entry_points

        installed, points = dict(self.own), list[Any](entry_points(group=f"{_OURS}.{self.group}"))
        for point in points:
            earlier = installed.setdefault(point.name, point)
            if (earlier, earlier.dist.name) != (point, point.dist.name):
                raise UsageError(
                    f"the packages {earlier.dist.name} and {point.dist.name} both have "
                    f"{point.name!r} among their {self.group}. Uninstall one of them."
                )
        return installed

    def __getitem__(self, name: str) -> _Plugin:
        if name not in self._loaded:
            self._loaded.setdefault(name, self._imported(self.own.get(name) or self._all[name]))
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.own  # first, so that a search need not import the packages of others
        yield from sorted(self._all.keys() - self.own.keys())

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self._all

    def __str__(self) -> str:
        return ", ".join(self)

    def package(self, name: str) -> str | None:
        """The package and version that a plug-in is of; None for those of fineshards."""
        dist = self._all[name].dist if name not in self.own else None
        return dist and f"{dist.name} {dist.version}"

    def recorded(self, name: str, package: str | None) -> _Plugin:
        """The plug-in that a record names; raises UsageError if it is not of that package here."""
        owner = (self.package(name) or _OURS) if name in self else "none"
        if owner == "none" or (package and owner != package):
            raise UsageError(
                f"{name!r}, one of the {self.group}, is of the package {package or _OURS}; "
                f"installed is {owner}. Other versions may give other bytes: install that one, or "
                "begin again with --overwrite."
            )
        return self[name]

    def _imported(self, point: Any) -> Any:
        try:
            plugin = point.load()
            return plugin() if self._makes else plugin
        except Exception as error:
            if point.name in self.own:
                raise
            missing = missing_extra(error) if isinstance(error, ModuleNotFoundError) else None
            raise missing or MissingLibraryError(
                f"{point.name!r} of the package {point.dist.name} cannot be imported ({error}). "
                f"Install the package again, with all that it needs: pip install {point.dist.name}"
            ) from error
