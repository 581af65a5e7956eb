"""The code points around which gigatoken splits text differently from the reference.

The libraries follow different versions of Unicode: a character that is unassigned in one may be a
letter in the other. `python -m tools.scheme_differences` finds these code points by comparing
both libraries on all of them, and writes `differences.json` with the libraries' versions. There is
no fast path for a pattern that is not in the table, or with other versions of gigatoken or of the
reference.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

TABLE = Path(__file__).with_name("differences.json")

# Bytes scanned at a time: most chunks lack some of the bytes that are looked for.
_CHUNK = 1 << 15


@dataclass(frozen=True)
class Scheme:
    """A way of splitting text that both libraries implement.

    pattern: tiktoken's regular expression, or `TokenizerJson.pattern`.
    ranges: first and last code point of each range that the two treat differently, in order.
    fast: gigatoken's name for it, of tiktoken; of a tokenizer.json gigatoken reads the pattern.
    added: texts of added tokens, which only the reference matches.
    """

    pattern: str
    ranges: tuple[tuple[int, int], ...]
    fast: str = ""
    added: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """The library that defines it."""
        return "tiktoken" if self.fast else "tokenizers"

    def documents(self, texts: pa.Array) -> npt.NDArray[np.int64]:
        """The indices of strings (large_string, no nulls) that only the reference gets right."""
        if not self._beginnings:
            return np.empty(0, np.int64)
        offsets, data = string_buffers(texts)
        hits = [np.empty(0, np.int64)]
        for start in range(int(offsets[0]), int(offsets[-1]), _CHUNK):
            chunk = data[start : min(start + _CHUNK, int(offsets[-1]))]
            content = chunk.tobytes()
            for first, seconds in self._beginnings.items():
                if first in content:
                    places = np.flatnonzero(chunk == first) + start
                    hits.append(places[seconds[data[np.minimum(places + 1, len(data) - 1)]]])
        likely = np.unique(np.searchsorted(offsets, np.concatenate(hits), side="right") - 1)
        matches = pc.match_substring_regex(texts.take(pa.array(likely)), self._regex)
        hard: npt.NDArray[np.int64] = likely[matches.to_numpy(zero_copy_only=False)]
        return hard

    @cached_property
    def _beginnings(self) -> dict[int, npt.NDArray[np.bool_]]:
        """For the first byte of all that is looked for, which second bytes occur with it."""
        beginnings: dict[int, npt.NDArray[np.bool_]] = {}
        characters = (chr(code) for first, last in self.ranges for code in range(first, last + 1))
        for raw in map(str.encode, chain(characters, self.added)):
            seconds = beginnings.setdefault(raw[0], np.zeros(256, np.bool_))
            seconds[raw[1] if len(raw) > 1 else slice(None)] = True
        return beginnings

    @cached_property
    def _regex(self) -> str:
        """Matches each of the code points and of the added tokens."""
        ranges = (f"[{chr(first)}-{chr(last)}]" for first, last in self.ranges)
        return "|".join([*ranges, *map(re.escape, self.added)])


@dataclass(frozen=True)
class SchemeTable:
    """The stored table.

    versions: library versions by package name. schemes: by the name they were derived under.
    """

    versions: dict[str, str]
    schemes: dict[str, Scheme]

    def scheme(self, reference: str, pattern: str) -> Scheme | None:
        """The scheme of a library and a pattern, or None."""
        wanted = (reference, pattern)
        return next((x for x in self.schemes.values() if (x.reference, x.pattern) == wanted), None)

    def other_versions(self, reference: str) -> list[str]:
        """Describes which of gigatoken and the reference have another version than the table's."""
        return [
            f"{package} is {version(package)}, not {self.versions[package]}"
            for package in ("gigatoken", reference)
            if version(package) != self.versions[package]
        ]


@lru_cache(maxsize=1)
def load_table() -> SchemeTable:
    """Loads the table that is stored in the package."""
    content = json.loads(TABLE.read_text("utf-8"))
    schemes = {
        name: Scheme(**fields | {"ranges": tuple(map(_range, fields["ranges"].split()))})
        for name, fields in content["schemes"].items()
    }
    return SchemeTable(content["versions"], schemes)


def string_buffers(texts: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """The offsets, shape (n + 1,), and the bytes of a large_string array, without a copy."""
    _, offsets, data = texts.buffers()
    first = texts.offset
    return (
        np.frombuffer(offsets, np.int64, count=len(texts) + 1, offset=8 * first)
        if offsets is not None and offsets.size
        else np.zeros(1, np.int64),
        np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8),
    )


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first, 16), int(last or first, 16)
