"""Errors for people: one line, one sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fineshards.errors import FineshardsError, UsageError


def refused(call: Callable[[], object], kind: type[FineshardsError] = UsageError) -> str:
    """The message of the error that a call raises; one line that ends as a sentence does."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message
