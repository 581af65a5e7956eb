"""The Python on a page, run as printed where the packages that it imports are installed."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def run_examples(page: Path) -> dict[str, dict[str, Any]]:
    """Runs the blocks of a page one after another: for each section that ran, its names then."""
    ran: dict[str, dict[str, Any]] = {}
    names: dict[str, Any] = {}
    parts = re.findall(r"^## ([^\n]*)$|^```python\n(.*?)^```$", page.read_text(), re.M | re.S)
    section = ""
    for heading, code in parts:
        section = heading or section
        imported = re.findall(r"^(?:from|import) (\w+)", code, re.M)
        if code and all(name in sys.modules or find_spec(name) for name in imported):
            exec(compile(code, page.name, "exec"), names)
            ran[section] = dict(names)
    return ran
