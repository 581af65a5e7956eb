"""fastText's supervised models: loaded once per process, from any distribution of the library.

`fasttext-predict`, `fasttext-numpy2-wheel` and others install the same module. Their Python classes
differ, in what they make of scores; the compiled part below, which is used here, does not.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from fineshards.curation.fasttext_file import read_labels
from fineshards.curation.reference_files import Pinned, local_copy
from fineshards.errors import InputError
from fineshards.extras import naming_the_extra, require

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
    """A model, safe for threads. labels: all that it can give, with their prefix."""

    def __init__(self, path: str) -> None:
        from fasttext.FastText import _FastText

        self.labels = read_labels(path)
        self._compiled = _FastText(path).f

    def scores(self, line: str) -> dict[str, float]:
        """The scores of a text without newlines, by label; labels with tiny ones are left out."""
        found = self._compiled.predict(f"{line}\n", -1, 0.0, "strict")
        return {label: score for score, label in found}


@lru_cache(maxsize=2)
@naming_the_extra()
def load_model(file: Pinned) -> Model:
    """Loads a model; raises InputError if the file is not one."""
    with local_copy(file) as path:
        try:
            return Model(path)
        except (ValueError, MemoryError, RuntimeError) as error:
            raise InputError(
                f"{file.path} is not a model of fastText that can be used: {error}."
            ) from error
