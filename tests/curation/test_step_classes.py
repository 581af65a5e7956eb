"""The classes of steps, as programs use them."""

from __future__ import annotations

import pickle
import pydoc
from dataclasses import replace

import pytest

from fineshards.curation import steps
from fineshards.curation.recipe import STEPS
from fineshards.curation.steps.length import Length


def test_a_misspelt_parameter_is_a_type_error_with_a_suggestion() -> None:
    with pytest.raises(TypeError, match=r"^Length has no parameter 'min_char'; it has .* Did you"):
        Length(min_char=3)  # type: ignore[call-arg]
    step = Length(min_chars=3)
    assert pickle.loads(pickle.dumps(step)) == replace(step, max_chars=None) == step


def test_help_lists_the_classes() -> None:
    classes = pydoc.plain(pydoc.render_doc(steps)).partition("\nCLASSES\n")[2]
    for module, name in [*STEPS.values(), ("user_function", "UserFunction")]:
        assert f"fineshards.curation.steps.{module}.{name}" in classes
