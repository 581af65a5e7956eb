"""Mutants of JSON records: any field becomes a value of another type, too large, or nonsense."""

import json
from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any

from fineshards.errors import FineshardsError
from fineshards.shards.job.manifest import Manifest
from support.damage import checksum

_DEEP: Any = "DEEP"
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, float("nan"), 1e308, 10**30, -(10**400), (1 << 63) - 1),
    *("", "x", "\0", "../x", "/etc/hostname", "\ud800", "x" * 100_000, "9" * 5_000),
    *([], {}, [[]], [None], {"x": 1}, [1, 2, 3], ["x"], [["x", 1]], [[1, "x"]], _DEEP),
)


def paths(content: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of a JSON value; of the entries of a list only the first and the last."""
    yield path
    if isinstance(content, dict):
        for key in content:
            yield from paths(content[key], (*path, key))
    elif isinstance(content, list):
        for index in sorted({0, len(content) - 1} if content else ()):
            yield from paths(content[index], (*path, index))


def mutant(content: Any, random: Random) -> tuple[str, bytes]:
    """A record with one field changed or gone, and what was done; a manifest is sealed again."""
    made = deepcopy(content)
    path = random.choice([each for each in paths(content) if each] or [()])
    value = random.choice(VALUES)
    if not path:
        return f"all = {value!r:.60}", to_bytes(value)
    parent = made
    for key in path[:-1]:
        parent = parent[key]
    if random.random() < 0.1:
        del parent[path[-1]]
        return f"del {path}", sealed(made)
    parent[path[-1]] = value
    return f"{path} = {value!r:.60}", sealed(made)


def sealed(content: Any) -> bytes:
    """A record as bytes; a manifest has the fingerprint and the checksum of its content."""
    if not isinstance(content, dict) or "manifest" not in str(content.get("format")):
        return to_bytes(content)
    content.pop("crc32c", None)
    try:
        manifest = Manifest.parse(to_bytes(content), "a mutant")
        content["fingerprint"] = manifest.job.fingerprint()
    except FineshardsError:
        pass
    checked = to_bytes(content)[: -len("\n}")] + b",\n"
    return checked + f' "crc32c": "{checksum(checked)}"\n}}'.encode()


def to_bytes(content: Any) -> bytes:
    """JSON as written by us; the text DEEP becomes more arrays than a parser can nest."""
    found = json.dumps(content, indent=1)
    return found.replace('"DEEP"', "[" * 3_000 + "]" * 3_000).encode("utf-8", "surrogatepass")
