"""fastText's supervised models: loaded once per process, from any distribution of the library.

`fasttext-predict`, `fasttext-numpy2-wheel` and others install the same module. Their Python classes
differ, in what they make of scores; the compiled part below, which is used here, does not.

fastText itself reads beyond the end of a file that is cut short and crashes later; and
fasttext-predict does not tell labels. The format, little-endian, from FastText::saveModel and what
it calls:

    int32 magic, int32 version, 12 int32 and a double of parameters
    int32 entries, int32 words, int32 labels, int64 tokens, int64 pruned
    entries: the word, a zero byte, int64 count, int8 kind (1: label)
    pruned (if there are any): pairs of int32
    bool quantized, the input matrix; bool quantized, the output matrix
    dense matrix: int64 rows, int64 columns, float32 each
    quantized matrix: bool norms, int64 rows, int64 columns, int32 size of codes, codes,
        quantizer; with norms: a byte for each row, quantizer
    quantizer: int32 dimension, 3 int32, 256 float32 for each dimension
"""

import mmap
import struct
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fineshards.curation.reference_files import Pinned, local_copy, pin, pinned
from fineshards.errors import InputError, UsageError
from fineshards.extras import naming_the_extra, require

_DISTRIBUTIONS = ("fasttext-predict", "fasttext-numpy2-wheel", "fasttext-wheel", "fasttext")
# What a label begins with in a model.
_PREFIX = "__label__"
_MAGIC = 793712314
_LABEL = 1
_HEADER = "<i4x48x8xi8x8xq"
# Count and kind, behind the zero byte of an entry.
_REST = 9


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
    """A model, safe for threads. labels: all that it can give."""

    def __init__(self, path: str, compiled: Any) -> None:
        self.labels = [label.removeprefix(_PREFIX) for label in read_labels(path)]
        self._compiled = compiled(path).f

    def scores(self, text: str) -> dict[str, float]:
        """The scores of a text by label; labels with tiny ones are left out.

        The model sees a space in place of a line break.
        """
        line = text.replace("\n", " ")
        predicted = self._compiled.predict(f"{line}\n", -1, 0.0, "strict")
        return {label.removeprefix(_PREFIX): score for score, label in predicted}


@lru_cache(maxsize=2)
@naming_the_extra()
def load_model(file: Pinned) -> Model:
    """Loads a model; raises InputError if the file is not one."""
    from fasttext.FastText import _FastText

    with local_copy(file) as path:
        try:
            return Model(path, _FastText)
        except (ValueError, MemoryError, RuntimeError) as error:
            why = f"{file.path} is not a model of fastText that can be used: {error}."
            raise InputError(why) from error


def model_pins(step: str, path: str, labels: Iterable[str]) -> dict[str, str]:
    """What decides scores; raises UsageError for a label that the model does not have."""
    pins = {"fasttext": fasttext_version(), "model": pin(path).sha256}
    known = load_model(pinned(path)).labels
    for label in labels:
        if label not in known:
            raise UsageError(
                f"{step}: {path} has no label {label!r}; its labels are "
                f"{', '.join(sorted(known)[:200])}."
            )
    return pins


def read_labels(path: str) -> list[str]:
    """The labels that a model can give, with their prefix; raises ValueError if it is damaged."""
    with open(path, "rb") as file:
        try:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise ValueError("it is empty") from error
        with content:
            return _Reader(content).labels()


class _Reader:
    """Walks through a file; `_at` is the position."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._at = 0

    def labels(self) -> list[str]:
        content = self._content
        if len(content) < 4 or int.from_bytes(content[:4], "little") != _MAGIC:
            raise ValueError("it is not a model of fastText")
        _, entries, pruned = self._take(_HEADER)
        labels = []
        for _ in range(entries):
            end = content.find(b"\0", self._at)
            if end < 0 or end + _REST >= len(content):
                raise ValueError("it is cut short")
            if content[end + _REST] == _LABEL:
                labels.append(content[self._at : end].decode(errors="replace"))
            self._at = end + _REST + 1
        self._skip(8 * max(pruned, 0))
        [quantized] = self._take("<?")
        self._matrix(quantized)
        self._matrix(self._take("<?")[0] and quantized)
        if self._at != len(content):
            raise ValueError(f"it has {len(content)} bytes, expected {self._at}")
        return labels

    def _matrix(self, quantized: int) -> None:
        norms = quantized and self._take("<?")[0]
        rows, columns = self._take("<qq")
        if not quantized:
            self._skip(4 * rows * columns)
            return
        self._skip(self._take("<i")[0])
        for of_norms in range(1 + norms):
            self._skip(of_norms * rows)
            self._skip(3 * 4 + 4 * 256 * self._take("<i")[0])

    def _take(self, form: str) -> tuple[int, ...]:
        begin = self._at
        self._skip(struct.calcsize(form))
        return struct.unpack_from(form, self._content, begin)

    def _skip(self, size: int) -> None:
        self._at += size
        if size < 0 or self._at > len(self._content):
            raise ValueError("it is cut short")
