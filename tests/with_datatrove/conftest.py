"""What tests that compare with datatrove share: one test per part of the documents."""

import pytest
from documents import parts

pytest_plugins = ["support.slices"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument `part` runs once per part of the documents (documents.py)."""
    if "part" in metafunc.fixturenames:
        metafunc.parametrize("part", list(parts()), ids=str)
