"""Checks that error messages are one line and end as a sentence."""

from collections.abc import Callable

import pytest

from fineshards.errors import FineshardsError, UsageError


def refused(call: Callable[[], object], kind: type[FineshardsError] = UsageError) -> str:
    """The message of the error that a call raises, which must be one line that ends in a period."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message
