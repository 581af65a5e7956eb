"""Writes the fields of both JSON Schemas as tables: `python docs/make_schemas_page.py FILE`.

Run by `make site`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
_HEAD = """# Schemas

Two files have a [JSON Schema](https://json-schema.org), which editors and validators read:
[manifest.schema.json](manifest.schema.json) is that of a dataset's `metadata/manifest.json`, and
[recipe.schema.json](recipe.schema.json) that of a recipe. To a schema, TOML is the same as JSON.
A manifest leaves out what is null, false, 0 or empty where a field has that as its default.
"""


def page() -> str:
    """The whole page."""
    manifest, recipe = (
        json.loads((FOLDER / f"{name}.schema.json").read_text()) for name in ("manifest", "recipe")
    )
    parts = [_HEAD, "## The manifest\n", manifest["description"] + "\n", _table(manifest, manifest)]
    parts += ["## Recipes\n", "[Curation](curation.md) shows how to use them.\n"]
    parts += [_table({"properties": recipe["properties"]}, {}), "## Steps\n"]
    parts.append("`use` names the step. A parameter in bold must be given.\n")
    for name, step in recipe["$defs"].items():
        parts += [f"### {name}\n", step["description"] + "\n", _table(step, {})]
    return "\n".join(part for part in parts if part)


def _table(schema: dict[str, Any], whole: dict[str, Any]) -> str:
    rows = [f"| {name} | {kind} | {about} |\n" for name, kind, about in _fields(schema, whole, "")]
    return "| field | type | |\n|---|---|---|\n" + "".join(rows) if rows else ""


def _fields(
    schema: dict[str, Any], whole: dict[str, Any], prefix: str
) -> Iterator[tuple[str, str, str]]:
    for name, field in schema.get("properties", {}).items():
        field = _found(field, whole)
        if name == "use":
            continue
        shown = f"`{prefix}{name}`"
        required = not whole and name in schema.get("required", ())
        about = re.sub(r"([|<\[*])", r"\\\1", field.get("description", ""))
        yield f"**{shown}**" if required else shown, _kind(field), about
        if whole:
            inner = _found(field.get("items", field), whole)
            yield from _fields(inner, whole, f"{prefix}{name}{'[]' * ('items' in field)}.")


def _found(field: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """The schema that a field refers to, also where it may be null."""
    name = field.get("anyOf", [field])[0].get("$ref", "").removeprefix("#/$defs/")
    return {**whole["$defs"][name], **field} if name else field


def _kind(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return "object"
    if "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "anyOf" in field:
        return " or ".join(map(_kind, field["anyOf"]))
    kinds = field.get("type", [])
    return " or ".join([kinds] if isinstance(kinds, str) else kinds)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
