"""The Flex Template: its parameters are the flags of `build`, and its image is complete."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from google.cloud.dataflow_v1beta3.types import ParameterType, TemplateMetadata
from hypothesis import given
from hypothesis import strategies as st
from support.checkout import ROOT

from fineshards.cli.options import add_build_flags
from fineshards.parser import Parser
from fineshards.pipeline.runners.choice import refuse_unknown
from tools.template_metadata import metadata

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Options of Beam that users may want to set in the console.
BEAM_PARAMETERS = {
    *("sdk_container_image", "disk_size_gb", "subnetwork", "number_of_worker_harness_threads")
}

# How the image checks its libraries.
CHECK = ("pip", "install", "--no-cache-dir", "--no-index", "--dry-run", "--quiet")

PARAMETERS: dict[str, dict[str, Any]] = {
    parameter["name"]: parameter for parameter in metadata()["parameters"]
}


def matches(parameter: dict[str, Any], value: str) -> bool:
    """Whether Dataflow would accept a value: it must match all regular expressions."""
    options = [option["value"] for option in parameter.get("enumOptions", [])]
    fits = all(re.search(pattern, value) for pattern in parameter.get("regexes", []))
    return fits and (not options or value in options)


def test_the_metadata_is_valid_for_dataflow() -> None:
    found = TemplateMetadata.from_json(json.dumps(metadata()))
    assert found.name
    assert found.description
    assert not found.streaming
    assert [parameter.name for parameter in found.parameters] == list(PARAMETERS)
    for parameter in found.parameters:
        # Required by Dataflow's console, though not by its message type.
        assert parameter.label, parameter.name
        assert parameter.help_text.endswith("."), parameter.name


def test_the_options_of_beam_exist() -> None:
    refuse_unknown([f"--{name}=1" for name in BEAM_PARAMETERS])
    assert not PARAMETERS["sdk_container_image"]["isOptional"]


@pytest.mark.parametrize("parameter", PARAMETERS.values(), ids=PARAMETERS.keys())
def test_regular_expressions_are_anchored_and_fit_the_default(parameter: dict[str, Any]) -> None:
    assert parameter["paramType"] in ParameterType.__members__
    assert parameter.get("regexes") or parameter.get("enumOptions")
    for pattern in parameter.get("regexes", []):
        # What POSIX has too: no classes such as \\d, whose letters it takes as they are, no (?:.
        assert not re.search(r"\\[0-9A-Za-z]|\(\?|[*+?}][?+]", pattern)
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        re.compile(pattern)
    if "defaultValue" in parameter:
        assert matches(parameter, parameter["defaultValue"])
    assert not matches(parameter, "")
    assert not matches(parameter, "two\nlines")


@pytest.mark.long
@given(st.data())
def test_a_value_that_matches_is_accepted_by_the_flag(data: st.DataObject) -> None:
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
    ("name", "value", "accepted"),
    [
        ("input", "gs://bucket/data/CC-MAIN-2024-10/*.parquet", True),
        ("input", "/local/data/*.parquet", False),
        ("output", "gs://bucket/datasets/fineweb-edu", True),
        ("output", "gs://bucket", False),
        ("output", "datasets/out", False),
        ("dataset", "HuggingFaceFW/fineweb-edu", True),
        ("tokenizer", "o200k_base", True),
        ("tokenizer", "gs://bucket/llama/tokenizer.json", True),
        ("test_fraction", "0.05", True),
        ("test_fraction", "1.5", False),
        ("subnetwork", "regions/us-central1/subnetworks/workers", True),
        ("subnetwork", "workers", False),
        ("where", "language_score > 0.9 AND lang IN ('en', 'de')", True),
        ("text_column", "raw content", True),
        ("s3_endpoint", "https://minio.example:9000", True),
        ("shard_tokens", "0", False),
        ("overwrite", "yes", False),
        ("sdk_container_image", "us-central1-docker.pkg.dev/project/repo/fineshards:0.1.0", True),
        ("sdk_container_image", "gcr.io/project/fineshards@sha256:" + "0" * 64, True),
        ("sdk_container_image", "gcr.io/project/fineshards", False),
    ],
)
def test_typical_values(name: str, value: str, accepted: bool) -> None:
    assert matches(PARAMETERS[name], value) is accepted
    for pattern in PARAMETERS[name].get("regexes", []):
        posix = subprocess.run(
            ["grep", "-qE", pattern],
            input=value,
            text=True,
            env=os.environ | {"POSIXLY_CORRECT": "1", "LC_ALL": "C.UTF-8"},
        )
        assert (posix.returncode == 0) is accepted


def stages() -> list[list[tuple[str, list[str]]]]:
    """The Dockerfile's stages in order, each as instructions: name and words, ARG inserted."""
    found: list[list[tuple[str, list[str]]]] = []
    values: dict[str, str] = {}
    for line in (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            name, *words = line.split()
            if name == "ARG":
                key, _, value = words[0].partition("=")
                values[f"${{{key}}}"] = value
                continue
            for key, value in values.items():
                words = [word.replace(key, value) for word in words]
            if name == "FROM":
                found.append([])
            found[-1].append((name, words))
    return found


LAUNCHER, CLI, IMAGE = stages()


def words_of(name: str, stage: list[tuple[str, list[str]]] = IMAGE) -> list[list[str]]:
    return [words for found, words in stage if found == name]


def test_all_files_of_the_images_exist_and_are_sent_to_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copies = words_of("COPY", CLI) + words_of("COPY")
    sources = [w for words in copies if "--from=" not in words[0] for w in words[:-1]]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source.split('/')[0]}" in ignored, source
    cloud_build = (ROOT / ".gcloudignore").read_text().splitlines()
    assert {line for line in ignored if line.startswith("!")} < set(cloud_build)


def test_the_image_has_the_whole_package_and_installs_no_more_at_launch() -> None:
    setuptools = PYPROJECT["tool"]["setuptools"]
    folders = {"fineshards": "fineshards"} | setuptools["package-dir"]
    for stage in (CLI, IMAGE):
        assert set(folders.values()) < {words[0] for words in words_of("COPY", stage)}
    found = {
        ".".join((name, *init.parent.relative_to(ROOT / folder).parts))
        for name, folder in folders.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert found == set(setuptools["packages"])
    assert ["fineshards/cli/build_command.py", "/template/main.py"] in words_of("COPY")
    variables = [words[0] for words in words_of("ENV")]
    assert variables == ["FLEX_TEMPLATE_PYTHON_PY_FILE=/template/main.py"]
    commands = [" ".join(words) for words in words_of("RUN")]
    assert commands[0].endswith("--requirement requirements.txt")
    compiles = " && python -m compileall -q /usr/local/lib/python3.11/site-packages"
    assert commands[1].endswith(f"--constraint requirements.txt '.[dataflow,warc]'{compiles}")
    assert " ".join(words_of("RUN", CLI)[1]).endswith(compiles)
    assert commands[2].startswith(f"{' '.join(CHECK)} 'fineshards[dataflow,warc]' && ")


# Ends the process on any connection to another machine, which no library can catch.
OFFLINE = """
import os, sys
def refuse(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname") or (
        event == "socket.connect" and not isinstance(arguments[1], (str, bytes))
        and arguments[1][0] not in ("127.0.0.1", "::1")
    ):
        os.write(2, f"connected to the network: {event} {arguments}".encode())
        os._exit(99)
sys.addaudithook(refuse)
sys.argv = sys.argv[1:]
import runpy
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.long
def test_the_program_downloads_nothing(sample: Path, tmp_path: Path) -> None:
    program = tmp_path / "template/main.py"
    program.parent.mkdir()
    shutil.copy(ROOT / "fineshards/cli/build_command.py", program)
    flags = (f"--input={sample}", f"--output={tmp_path / 'out'}", "--shard_tokens=100000")
    # No vocabulary is cached by an earlier run.
    nowhere = str(tmp_path / "nowhere")
    environment = os.environ | {"TIKTOKEN_CACHE_DIR": nowhere, "HOME": nowhere}
    environment["PYTHONPATH"] = str(ROOT / "tests")
    result = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(program), *flags],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out/metadata/manifest.json").exists()


def test_the_check_of_the_image_sees_its_own_libraries_alone(tmp_path: Path) -> None:
    def missing() -> str:
        """What pip says that it lacks."""
        command = [sys.executable, "-m", *CHECK, "fineshards[dataflow,warc]"]
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
        )
        assert (done.returncode == 0) == ("ERROR" not in done.stderr), done.stderr
        return "".join(re.findall("ERROR: Could not find .*", done.stderr))

    def install(name: str, version: str, *lines: str) -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        content = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines]
        (folder / "METADATA").write_text("\n".join(content) + "\n")

    # As in Beam's image: nothing of the job's imports it.
    install("of_the_base_image", "1.0", "Requires-Dist: numpy<1")
    assert missing() == ""
    install("requests", "2.99", "Requires-Dist: missing-library>=2")
    assert "missing-library>=2 (from requests)" in missing()
    install("tokenizers", "0.1", "Requires-Dist: not-there>=2; extra == 'never'")
    assert "requirement tokenizers<1" in missing()
