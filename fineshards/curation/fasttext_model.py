"""fastText's supervised models: loaded once per process, from any distribution of the library.

`fasttext-predict`, `fasttext-numpy2-wheel` and others install the same module. Their Python classes
differ, in what they make of scores; the compiled part below, which is used here, does not.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fineshards.curation.pinned import Pinned, local_copy, read
from fineshards.errors import InputError
from fineshards.extras import naming_the_extra, require

_MAGIC = 793712314
_LABEL = 1
_HEADER = struct.Struct("<i4x48x8xi8x16x")
_DISTRIBUTIONS = ("fasttext-predict", "fasttext-numpy2-wheel", "fasttext-wheel", "fasttext")


def fasttext_version() -> str:
    """The version of fastText itself, such as 0.9.2; distributions may count further."""
    require("fasttext", "fasttext-predict", "curation")
    for distribution in _DISTRIBUTIONS:
        try:
            return ".".join(version(distribution).split(".")[:3])
        except PackageNotFoundError:
            continue
    return "unknown"


class Model:
    """A model, which is safe to share among threads."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def scores(self, line: str) -> dict[str, float]:
        """The scores of a text without newlines, by label; labels with tiny ones are left out."""
        found = self._compiled.predict(f"{line}\n", -1, 0.0, "strict")
        return {label: score for score, label in found}


def labels_of(file: Pinned) -> list[str]:
    """The labels that a model can give, with their prefix; raises InputError if it is not one.

    They are read from the file, because fasttext-predict does not tell them. The format, from
    fastText's FastText::saveModel and Dictionary::save: magic and version (int32 each), 12
    parameters (int32) and one (double), the dictionary's sizes (3 int32, 2 int64), its entries
    (the word, a zero, an int64 and the kind, which is 1 for labels), and the matrices.
    """
    content = read(file)
    if len(content) < _HEADER.size or _HEADER.unpack_from(content)[0] != _MAGIC:
        raise InputError(f"{file.path} is not a model of fastText.")
    labels, position = [], _HEADER.size
    for _ in range(_HEADER.unpack_from(content)[1]):
        end = content.find(b"\0", position)
        if end < 0 or end + 10 > len(content):
            raise InputError(f"{file.path} is a model of fastText that is cut short.")
        if content[end + 9] == _LABEL:
            labels.append(content[position:end].decode(errors="replace"))
        position = end + 10
    return labels


@lru_cache(maxsize=2)
@naming_the_extra()
def load_model(file: Pinned) -> Model:
    """Loads a model; raises InputError if the file is not one."""
    from fasttext.FastText import _FastText

    with local_copy(file) as path:
        try:
            return Model(_FastText(path).f)
        except (ValueError, MemoryError, RuntimeError) as error:
            raise InputError(f"{file.path} is not a model of fastText: {error}") from error
