"""The Flex Template: its parameters are the flags of `build`, and its image has what they need."""

from __future__ import annotations

import argparse
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from google.cloud.dataflow_v1beta3.types import ParameterType, TemplateMetadata
from hypothesis import given
from hypothesis import strategies as st

from pipeline.options import Parser, add_build_flags, refuse_unknown

ROOT = Path(__file__).parent.parent
METADATA = ROOT / "templates/metadata.json"
# Beam's options that a person may want to set in the console and that gcloud has no flag for.
BEAM_PARAMETERS = {"sdk_container_image", "disk_size_gb", "number_of_worker_harness_threads"}

PARAMETERS: dict[str, dict[str, Any]] = {
    parameter["name"]: parameter for parameter in json.loads(METADATA.read_text())["parameters"]
}


def actions() -> dict[str, argparse.Action]:
    """The flags of `build`, by name."""
    parser = Parser()
    add_build_flags(parser)
    return {action.dest: action for action in parser._actions if action.dest != "help"}


def matches(parameter: dict[str, Any], value: str) -> bool:
    """Whether Dataflow would take a value: it must match all regular expressions."""
    options = [option["value"] for option in parameter.get("enumOptions", [])]
    fits = all(re.search(pattern, value) for pattern in parameter.get("regexes", []))
    return fits and (not options or value in options)


def test_the_metadata_is_what_dataflow_reads() -> None:
    metadata = TemplateMetadata.from_json(METADATA.read_text())
    assert metadata.name
    assert metadata.description
    assert not metadata.streaming
    assert [parameter.name for parameter in metadata.parameters] == list(PARAMETERS)
    for parameter in metadata.parameters:
        # Dataflow's own message does not require these, its console does.
        assert parameter.label, parameter.name
        assert parameter.help_text.endswith("."), parameter.name


def test_the_parameters_are_the_flags_of_build_and_some_of_beams() -> None:
    assert set(PARAMETERS) == set(actions()) | BEAM_PARAMETERS
    refuse_unknown([f"--{name}=1" for name in BEAM_PARAMETERS])


@pytest.mark.parametrize("name", sorted(set(PARAMETERS) - BEAM_PARAMETERS))
def test_a_parameter_says_of_itself_what_its_flag_does(name: str) -> None:
    parameter, action = PARAMETERS[name], actions()[name]
    assert parameter["isOptional"] != action.required
    default = parameter.get("defaultValue")
    if isinstance(action.default, bool):
        assert parameter["paramType"] == "BOOLEAN"
        assert default == str(action.default).lower()
    elif isinstance(action.default, int | str):
        assert default == str(action.default)
    else:
        assert default is None
    options = [option["value"] for option in parameter.get("enumOptions", [])]
    assert options == list(action.choices or [])
    assert (parameter["paramType"] == "ENUM") == bool(options)


def test_the_worker_image_must_be_given() -> None:
    assert not PARAMETERS["sdk_container_image"]["isOptional"]


@pytest.mark.parametrize("parameter", PARAMETERS.values(), ids=PARAMETERS.keys())
def test_regular_expressions_are_anchored_and_fit_the_default(parameter: dict[str, Any]) -> None:
    assert parameter["paramType"] in ParameterType.__members__
    assert parameter.get("regexes") or parameter.get("enumOptions")
    for pattern in parameter.get("regexes", []):
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        re.compile(pattern)
    if "defaultValue" in parameter:
        assert matches(parameter, parameter["defaultValue"])
    assert not matches(parameter, "")
    assert not matches(parameter, "two\nlines")


@given(st.data())
def test_what_a_regular_expression_takes_the_flag_takes_as_well(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(set(PARAMETERS) - BEAM_PARAMETERS)))
    parameter = PARAMETERS[name]
    choices = [option["value"] for option in parameter.get("enumOptions", [])]
    if choices:
        value = data.draw(st.sampled_from(choices))
    else:
        value = data.draw(st.from_regex(parameter["regexes"][0], fullmatch=True))
    parser = Parser()
    add_build_flags(parser)
    # As the launcher passes it.
    given_flags = [f"--{name}={value}", *([] if name == "output" else ["--output=gs://b/o"])]
    args, rest = parser.parse_known_args(given_flags)
    assert rest == []
    taken = getattr(args, name)
    if name == "test_fraction":
        assert Fraction(taken) == Fraction(value)
    else:
        as_text = str(taken).lower() if isinstance(taken, bool) else str(taken)
        assert taken == [value] or as_text == value


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("input", "gs://bucket/data/CC-MAIN-2024-10/*.parquet", True),
        ("input", "/local/data/*.parquet", False),
        ("output", "gs://bucket/datasets/fineweb-edu", True),
        ("output", "gs://bucket", False),
        ("output", "datasets/out", False),
        ("dataset", "HuggingFaceFW/fineweb-edu", True),
        ("dataset", "/local/folder", False),
        ("tokenizer", "o200k_base", True),
        ("tokenizer", "gs://bucket/llama/tokenizer.json", True),
        ("test_fraction", "0.05", True),
        ("test_fraction", "1.5", False),
        ("shard_tokens", "0", False),
        ("overwrite", "yes", False),
        ("sdk_container_image", "us-central1-docker.pkg.dev/project/repo/fineshards:0.1.0", True),
        ("sdk_container_image", "gcr.io/project/fineshards@sha256:" + "0" * 64, True),
        ("sdk_container_image", "gcr.io/project/fineshards", False),
    ],
)
def test_values_that_people_give(name: str, value: str, taken: bool) -> None:
    assert matches(PARAMETERS[name], value) is taken
