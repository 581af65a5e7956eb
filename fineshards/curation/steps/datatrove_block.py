"""datatrove's own filters and formatters as steps: `use = "datatrove:NAME"`.

A block is called for one document at a time. Blocks whose result depends on more than the document
and their parameters are refused by name.

The extra `datatrove` installs fasttext-numpy2-wheel, which has files of the same names as the
fasttext-predict of `curation`; whichever is installed last stays. The steps of this package work
with either. datatrove's blocks that need its own are among those that are refused.
"""

from __future__ import annotations

import json
import threading
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

from fineshards.curation.batch import Batch
from fineshards.curation.column_values import values_of
from fineshards.curation.parameters import check_parameters
from fineshards.curation.step import Judge, Outcome
from fineshards.errors import InputError, UsageError
from fineshards.extras import naming_the_extra, require

_HTML = "reads HTML; set `extract` for WARC input"
_REFUSED = {
    "C4BadWordsFilter": "downloads its words, and keeps some documents by random numbers in "
    "sequence; use c4_badwords",
    "FastTextClassifierFilter": "downloads its model; use fasttext",
    "LambdaFilter": "takes a function; use package.module:function",
    "LanguageFilter": "downloads its model; use language",
    "Modular": _HTML,
    "NGramsDecontFilter": "needs an index made by another job; use decontaminate",
    "PIIFormatter": "takes replacements in turn across documents; use pii",
    "ReadabilityInscriptis": _HTML,
    "SamplerFilter": "draws random numbers in sequence; use sample",
    "Trafilatura": "remembers segments of earlier pages and stops by the clock; set `extract` for "
    "WARC input",
    "URLFilter": "fetches the list of public suffixes and unpacks its lists into the home folder; "
    "use url",
    "UnigramLogProbFilter": "downloads its frequencies of words",
}
# Libraries that decide in some of its blocks.
_DECIDING = ("datatrove", "spacy", "ftfy", "regex")


@dataclass(frozen=True)
class DatatroveBlock(Judge):
    """Keeps, drops or rewrites documents as one of datatrove's blocks does.

    Args:
        block: The block's class, such as `GopherQualityFilter`.
        columns: Columns that the block finds in the document's metadata.
        parameters: The arguments that the block is made with: the other parameters in the recipe.

    Example:
        >>> DatatroveBlock("SamplerFilter")
        Traceback (most recent call last):
        ...
        fineshards.errors.UsageError: datatrove:SamplerFilter cannot be a step: it draws random \
numbers in sequence; use sample.
    """

    # Its blocks may divide by zero where a text is empty.
    GOLDEN: ClassVar[bool] = False
    REWRITES: ClassVar[bool] = True

    block: str
    columns: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if reason := _REFUSED.get(self.block):
            raise UsageError(f"datatrove:{self.block} cannot be a step: it {reason}.")
        check_parameters(self, f"datatrove:{self.block}")
        self._made()

    def pins(self) -> dict[str, str]:
        pins = {"unicode": unicodedata.unidata_version}
        for library in _DECIDING:
            try:
                pins[library] = version(library)
            except PackageNotFoundError:
                continue
        return pins

    def apply(self, batch: Batch) -> Outcome:
        block = self._made()
        columns = {name: values_of(batch, name) for name in self.columns}
        reasons, texts = [], []
        for index, (row, text) in enumerate(zip(batch.rows.tolist(), batch.strings, strict=True)):
            metadata = {name: values[index] for name, values in columns.items()}
            try:
                reason, left = self._judge(block, f"{batch.file}/{row}", text, metadata)
            except Exception as error:
                raise InputError(
                    f"{batch.place(row)}: datatrove:{self.block} failed with "
                    f"{type(error).__name__}: {error}"
                ) from error
            reasons.append(reason)
            texts.append(left)
        return Outcome(reasons, texts)

    def _judge(
        self, block: Any, id_: str, text: str, metadata: dict[str, Any]
    ) -> tuple[str | None, str]:
        """Why a document is dropped, or None, and its text."""
        from datatrove.data import Document

        if hasattr(block, "format"):
            return None, block.format(text)
        document = Document(text=text, id=id_, metadata=metadata)
        answer = block.filter(document)
        keep, reason = answer if isinstance(answer, tuple) else (answer, None)
        return (None if keep else reason or self.block), document.text

    def _made(self) -> Any:
        try:
            parameters = json.dumps(self.parameters, sort_keys=True)
        except TypeError as error:
            raise UsageError(
                f"datatrove:{self.block}: {error}; give what TOML can hold."
            ) from error
        return _make(self.block, parameters, threading.get_ident())


@lru_cache(maxsize=64)
@naming_the_extra()
def _make(name: str, parameters: str, thread: int) -> Any:
    """A block of datatrove, one per thread: a block counts what it does."""
    require("datatrove", "datatrove", "datatrove")
    from datatrove.pipeline import filters, formatters
    from datatrove.pipeline.filters.base_filter import BaseFilter
    from datatrove.pipeline.formatters.base import BaseFormatter

    blocks = {
        found: kind
        for module in (filters, formatters)
        for found, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, BaseFilter | BaseFormatter)
    }
    if name not in blocks:
        known = ", ".join(sorted(blocks.keys() - _REFUSED.keys()))
        raise UsageError(
            f"datatrove:{name} cannot be a step: it is not a filter or formatter of documents in "
            f"datatrove {version('datatrove')}. Those that can be are {known}."
        )
    arguments = json.loads(parameters)
    if "exclusion_writer" in arguments:
        raise UsageError(
            f"datatrove:{name}: exclusion_writer cannot be set; the dataset's decisions tell what "
            "is dropped."
        )
    try:
        return blocks[name](**arguments)
    except (TypeError, ValueError, ImportError) as error:
        raise UsageError(f"datatrove:{name} cannot be made: {error}.") from error
