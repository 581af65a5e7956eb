"""Base classes of plug-ins: formats, places, steps, encoders and exports of your packages.

A package names its classes among the entry points of a group in its pyproject.toml, and is
installed; then the command line, Python, recipes, help and completion know them. Jobs record its
version, and another one is refused:

    [project.entry-points."fineshards.steps"]
    ascii = "my_package.steps:Ascii"

- `fineshards.formats`: a `Format` cuts a file into `blocks` and has `read` yield their rows.
- `fineshards.places`: a `Place`, named by the scheme of its URLs, has `find`, `state` and `read`.
- `fineshards.steps`: a `Judge` drops or rewrites documents by `apply(batch)`; a `Scorer` gives them
  scores; a `Keyed` step drops duplicates by `keys(batch)`, and `KeyedSpans` has `cut`, too. Each is
  a frozen dataclass, whose fields are its parameters.
- `fineshards.encoders`: a `FastEncoder` has `encode(texts)`, for `--tokenizer_engine`.
- `fineshards.exports`: an `ExportFormat` has `write(reader, settings, target)` write a part.

`examples/plugin/` is such a package, and `fineshards.plugins.testing` has its tests. Names are
imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fineshards.curation.batch import Batch as Batch
    from fineshards.curation.step import Judge as Judge
    from fineshards.curation.step import Keyed as Keyed
    from fineshards.curation.step import KeyedSpans as KeyedSpans
    from fineshards.curation.step import Keys as Keys
    from fineshards.curation.step import Outcome as Outcome
    from fineshards.curation.step import Scorer as Scorer
    from fineshards.encoders.encoder import CannotEncodeError as CannotEncodeError
    from fineshards.encoders.encoder import FastEncoder as FastEncoder
    from fineshards.encoders.encoder import TokenBatch as TokenBatch
    from fineshards.errors import InputError as InputError
    from fineshards.errors import UsageError as UsageError
    from fineshards.exports.format import ExportFormat as ExportFormat
    from fineshards.exports.format import ExportSettings as ExportSettings
    from fineshards.exports.format import Target as Target
    from fineshards.exports.format import Written as Written
    from fineshards.exports.parts import PartReader as PartReader
    from fineshards.shards.job.records import BadRow as BadRow
    from fineshards.shards.job.records import Block as Block
    from fineshards.shards.job.records import SourceFile as SourceFile
    from fineshards.shards.job.settings import Columns as Columns
    from fineshards.sources.compression import explained as explained
    from fineshards.sources.compression import open_text as open_text
    from fineshards.sources.compression import read_lines as read_lines
    from fineshards.sources.formats.format import Format as Format
    from fineshards.sources.formats.format import gathered as gathered
    from fineshards.sources.places.place import Place as Place
    from fineshards.sources.rows import RowBatch as RowBatch

_HOME = {
    "fineshards.curation.batch": ["Batch"],
    "fineshards.curation.step": ["Judge", "Keyed", "KeyedSpans", "Keys", "Outcome", "Scorer"],
    "fineshards.encoders.encoder": ["CannotEncodeError", "FastEncoder", "TokenBatch"],
    "fineshards.errors": ["InputError", "UsageError"],
    "fineshards.exports.format": ["ExportFormat", "ExportSettings", "Target", "Written"],
    "fineshards.exports.parts": ["PartReader"],
    "fineshards.shards.job.records": ["BadRow", "Block", "SourceFile"],
    "fineshards.shards.job.settings": ["Columns"],
    "fineshards.sources.compression": ["explained", "open_text", "read_lines"],
    "fineshards.sources.formats.format": ["Format", "gathered"],
    "fineshards.sources.places.place": ["Place"],
    "fineshards.sources.rows": ["RowBatch"],
}


def __getattr__(name: str) -> object:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(module), name)
    if name == "__all__":
        return __dir__()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(name for names in _HOME.values() for name in names)
