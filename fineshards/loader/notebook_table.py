"""An object in a notebook: a small table, and the names that completion offers."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import ClassVar


def notebook_table(caption: str, rows: Mapping[str, object]) -> str:
    """HTML of names and values, with separators in numbers.

    Example:
        >>> notebook_table("Dataset", {"tokens": 1234})
        '<table><caption>Dataset</caption><tr><th>tokens</th><td>1,234</td></tr></table>'
    """
    cells = "".join(
        f"<tr><th>{escape(name)}</th><td>"
        f"{f'{value:,}' if isinstance(value, int) else escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(caption)}</caption>{cells}</table>"


class Completed:
    """A class whose instances list, and so complete, what its users need.

    HELPERS: names that are for the loader's own use. The reference leaves them out, too.
    """

    HELPERS: ClassVar[tuple[str, ...]] = ()
    __slots__ = ()

    def __dir__(self) -> list[str]:
        """The names without underscores that are no helpers, and Python's own."""
        hidden = {"HELPERS", *self.HELPERS}
        return [
            name
            for name in super().__dir__()
            if name not in hidden and (name[0] != "_" or name[:2] == "__")
        ]
