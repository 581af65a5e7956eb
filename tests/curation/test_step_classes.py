"""The classes of steps, as programs use them."""

from __future__ import annotations

import pickle
import pydoc
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import pytest

from fineshards.curation import steps
from fineshards.curation.parameters import check_parameters
from fineshards.curation.recipe import STEPS
from fineshards.curation.steps.length import Length
from fineshards.errors import UsageError


def test_a_misspelt_parameter_is_a_type_error_with_a_suggestion() -> None:
    with pytest.raises(TypeError, match=r"^Length has no parameter 'min_char'; it has .* Did you"):
        Length(min_char=3)  # type: ignore[call-arg]
    step = Length(min_chars=3)
    assert pickle.loads(pickle.dumps(step)) == replace(step, max_chars=None) == step


def test_help_lists_the_classes() -> None:
    classes = pydoc.plain(pydoc.render_doc(steps)).partition("\nCLASSES\n")[2]
    for module, name in [*STEPS.values(), ("user_function", "UserFunction")]:
        assert f"fineshards.curation.steps.{module}.{name}" in classes


def at_most(value: Any, most: int) -> Any:
    if value > most:
        raise ValueError(f"at most {most}")
    return value


class AtMost:
    def __call__(self, value: Any) -> Any:
        return at_most(value, 4)


@dataclass(frozen=True)
class Limited:
    by_partial: Annotated[int, partial(at_most, most=3)] = 0
    by_object: Annotated[int, AtMost()] = 0


def test_a_rule_need_not_be_a_plain_function() -> None:
    check_parameters(Limited(3, 4), "limited")
    with pytest.raises(UsageError, match="limited: by_partial is 4, expected at most 3"):
        check_parameters(Limited(4, 4), "limited")
    with pytest.raises(UsageError, match="limited: by_object is 5, expected at most 4"):
        check_parameters(Limited(3, 5), "limited")
