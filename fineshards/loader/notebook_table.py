"""An object as a small table, where a notebook shows it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


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
