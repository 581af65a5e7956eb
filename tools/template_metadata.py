"""Prints the metadata of the Flex Template, whose parameters are the flags of `build`.

`make template RUN=build` gives it to gcloud. Dataflow shows the parameters in its console, and
compares values with their regular expressions before it starts a job.
"""

import json
from dataclasses import Field
from typing import Any

from fineshards.config import BuildConfig
from fineshards.flags import choices, flags_of, help_texts, kinds

_ALLOWANCE = "^(0|[1-9][0-9]{0,17}|[0-9]{1,3}([.][0-9]{1,12})?%)$"
_OBJECTS = "^gs://[a-z0-9][-a-z0-9_.]+[a-z0-9]/.+$"
# Values that Dataflow refuses before it starts a machine.
_PATTERNS = {
    "input": _OBJECTS,
    "test_input": _OBJECTS,
    "output": _OBJECTS,
    "max_bad_rows": _ALLOWANCE,
    "max_bad_files": _ALLOWANCE,
    "test_fraction": "^(0([.][0-9]{1,9})?|1([.]0{1,9})?)$",
}
_KINDS = {
    "input": "GCS_READ_FILE",
    "test_input": "GCS_READ_FILE",
    "output": "GCS_WRITE_FOLDER",
    "test_fraction": "NUMBER",
    "max_bad_rows": "TEXT",
    "max_bad_files": "TEXT",
}


def metadata() -> dict[str, Any]:
    """The content of the metadata file. A share is for machines without a runner."""
    return {
        "name": "fineshards",
        "description": "Turns text (from Cloud Storage or the Hugging Face hub) into exact, "
        "reproducible token shards.",
        "streaming": False,
        "parameters": [
            *(_of_flag(flag) for flag in flags_of(BuildConfig) if flag.name != "share"),
            # Options of Beam that a user may want to set.
            _parameter(
                "sdk_container_image",
                "The container image of the workers: the image of this template, with its tag.",
                required=True,
                regexes=["^[-a-z0-9.:/_]+(:[A-Za-z0-9_][-A-Za-z0-9._]*|@sha256:[0-9a-f]{64})$"],
            ),
            _parameter(
                "disk_size_gb",
                "Disk of each worker in GB. It holds the image and files before their upload.",
                "NUMBER",
                default="50",
                regexes=["^[1-9][0-9]{1,4}$"],
            ),
            _parameter(
                "subnetwork",
                "Where the project has no network called default: regions/REGION/subnetworks/NAME. "
                "Workers without internet addresses need Private Google Access there, and cannot "
                "read the Hugging Face hub.",
                regexes=["^.*regions/[-a-z0-9]+/subnetworks/[-a-z0-9]+$"],
            ),
            _parameter(
                "number_of_worker_harness_threads",
                "Number of blocks that a worker processes at the same time. Fewer than its vCPUs "
                "save memory. Default: one per vCPU.",
                "NUMBER",
                regexes=["^[1-9][0-9]{0,3}$"],
            ),
        ],
    }


def _of_flag(flag: Field[Any]) -> dict[str, Any]:
    takes, name, default = kinds(BuildConfig, flag.name), flag.name, flag.default
    kind, more = "TEXT", dict[str, Any](regexes=[_PATTERNS.get(name, "^.+$")])
    if words := choices(BuildConfig, name):
        kind, more = "ENUM", {"enumOptions": [{"value": word, "label": word} for word in words]}
    elif bool in takes:
        kind, more, default = "BOOLEAN", {"regexes": ["^(true|false)$"]}, str(default).lower()
    elif int in takes and name not in _PATTERNS:
        kind, zero = "NUMBER", "" if flag.metadata["least"] else "0|"
        more = {"regexes": [f"^({zero}[1-9][0-9]{{0,17}})$"]}
    shown = None if default in (None, (), "") else str(default)
    about = help_texts(BuildConfig)[name]
    return _parameter(name, about, _KINDS.get(name, kind), shown, name == "output", **more)


def _parameter(
    name: str,
    about: str,
    kind: str = "TEXT",
    default: str | None = None,
    required: bool = False,
    **more: Any,
) -> dict[str, Any]:
    label = name.replace("_", " ").capitalize()
    found = {"name": name, "label": label, "helpText": about, "paramType": kind, **more}
    return found | {"isOptional": not required} | ({"defaultValue": default} if default else {})


if __name__ == "__main__":
    print(json.dumps(metadata(), indent=1))
