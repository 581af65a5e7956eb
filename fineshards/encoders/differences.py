"""The code points around which the fast encoder splits text differently from the reference.

The libraries follow different versions of Unicode: a character that is unassigned in one may be a
letter in the other. `python -m tools.scheme_differences` finds these code points by comparing
both libraries on all of them, and writes `differences.json` with the libraries' versions. There is
no fast path for a pattern that is not in the table, or with other versions of gigatoken or of the
reference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TABLE = Path(__file__).with_name("differences.json")

# Bytes scanned at a time, so that the temporary arrays stay in a core's cache.
_CHUNK = 1 << 18
# A byte that is so frequent in a chunk is looked for by numpy, which is slower where it is rare.
_FEW = 64


@dataclass(frozen=True)
class Scheme:
    """A way of splitting text that both libraries implement.

    reference: the library that defines it, `tiktoken` or `tokenizers`.
    fast: gigatoken's name for it; `tokenizer.json` if gigatoken reads the pattern itself.
    pattern: tiktoken's regular expression, or `TokenizerJson.pattern`.
    ranges: first and last code point of each range that the two treat differently, in order.
    """

    reference: str
    fast: str
    pattern: str
    ranges: tuple[tuple[int, int], ...]

    def documents(self, texts: pa.Array) -> npt.NDArray[np.int64]:
        """The indices of strings (large_string, no nulls) with such a code point, in order."""
        if not self.ranges:
            return np.empty(0, np.int64)
        offsets, data = string_buffers(texts)
        hits = []
        for start in range(int(offsets[0]), int(offsets[-1]), _CHUNK):
            chunk = data[start : min(start + _CHUNK, int(offsets[-1]))].tobytes()
            for lead, seconds in self._beginnings.items():
                places = _places(chunk, lead) + start
                if places.size:
                    places = places[seconds[data[np.minimum(places + 1, len(data) - 1)]]]
                    hits.append(places[self._holds(_code_points(data, places))])
        if not hits:
            return np.empty(0, np.int64)
        return np.unique(np.searchsorted(offsets, np.concatenate(hits), side="right") - 1)

    def _holds(self, code_points: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        first, last = self._bounds
        run = np.searchsorted(first, code_points, side="right") - 1
        inside: npt.NDArray[np.bool_] = (run >= 0) & (code_points <= last[run])
        return inside

    @cached_property
    def _beginnings(self) -> dict[int, npt.NDArray[np.bool_]]:
        """For each lead byte of the table's characters, which second bytes occur with it."""
        beginnings: dict[int, npt.NDArray[np.bool_]] = {}
        for first, last in self.ranges:
            for code_point in range(first, last + 1):
                lead, second = chr(code_point).encode()[:2]
                beginnings.setdefault(lead, np.zeros(256, np.bool_))[second] = True
        return beginnings

    @cached_property
    def _bounds(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        bounds = np.array(self.ranges, dtype=np.int64).reshape(-1, 2)
        return bounds[:, 0], bounds[:, 1]


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
            f"{package} is {_installed(package)}, not {self.versions[package]}"
            for package in ("gigatoken", reference)
            if _installed(package) != self.versions[package]
        ]


@lru_cache(maxsize=1)
def load_table() -> SchemeTable:
    """Loads the table that is stored in the package."""
    content = json.loads(TABLE.read_text("utf-8"))
    schemes: dict[str, Scheme] = {}
    for name, fields in content["schemes"].items():
        if isinstance(fields["ranges"], str):
            ranges = schemes[fields["ranges"]].ranges  # those of an earlier scheme
        else:
            ranges = tuple(_range(text) for line in fields["ranges"] for text in line.split())
        schemes[name] = Scheme(**fields | {"ranges": ranges})
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


def _places(chunk: bytes, byte: int) -> npt.NDArray[np.int64]:
    """Where a byte is in a chunk, in order."""
    found: list[int] = []
    place = chunk.find(byte)
    while place >= 0:
        if len(found) == _FEW:
            return np.flatnonzero(np.frombuffer(chunk, np.uint8) == byte)
        found.append(place)
        place = chunk.find(byte, place + 1)
    return np.array(found, np.int64)


def _code_points(
    data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The code points that begin at `places` in UTF-8 text."""
    byte = [
        data[np.minimum(places + step, len(data) - 1)].astype(np.int64) & (0x3F if step else 0xFF)
        for step in range(4)
    ]
    return np.select(
        [byte[0] < 0x80, byte[0] < 0xE0, byte[0] < 0xF0],
        [
            byte[0],
            (byte[0] & 0x1F) << 6 | byte[1],
            (byte[0] & 0xF) << 12 | byte[1] << 6 | byte[2],
        ],
        (byte[0] & 0x7) << 18 | byte[1] << 12 | byte[2] << 6 | byte[3],
    )


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first, 16), int(last or first, 16)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
