"""What plug-ins derive from: formats, places, steps, encoders and exports of your own packages.

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

`examples/plugin/` is such a package, and `fineshards.plugins.testing` has its tests.
"""

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
