"""A part of the tests, for runs that have no time for all: `FINESHARDS_SLICE=2/5`, from 0/5 to 4/5.

Which tests are in a slice follows from their names, so all slices together run each test once.
"""

from __future__ import annotations

import os
from zlib import crc32

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of other slices; pytest counts them at the end."""
    number, _, count = os.environ.get("FINESHARDS_SLICE", "0/1").partition("/")
    here: list[pytest.Item] = []
    elsewhere: list[pytest.Item] = []
    for item in items:
        (here if crc32(item.name.encode()) % int(count) == int(number) else elsewhere).append(item)
    config.hook.pytest_deselected(items=elsewhere)
    items[:] = here
