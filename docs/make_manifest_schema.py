"""Writes `manifest.schema.json`, the JSON Schema of the manifest, from its type. Run by `make api`.

The types say what a field may hold, and the docstrings what it is.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fineshards.shards.job.manifest import Manifest
from fineshards.shards.record import FORMAT_VERSION, Record

PATH = Path(__file__).with_name("manifest.schema.json")


def schema() -> dict[str, Any]:
    """The schema, of what a JSON parser makes of `metadata/manifest.json`."""
    found = msgspec.json.schema(Manifest)
    kinds = {kind.__name__: kind for kind in _records(Record)}
    for name, definition in found["$defs"].items():
        _describe(definition, kinds[name])
    manifest = found["$defs"].pop("Manifest")
    manifest["properties"]["crc32c"] = {
        "type": "string",
        "description": "CRC-32C of the file up to this line, as Cloud Storage writes it.",
    }
    manifest["required"].append("crc32c")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **manifest,
        "title": f"fineshards manifest, version {FORMAT_VERSION}",
        "$defs": found["$defs"],
    }


def schema_text() -> str:
    """The content of the file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _records(base: type[Record]) -> Iterator[type[Record]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _records(kind)


def _describe(definition: dict[str, Any], kind: type[Record]) -> None:
    """Adds what the docstring of a record says of it and of its fields."""
    about = inspect.getdoc(kind) or ""
    definition["description"] = " ".join(about.partition("\n\n")[0].split())
    arguments = about.partition("\nArgs:\n")[2].partition("\n\nExample")[0]
    texts = dict(re.findall(r"^(\w+): (.*(?:\n .*)*)", textwrap.dedent(arguments), re.MULTILINE))
    for field in msgspec.structs.fields(kind):
        text = " ".join(texts[field.name].split())
        found = definition["properties"].pop(field.encode_name)
        if "Not part of the record." not in text:
            found.pop("default", None)
            definition["properties"][field.encode_name] = found | {"description": text}


if __name__ == "__main__":
    PATH.write_text(schema_text())
